"""The network that the theory analyses: linear self-attention and nothing else.

y_{l+1}^i = sum_h W_O^h sum_j <W_Q^h y_l^i, W_K^h y_l^j> W_V^h y_l^j  (Levine et al. 2022, eq. 1;
Wies et al. 2021, eq. 5): no softmax, feed-forward layer, norm or bias; a residual if configured.
Shape suffixes: B batch, T time, D embed, H heads, K head_dim, V vocab, M raw inputs, C input_dim.
"""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp

from icl_jax.config import LinearAttentionConfig, head_dim
from icl_jax.config.tree import validate
from icl_jax.models.attention import Place, locate, visible
from icl_jax.models.inputs import (
    check_group,
    check_raw,
    check_sentences,
    check_tokens,
    position_limit,
)
from icl_jax.models.layers import (
    Positions,
    Table,
    make_blocks,
    normal,
    run_blocks,
    untied_head,
    vocabulary_logits,
)
from icl_jax.sharding import constrain, use_mesh_of


class LinearAttention(nnx.Module):
    """`model(tokens, group)` gives logits; a convolution takes floats (batch, M, input_dim)."""

    def __init__(self, config: LinearAttentionConfig, *, rngs: nnx.Rngs):
        validate(config)
        if config.dtype == "float64" and not jax.config.jax_enable_x64:
            raise ValueError("dtype float64 needs `with jax.enable_x64(True):` around the network")
        self.config = dataclasses.replace(config)
        if config.embedding == "vocabulary":
            self.embedding = Table(
                config.vocab_size, config.embed_dim, config.embedding_rank, "vocab", 1.0, rngs=rngs
            )
        else:
            self.embedding = Convolution(config, rngs=rngs)
        self.positions = Positions(config, stddev=1.0, rngs=rngs)
        self.blocks = make_blocks(lambda rngs: Block(config, rngs=rngs), config, rngs)
        self.head = None if config.tie_head else untied_head(config, config.embed_dim**-0.5, rngs)

    def __call__(self, tokens, group=None, *, sentence=None, association=None) -> jax.Array:
        """Logits (batch, time, vocabulary): the vocabulary matrix times the last layer."""
        with use_mesh_of(self):
            return self._forward(*self._check(tokens, group, sentence, association))

    def hidden(self, tokens, group=None, *, sentence=None, association=None) -> jax.Array:
        """The last layer (batch, time, embed).

        Sentence association (eq. 8): token embeddings are multiplied by `association[0]` = a where
        `sentence` (batch, time) is 1, by `association[1]` = b where it is 2, by nothing where 0.
        """
        with use_mesh_of(self):
            return self._encode(*self._check(tokens, group, sentence, association))

    def logits(self, hidden_BTD: jax.Array) -> jax.Array:
        """Logits of the last layer: float32, or float64 in a float64 network."""
        return vocabulary_logits(*self.vocabulary(hidden_BTD), self.config.dtype)

    def vocabulary(self, hidden_BTD: jax.Array) -> tuple[jax.Array, jax.Array, None]:
        """(x, rows, bias) with `logits` = x rows^T + bias; for `losses.vocabulary_loss`."""
        return *(self.head or self.embedding).head(hidden_BTD, self.config.dtype), None

    def _check(self, inputs, group, sentence, association):
        config = self.config
        if config.embedding == "vocabulary":
            inputs, group = check_tokens(inputs, group, config.vocab_size, position_limit(config))
            shape = inputs.shape
        else:
            inputs, shape = check_raw(inputs, config.kernel_size, config.input_dim, config.dtype)
            group = check_group(group, shape, position_limit(config))
        if sentence is None and association is None:
            return inputs, group, None, None
        shape = (*shape, config.embed_dim)
        return inputs, group, *check_sentences(sentence, association, shape, config.dtype)

    @jax.jit
    def _forward(self, inputs, group_BT, sentence_BT, association_2D) -> jax.Array:
        return self.logits(self._encode(inputs, group_BT, sentence_BT, association_2D))

    @jax.jit
    def _encode(self, inputs, group_BT, sentence_BT, association_2D) -> jax.Array:
        x_BTD = self.embedding(inputs)
        if sentence_BT is not None:
            neither_1D = jnp.ones_like(association_2D[:1])
            x_BTD = x_BTD * jnp.concatenate([neither_1D, association_2D])[sentence_BT]
        place = locate(x_BTD.shape[1], group_BT)
        x_BTD = self.positions(x_BTD, place).astype(self.config.dtype)
        x_BTD = constrain(x_BTD, "batch", None, None)
        return run_blocks(self.blocks, self.config, x_BTD, place)[0]


