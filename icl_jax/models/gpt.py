"""GPT-2: pre-norm decoder with causal attention inside groups.

Shape suffixes: B batch, T time, D embed, V vocab.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

from flax import nnx
import jax

from icl_jax.config import GPTConfig
from icl_jax.config.tree import validate
from icl_jax.models.attention import Cache, Place, Reader, locate, the_weights
from icl_jax.models.dropout import dropout
from icl_jax.models.inputs import check_offset, check_tokens, position_limit
from icl_jax.models.layers import (
    MLP,
    Attention,
    LayerNorm,
    Positions,
    Table,
    extend_blocks,
    first_block,
    make_blocks,
    run_blocks,
    split_key,
    untied_head,
    vocabulary_logits,
)
from icl_jax.sharding import constrain, use_mesh_of


class GPT(nnx.Module):
    """`model(tokens, group)` gives logits; dropout acts only if a `dropout_key` is given.

    `offset` is the position of the first token of each group, 0 unless given. With
    `read_attention`, a function of a layer's softmax weights (batch, heads, queries, keys) before
    dropout, calls return what they return otherwise and what it read, stacked over layers. It is a
    part of the compiled program's key: give the same function every time.
    """

    def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs):
        validate(config)
        self.config = dataclasses.replace(config)
        self.token_embedding = Table(
            config.vocab_size,
            config.embed_dim,
            config.embedding_rank,
            "vocab",
            config.init_stddev,
            rngs=rngs,
        )
        self.positions = Positions(config, stddev=config.init_stddev, rngs=rngs)
        self.blocks = make_blocks(lambda rngs: Block(config, rngs=rngs), config, rngs)
        self.final_norm = make_norm(config)
        self.head = None if config.tie_head else untied_head(config, config.init_stddev, rngs)

    def __call__(
        self,
        tokens,
        group=None,
        *,
        offset=None,
        dropout_key: jax.Array | None = None,
        read_attention: Reader | None = None,
    ) -> jax.Array | tuple[jax.Array, Any]:
        """Float32 logits (batch, time, vocabulary). `group` (batch, time): 0 is padding."""
        with use_mesh_of(self):
            checked = self._check(tokens, group, offset)
            return self._forward(*checked, dropout_key, read=read_attention)

    def hidden(
        self,
        tokens,
        group=None,
        *,
        offset=None,
        dropout_key: jax.Array | None = None,
        read_attention: Reader | None = None,
    ) -> jax.Array | tuple[jax.Array, Any]:
        """The last hidden states (batch, time, embed), after the final norm."""
        with use_mesh_of(self):
            checked = self._check(tokens, group, offset)
            return self._encode(*checked, dropout_key, read=read_attention)

    def attention_weights(self, tokens, group=None, *, offset=None) -> jax.Array:
        """What each head looks at: float32 (layers, batch, heads, queries, keys), rows sum to 1."""
        return self.hidden(tokens, group, offset=offset, read_attention=the_weights)[1]

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

    @functools.partial(jax.jit, static_argnames="read")
    def _forward(self, tokens_BT, group_BT, offset, dropout_key, read=None):
        found = self._encode(tokens_BT, group_BT, offset, dropout_key, read=read)
        return self.logits(found) if read is None else (self.logits(found[0]), found[1])

    @functools.partial(jax.jit, static_argnames="read")
    def _encode(self, tokens_BT, group_BT, offset, dropout_key, read=None):
        config = self.config
        place = locate(tokens_BT.shape[1], group_BT, offset=offset)
        embedding_key, block_key = split_key(dropout_key, 2)
        x_BTD = self._embed(tokens_BT, place, embedding_key)
        x_BTD, readings = run_blocks(self.blocks, config, x_BTD, place, block_key, read)
        x_BTD = self.final_norm(x_BTD)
        return x_BTD if read is None else (x_BTD, readings)

    @jax.jit
    def _encode_first(self, tokens_BT, group_BT) -> jax.Array:
        place = locate(tokens_BT.shape[1], group_BT)
        x_BTD = self._embed(tokens_BT, place, None)
        return first_block(self.blocks, self.config)(x_BTD, place, None)[0]

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
        out_stddev = config.init_stddev / (2 * config.num_layers) ** 0.5
        self.attention_norm = make_norm(config)
        self.attention = Attention(config, causal=True, out_stddev=out_stddev, rngs=rngs)
        self.mlp_norm = make_norm(config)
        self.mlp = MLP(
            config, out_stddev=out_stddev, hidden=config.mlp_layers, gated=config.gated, rngs=rngs
        )

    def __call__(self, x_BTD: jax.Array, place: Place, dropout_key, read: Reader | None = None):
        """The stream, and what `read` says of the attention."""
        attention_key, *residual_keys = split_key(dropout_key, 3)
        h_BTD, reading = self.attention(self.attention_norm(x_BTD), place, attention_key, read)
        x_BTD = x_BTD + dropout(h_BTD, self.rate, residual_keys[0])
        h_BTD = self.mlp(self.mlp_norm(x_BTD))
        return x_BTD + dropout(h_BTD, self.rate, residual_keys[1]), reading

    def extend(
        self, x_BTD: jax.Array, places: Place, start: int | jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """The same for more tokens of rows whose first `start` tokens are in the cache."""
        h_BTD, cache = self.attention.extend(self.attention_norm(x_BTD), places, start, cache)
        x_BTD = x_BTD + h_BTD
        return x_BTD + self.mlp(self.mlp_norm(x_BTD)), cache
