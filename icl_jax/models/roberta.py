"""RoBERTa and BERT: post-norm encoder with bidirectional attention inside groups, and the MLM head.

Shape suffixes: B batch, T time, D embed, V vocab.
"""

import dataclasses
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from icl_jax.config import RobertaConfig
from icl_jax.config.tree import validate
from icl_jax.models.attention import Place, Reader, locate
from icl_jax.models.dropout import dropout
from icl_jax.models.inputs import check_token_types, check_tokens, position_limit
from icl_jax.models.layers import (
    ACTIVATIONS,
    MLP,
    Attention,
    Dense,
    LayerNorm,
    Positions,
    Table,
    constant,
    first_block,
    make_blocks,
    run_blocks,
    split_key,
    untied_head,
    vocabulary_logits,
)
from icl_jax.sharding import constrain, use_mesh_of


class Roberta(nnx.Module):
    """`model(tokens, group)` gives logits of the MLM head; `hidden` the encoder's last layer.

    `read_attention` is as for `GPT`.
    """

    def __init__(self, config: RobertaConfig, *, rngs: nnx.Rngs):
        validate(config)
        self.config = dataclasses.replace(config)
        self.token_embedding = Table(
            config.vocab_size, config.embed_dim, config.embedding_rank, "vocab", config.init_stddev,
            zero_row=config.pad_token_id, rngs=rngs,
        )  # fmt: skip
        padding_row = config.position_offset - 1 if config.position_offset else None
        self.positions = Positions(
            config,
            offset=config.position_offset,
            zero_row=padding_row,
            stddev=config.init_stddev,
            rngs=rngs,
        )
        self.token_types = Table(
            config.token_types, config.embed_dim, None, None, config.init_stddev, rngs=rngs
        )
        self.embedding_norm = LayerNorm(config.embed_dim, config.norm_epsilon)
        self.blocks = make_blocks(lambda rngs: Block(config, rngs=rngs), config, rngs)
        self.pooler = square_dense(config, rngs) if config.pooler else None
        self.mlm_head = MLMHead(config, rngs=rngs) if config.mlm_head else None

    def __call__(
        self,
        tokens,
        group=None,
        *,
        token_types=None,
        dropout_key: jax.Array | None = None,
        read_attention: Reader | None = None,
    ) -> jax.Array | tuple[jax.Array, Any]:
        """Float32 logits (batch, time, vocabulary). `group` (batch, time): 0 is padding."""
        with use_mesh_of(self):
            checked = self._check(tokens, group, token_types)
            return self._forward(*checked, dropout_key, read=read_attention)

    def hidden(
        self,
        tokens,
        group=None,
        *,
        token_types=None,
        dropout_key: jax.Array | None = None,
        read_attention: Reader | None = None,
    ) -> jax.Array | tuple[jax.Array, Any]:
        """The last hidden states (batch, time, embed). `token_types` (batch, time); None: all 0."""
        with use_mesh_of(self):
            checked = self._check(tokens, group, token_types)
            return self._encode(*checked, dropout_key, read=read_attention)

    def first_layer(self, tokens, group=None, *, token_types=None) -> jax.Array:
        """The hidden states (batch, time, embed) after the first block."""
        with use_mesh_of(self):
            return self._encode_first(*self._check(tokens, group, token_types))

    def logits(self, hidden_BTD: jax.Array) -> jax.Array:
        """The MLM head: float32 logits of hidden states."""
        return vocabulary_logits(*self.vocabulary(hidden_BTD), self.config.dtype)

    def vocabulary(self, hidden_BTD: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(x, rows, bias) with `logits` = x rows^T + bias; for `losses.vocabulary_loss`."""
        if self.mlm_head is None:
            raise ValueError(
                "this encoder has no MLM head (mlm_head=False), so it gives no logits; "
                "use model.hidden(tokens, group)"
            )
        return self.mlm_head(hidden_BTD, self.token_embedding)

    def pooled(self, hidden_BTD: jax.Array) -> jax.Array:
        """BERT's sentence vector (batch, embed): a tanh layer on each row's first token."""
        if self.pooler is None:
            raise ValueError("this encoder has no pooler (pooler=False); pool the hidden states")
        return jnp.tanh(self.pooler(hidden_BTD[:, 0]))

    def _check(self, tokens, group, token_types):
        config = self.config
        tokens_BT, group_BT = check_tokens(tokens, group, config.vocab_size, position_limit(config))
        return tokens_BT, group_BT, check_token_types(token_types, tokens.shape, config.token_types)

    @functools.partial(jax.jit, static_argnames="read")
    def _forward(self, tokens_BT, group_BT, types_BT, dropout_key, read=None):
        found = self._encode(tokens_BT, group_BT, types_BT, dropout_key, read=read)
        return self.logits(found) if read is None else (self.logits(found[0]), found[1])

    @functools.partial(jax.jit, static_argnames="read")
    def _encode(self, tokens_BT, group_BT, types_BT, dropout_key, read=None):
        embedding_key, block_key = split_key(dropout_key, 2)
        x_BTD, place = self._embed(tokens_BT, group_BT, types_BT, embedding_key)
        found = run_blocks(self.blocks, self.config, x_BTD, place, block_key, read)
        return found[0] if read is None else found

    @jax.jit
    def _encode_first(self, tokens_BT, group_BT, types_BT) -> jax.Array:
        x_BTD, place = self._embed(tokens_BT, group_BT, types_BT, None)
        return first_block(self.blocks, self.config)(x_BTD, place, None)[0]

    def _embed(self, tokens_BT, group_BT, types_BT, dropout_key) -> tuple[jax.Array, Place]:
        config = self.config
        # The published RoBERTa does not count its padding tokens in positions.
        padding_aware = config.position == "learned" and config.position_offset > 0
        uncounted_BT = tokens_BT == config.pad_token_id if padding_aware else None
        place = locate(tokens_BT.shape[1], group_BT, uncounted_BT)
        x_BTD = self.token_embedding(tokens_BT) + self.token_types(types_BT)
        x_BTD = self.embedding_norm(self.positions(x_BTD, place))
        x_BTD = dropout(x_BTD, config.embedding_dropout, dropout_key)
        return constrain(x_BTD.astype(config.dtype), "batch", None, None), place


class Block(nnx.Module):
    """Attention and feed-forward; each adds its output to the stream, which is then normed."""

    def __init__(self, config: RobertaConfig, *, rngs: nnx.Rngs):
        self.rate = config.residual_dropout
        self.attention = Attention(config, causal=False, out_stddev=config.init_stddev, rngs=rngs)
        self.attention_norm = LayerNorm(config.embed_dim, config.norm_epsilon)
        self.mlp = MLP(config, out_stddev=config.init_stddev, rngs=rngs)
        self.mlp_norm = LayerNorm(config.embed_dim, config.norm_epsilon)

    def __call__(self, x_BTD: jax.Array, place: Place, dropout_key, read: Reader | None = None):
        """The stream, and what `read` says of the attention."""
        attention_key, *residual_keys = split_key(dropout_key, 3)
        h_BTD, reading = self.attention(x_BTD, place, attention_key, read)
        x_BTD = self.attention_norm(x_BTD + dropout(h_BTD, self.rate, residual_keys[0]))
        h_BTD = self.mlp(x_BTD)
        return self.mlp_norm(x_BTD + dropout(h_BTD, self.rate, residual_keys[1])), reading


class MLMHead(nnx.Module):
    """A dense layer, its norm, and the vocabulary (tied to the embedding or not) with a bias."""

    def __init__(self, config: RobertaConfig, *, rngs: nnx.Rngs):
        self.dtype, self.activation = config.dtype, config.head_activation
        self.dense = square_dense(config, rngs)
        self.norm = LayerNorm(config.embed_dim, config.norm_epsilon)
        self.bias = constant(0.0, (config.vocab_size,), ("vocab",))
        self.table = None if config.tie_head else untied_head(config, config.init_stddev, rngs)

    def __call__(self, hidden_BTD: jax.Array, token_embedding: Table):
        """(x, rows, bias) of the logits x rows^T + bias."""
        h_BTD = self.norm(ACTIVATIONS[self.activation](self.dense(hidden_BTD)))
        return *(self.table or token_embedding).head(h_BTD, self.dtype), self.bias[...]


def square_dense(config: RobertaConfig, rngs: nnx.Rngs) -> Dense:
    """A layer from width to width; only one side is named: a mesh axis cannot cut both."""
    width = config.embed_dim
    return Dense(
        {"embed": width}, {None: width}, stddev=config.init_stddev, dtype=config.dtype, rngs=rngs
    )