class Convolution(nnx.Module):
    """Wies et al. 2021, eq. 2: a position sums `kernel_size` raw vectors times a matrix each."""

    def __init__(self, config: LinearAttentionConfig, *, rngs: nnx.Rngs):
        width, rank = config.embed_dim, config.embedding_rank
        self.window = (config.kernel_size, config.input_dim)
        fan_in = config.kernel_size * config.input_dim
        last, size = ("embed", width) if rank is None else ("rank", rank)
        self.kernel = normal(rngs, (*self.window, size), (None, None, last), fan_in**-0.5)
        self.up = (
            None if rank is None else normal(rngs, (rank, width), ("rank", "embed"), rank**-0.5)
        )

    def __call__(self, raw_BMC: jax.Array) -> jax.Array:
        fan_in = self.window[0] * self.window[1]
        x_BTD = raw_BMC.reshape(raw_BMC.shape[0], -1, fan_in) @ self.kernel[...].reshape(fan_in, -1)
        return x_BTD if self.up is None else x_BTD @ self.up[...]


class Block(nnx.Module):
    """One layer of linear self-attention with H heads of free size."""

    def __init__(self, config: LinearAttentionConfig, *, rngs: nnx.Rngs):
        self.causal, self.residual = config.causal, config.residual
        width, heads, size = config.embed_dim, config.num_heads, head_dim(config)
        shape, axes = (width, heads, size), ("embed", "heads", None)
        # Independent unit inputs give unit scores and, over a full context, a unit output. A layer
        # is cubic, so depth amplifies any deviation from that to the power 3^L.
        self.query = normal(rngs, shape, axes, width**-0.5 * size**-0.25)
        self.key = normal(rngs, shape, axes, width**-0.5 * size**-0.25)
        self.value = normal(rngs, shape, axes, width**-0.5)
        out_stddev = (heads * size * config.context_length) ** -0.5
        self.out = normal(rngs, (heads, size, width), ("heads", None, "embed"), out_stddev)

    def __call__(self, x_BTD: jax.Array, place: Place, _key: None = None, _read: None = None):
        """The output, and nothing that was read: its scores are no softmax weights."""

        def project(kernel: nnx.Param) -> jax.Array:
            y_BHTK = jnp.einsum("btd,dhk->bhtk", x_BTD, kernel[...].astype(x_BTD.dtype))
            return constrain(y_BHTK, "batch", "heads", None, None)

        q_BHTK, k_BHTK, v_BHTK = project(self.query), project(self.key), project(self.value)
        scores_BHTS = jnp.einsum("bhtk,bhsk->bhts", q_BHTK, k_BHTK)
        mask_BTS = visible(place, place, self.causal)
        if mask_BTS is not None:
            scores_BHTS = jnp.where(mask_BTS[:, None], scores_BHTS, 0)
        mixed_BHTK = jnp.einsum("bhts,bhsk->bhtk", scores_BHTS, v_BHTK)
        y_BTD = jnp.einsum("bhtk,hkd->btd", mixed_BHTK, self.out[...].astype(x_BTD.dtype))
        return (x_BTD + y_BTD if self.residual else y_BTD), None
