"""LSTM: a recurrent network with the interface of the others; each group starts from zero.

As PyTorch's: i, f, g, o = x W + h U + b; c' = sigmoid(f) c + sigmoid(i) tanh(g);
h' = sigmoid(o) tanh(c'). Shape suffixes: B batch, T time, D embed, N hidden, G the 4 gates.
"""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp

from icl_jax.config import LSTMConfig
from icl_jax.config.tree import validate
from icl_jax.models.dropout import dropout
from icl_jax.models.inputs import check_tokens
from icl_jax.models.layers import Table, gather_for_product, split_key, vocabulary_logits
from icl_jax.sharding import constrain, use_mesh_of

UNROLL = 4  # steps of time in one turn of the loop: 4 takes 0.7 of the time of 1 on a CPU


class LSTM(nnx.Module):
    """`model(tokens, group)` gives logits; a group is a run of equal ids in a row."""

    def __init__(self, config: LSTMConfig, *, rngs: nnx.Rngs):
        validate(config)
        self.config = dataclasses.replace(config)
        self.token_embedding = Table(
            config.vocab_size, config.embed_dim, None, "vocab", 1.0, rngs=rngs
        )
        widths = [config.embed_dim, *[config.hidden_dim] * (config.num_layers - 1)]
        self.layers = nnx.List([Layer(config, width, rngs=rngs) for width in widths])
        self.head = Table(
            config.vocab_size, config.hidden_dim, None, "vocab", config.hidden_dim**-0.5, rngs=rngs
        )

    def __call__(self, tokens, group=None, *, dropout_key: jax.Array | None = None) -> jax.Array:
        """Float32 logits (batch, time, vocabulary). `group` (batch, time): 0 is padding."""
        with use_mesh_of(self):
            return self._forward(*self._check(tokens, group), dropout_key)

    def hidden(self, tokens, group=None, *, dropout_key: jax.Array | None = None) -> jax.Array:
        """The states h of the last layer (batch, time, hidden)."""
        with use_mesh_of(self):
            return self._encode(*self._check(tokens, group), dropout_key)

    def logits(self, hidden_BTN: jax.Array) -> jax.Array:
        """The output head: float32 logits of hidden states."""
        return vocabulary_logits(*self.vocabulary(hidden_BTN), self.config.dtype)

    def vocabulary(self, hidden_BTN: jax.Array) -> tuple[jax.Array, jax.Array, None]:
        """(x, rows, bias) with `logits` = x rows^T + bias; for `losses.vocabulary_loss`."""
        return *self.head.head(hidden_BTN, self.config.dtype), None

    def _check(self, tokens, group):
        return check_tokens(tokens, group, self.config.vocab_size, None)

    @jax.jit
    def _forward(self, tokens_BT, group_BT, dropout_key) -> jax.Array:
        return self.logits(self._encode(tokens_BT, group_BT, dropout_key))

    @jax.jit
    def _encode(self, tokens_BT, group_BT, dropout_key) -> jax.Array:
        x_BTD = constrain(self.token_embedding(tokens_BT), "batch", None, None)
        new_BT = starts_group(tokens_BT, group_BT)
        for layer, key in zip(self.layers, split_key(dropout_key, len(self.layers)), strict=True):
            x_BTD = dropout(layer(x_BTD, new_BT), self.config.residual_dropout, key)
        return x_BTD


def starts_group(tokens_BT: jax.Array, group_BT: jax.Array | None) -> jax.Array:
    """True where a group begins; a padding token is a group of its own."""
    first_T = jnp.arange(tokens_BT.shape[1]) == 0
    if group_BT is None:
        return jnp.broadcast_to(first_T, tokens_BT.shape)
    return first_T | (group_BT != jnp.roll(group_BT, 1, axis=1)) | (group_BT == 0)


class Layer(nnx.Module):
    """One recurrent layer over (batch, time, inputs)."""

    def __init__(self, config: LSTMConfig, inputs: int, *, rngs: nnx.Rngs):
        self.dtype, size = config.dtype, config.hidden_dim
        # PyTorch draws every weight and bias from U(-1, 1) / sqrt(hidden).
        draw = lambda *shape: rngs.params.uniform(  # noqa: E731
            shape, jnp.float32, -(size**-0.5), size**-0.5
        )
        self.kernel = nnx.Param(draw(inputs, 4, size), logical_axes=("embed", None, None))
        self.recurrent = nnx.Param(draw(size, 4, size), logical_axes=("embed", None, None))
        self.bias = nnx.Param(draw(4, size), logical_axes=(None, None))

    def __call__(self, x_BTD: jax.Array, new_BT: jax.Array) -> jax.Array:
        """The states h; where `new_BT` is True, the state before is zero."""
        batch, time, _ = x_BTD.shape
        size = self.bias.shape[-1]
        kernel, recurrent = (
            gather_for_product(w[...], ("embed", None, None), self.dtype).reshape(-1, 4 * size)
            for w in (self.kernel, self.recurrent)
        )
        flat = x_BTD.reshape(batch * time, -1).astype(self.dtype) @ kernel
        inputs_TBG = flat.reshape(batch, time, -1).swapaxes(0, 1).astype(jnp.float32)
        inputs_TBG += self.bias[...].reshape(-1)

        def advance(state, now):
            inputs_BG, new_B1 = now
            h_BN, c_BN = (jnp.where(new_B1, 0.0, part) for part in state)
            gates_BG = inputs_BG + (h_BN.astype(self.dtype) @ recurrent).astype(jnp.float32)
            i_BN, f_BN, g_BN, o_BN = jnp.split(gates_BG, 4, axis=-1)
            c_BN = jax.nn.sigmoid(f_BN) * c_BN + jax.nn.sigmoid(i_BN) * jnp.tanh(g_BN)
            h_BN = jax.nn.sigmoid(o_BN) * jnp.tanh(c_BN)
            return (h_BN, c_BN), h_BN

        zeros_BN = constrain(jnp.zeros((batch, size), jnp.float32), "batch", None)
        steps = inputs_TBG, new_BT.T[..., None]
        _, h_TBN = jax.lax.scan(advance, (zeros_BN, zeros_BN), steps, unroll=UNROLL)
        return constrain(h_TBN.swapaxes(0, 1).astype(self.dtype), "batch", None, None)
