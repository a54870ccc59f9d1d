"""GPT-2: pre-norm decoder with causal attention inside groups.

Shape suffixes: B batch, T time, D embed, V vocab.
"""

from collections.abc import Callable
import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp

from icl_jax.config import GPTConfig
from icl_jax.config.tree import validate
from icl_jax.models.attention import Cache, Place, locate
from icl_jax.models.dropout import dropout
from icl_jax.models.inputs import check_offset, check_tokens, position_limit
from icl_jax.models.layers import (
    MLP,
    Attention,
    LayerNorm,
    Positions,
    Table,
    each_block,
    extend_blocks,
    make_blocks,
    run_blocks,
    split_key,
    untied_head,
    vocabulary_logits,
)
from icl_jax.sharding import constrain, use_mesh_of

STDDEV = 0.02  # Radford et al. 2019


class GPT(nnx.Module):
    """`model(tokens, group)` gives logits; dropout acts only if a `dropout_key` is given.

    `offset` is the position of the first token of each group, 0 unless given.
    """

    def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs):
        validate(config)
        self.config = dataclasses.replace(config)
        self.token_embedding = Table(
            config.vocab_size, config.embed_dim, config.embedding_rank, "vocab", STDDEV, rngs=rngs
        )
        self.positions = Positions(config, stddev=STDDEV, rngs=rngs)
        self.blocks = make_blocks(lambda rngs: Block(config, rngs=rngs), config, rngs)
        self.final_norm = make_norm(config)
        self.head = None if config.tie_head else untied_head(config, STDDEV, rngs)

    def __call__(
        self, tokens, group=None, *, offset=None, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Float32 logits (batch, time, vocabulary). `group` (batch, time): 0 is padding."""
        with use_mesh_of(self):
            return self._forward(*self._check(tokens, group, offset), dropout_key)

    def hidden(
        self, tokens, group=None, *, offset=None, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """The last hidden states (batch, time, embed), after the final norm."""
        with use_mesh_of(self):
            return self._encode(*self._check(tokens, group, offset), dropout_key)

    def attention_weights(self, tokens, group=None, *, offset=None) -> jax.Array:
        """What each head looks at: float32 (layers, batch, heads, queries, keys), rows sum to 1."""
        with use_mesh_of(self):
            return self._look(*self._check(tokens, group, offset))

    def first_layer(self, tokens, group=None) -> jax.Array:
        """The hidden states (batch, time, embed) after the first block, not normed."""
        with use_mesh_of(self):
            return self._encode_first(*self._check(tokens, group)[:2])

    def logits(self, hidden_BTD: jax.Array) -> jax.Array:
        """The output head: float32 logits of hidden states."""
        return vocabulary_logits(*self.vocabulary(hidden_BTD), self.config.dtype)

    def vocabulary(self, hidden_BTD: jax.Array) -> tuple[jax.Array, jax.Array, None]:
        """(x, rows, bias) with `logits` = x rows^T + bias; for `losses.vocabulary_loss`."""
        return *(self.head or self.token_embedding).head(hidden_BTD, self.config.dtype), None

    def extend(
        self, tokens_BT: jax.Array, places: Place, start: int | jax.Array, cache
    ) -> tuple[jax.Array, Cache | list[Cache]]:
        """Float32 logits (batch, vocabulary) after the last of T more tokens, and the grown cache.

        The cache holds `start` tokens of each row; `places` has the places of all its slots.
        """
        x_BTD = self._embed(tokens_BT, places.window(start, tokens_BT.shape[1]), None)
        x_BTD, cache = extend_blocks(self.blocks, self.config, x_BTD, places, start, cache)
        return self.logits(self.final_norm(x_BTD[:, -1:]))[:, 0], cache

    def _check(self, tokens, group, offset=None):
        config, offset = self.config, check_offset(offset)
        limit = position_limit(config)
        return *check_tokens(tokens, group, config.vocab_size, limit, offset), offset

    @jax.jit
    def _forward(self, tokens_BT, group_BT, offset, dropout_key) -> jax.Array:
        return self.logits(self._encode(tokens_BT, group_BT, offset, dropout_key))

    @jax.jit
    def _look(self, tokens_BT, group_BT, offset) -> jax.Array:
        place = locate(tokens_BT.shape[1], group_BT, offset=offset)
        x_BTD, weights = self._embed(tokens_BT, place, None), []
        for block in each_block(self.blocks, self.config):
            weights.append(block.attention_weights(x_BTD, place))
            x_BTD = block(x_BTD, place, None)
        return jnp.stack(weights)

    @jax.jit
    def _encode(self, tokens_BT, group_BT, offset, dropout_key) -> jax.Array:
        config = self.config
        place = locate(tokens_BT.shape[1], group_BT, offset=offset)
        embedding_key, block_key = split_key(dropout_key, 2)
        x_BTD = self._embed(tokens_BT, place, embedding_key)
        x_BTD = run_blocks(self.blocks, config, x_BTD, place, block_key)
        return self.final_norm(x_BTD)

    @jax.jit
    def _encode_first(self, tokens_BT, group_BT) -> jax.Array:
        place = locate(tokens_BT.shape[1], group_BT)
        x_BTD = self._embed(tokens_BT, place, None)
        return next(each_block(self.blocks, self.config))(x_BTD, place, None)

    def _embed(self, tokens_BT, place: Place, dropout_key) -> jax.Array:
        x_BTD = self.positions(self.token_embedding(tokens_BT), place)
        x_BTD = dropout(x_BTD, self.config.embedding_dropout, dropout_key)
        return constrain(x_BTD.astype(self.config.dtype), "batch", None, None)


def make_norm(config: GPTConfig) -> Callable[[jax.Array], jax.Array]:
    """Layer normalisation, or none: the identity."""
    if config.norm == "none":
        return _identity
    return LayerNorm(config.embed_dim, config.norm_epsilon)


def _identity(x: jax.Array) -> jax.Array:
    return x


class Block(nnx.Module):
    """Attention and feed-forward; each norms its input and adds its output to the stream."""

    def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs):
        self.rate = config.residual_dropout
        # Radford et al. 2019: the 2 L layers that write to the stream start with smaller weights.
        out_stddev = STDDEV / (2 * config.num_layers) ** 0.5
        self.attention_norm = make_norm(config)
        self.attention = Attention(config, causal=True, out_stddev=out_stddev, rngs=rngs)
        self.mlp_norm = make_norm(config)
        self.mlp = MLP(config, out_stddev=out_stddev, hidden=config.mlp_layers, rngs=rngs)

    def __call__(self, x_BTD: jax.Array, place: Place, dropout_key: jax.Array | None) -> jax.Array:
        attention_key, *residual_keys = split_key(dropout_key, 3)
        h_BTD = self.attention(self.attention_norm(x_BTD), place, attention_key)
        x_BTD = x_BTD + dropout(h_BTD, self.rate, residual_keys[0])
        h_BTD = self.mlp(self.mlp_norm(x_BTD))
        return x_BTD + dropout(h_BTD, self.rate, residual_keys[1])

    def attention_weights(self, x_BTD: jax.Array, place: Place) -> jax.Array:
        """The weights of its heads (batch, heads, queries, keys)."""
        return self.attention.weights(self.attention_norm(x_BTD), place)

    def extend(
        self, x_BTD: jax.Array, places: Place, start: int | jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """The same for more tokens of rows whose first `start` tokens are in the cache."""
        h_BTD, cache = self.attention.extend(self.attention_norm(x_BTD), places, start, cache)
        x_BTD = x_BTD + h_BTD
        return x_BTD + self.mlp(self.mlp_norm(x_BTD)), cache
