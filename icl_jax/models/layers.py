"""The building blocks of the models: parameters with logical axes, and layers.

Shape suffixes: B batch, T time, D embed, H heads, K head_dim, F mlp, V vocab, R rank.
"""

from collections.abc import Callable
import functools
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from icl_jax.config import ConfigError, ModelConfig, TransformerConfig, head_dim, mlp_dim
from icl_jax.models import attention
from icl_jax.models.attention import Cache, Place, Reader
from icl_jax.models.inputs import parameter_dtype
from icl_jax.models.splash import choose_splash, splash_attend
from icl_jax.sharding import constrain, platform

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


def normal(rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str | None, ...], stddev: float):
    """A float32 parameter drawn from N(0, stddev^2), with the logical name of each axis."""
    return nnx.Param(rngs.params.normal(shape, jnp.float32) * stddev, logical_axes=axes)


def constant(value: float, shape: tuple[int, ...], axes: tuple[str | None, ...]):
    """A float32 parameter filled with `value`, with the logical name of each axis."""
    return nnx.Param(jnp.full(shape, value, jnp.float32), logical_axes=axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gather_for_product(kernel: jax.Array, axes: tuple[str | None, ...], dtype: str) -> jax.Array:
    """The kernel in `dtype`, gathered over fsdp after the cast; its gradient stays sharded."""
    return constrain(kernel.astype(dtype), *(None if axis == "embed" else axis for axis in axes))


def _gather_forward(kernel, axes, dtype):
    wide = jnp.zeros(0, kernel.dtype) if kernel.dtype == jnp.float64 else None
    return gather_for_product(kernel, axes, dtype), wide


def _gather_backward(axes, dtype, wide, gradient):
    return (constrain(gradient, *axes).astype(jnp.float32 if wide is None else wide.dtype),)


gather_for_product.defvjp(_gather_forward, _gather_backward)


class Dense(nnx.Module):
    """x W + b from the last axes of x, of shape `inputs`, to `outputs`."""

    def __init__(
        self,
        inputs: dict[str | None, int],  # logical axis -> size; None for an axis without a name
        outputs: dict[str | None, int],
        *,
        stddev: float = 0.02,
        dtype: str,
        rngs: nnx.Rngs,
    ):
        self.dtype = dtype
        self.num_inputs = len(inputs)
        shapes, axes = tuple(inputs.values()), tuple(inputs)
        out_shape, out_axes = tuple(outputs.values()), tuple(outputs)
        self.kernel = normal(rngs, shapes + out_shape, axes + out_axes, stddev)
        self.bias = constant(0.0, out_shape, out_axes)

    def __call__(self, x: jax.Array) -> jax.Array:
        axes = self.kernel.get_metadata("logical_axes")
        kernel = gather_for_product(self.kernel[...], tuple(axes), self.dtype)
        x, leading = x.astype(self.dtype), x.shape[: -self.num_inputs]
        if platform() == "cpu":  # the backward pass of a flat product is far faster there;
            x = x.reshape(-1, *x.shape[-self.num_inputs :])  # on a TPU it would cost relayouts
        y = jnp.tensordot(x, kernel, axes=self.num_inputs) + self.bias[...].astype(self.dtype)
        return y.reshape(*leading, *kernel.shape[self.num_inputs :])


class LayerNorm(nnx.Module):
    """Layer normalisation over the last axis, in float32."""

    def __init__(self, dim: int, epsilon: float):
        self.epsilon = epsilon
        self.scale = constant(1.0, (dim,), ("embed",))
        self.bias = constant(0.0, (dim,), ("embed",))

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + self.epsilon)
        return (normed * self.scale[...] + self.bias[...]).astype(x.dtype)


class Table(nnx.Module):
    """Rows of width D looked up by id: full (N x D), or factored (N x R, R x D)."""

    def __init__(
        self,
        size: int,
        dim: int,
        rank: int | None,
        axis: str | None,  # logical name of the rows
        stddev: float,
        *,
        zero_row: int | None = None,
        rngs: nnx.Rngs,
    ):
        self.axis = axis
        last, width = ("embed", dim) if rank is None else ("rank", rank)
        self.rows = normal(rngs, (size, width), (axis, last), stddev)
        if zero_row is not None:
            self.rows[...] = self.rows[...].at[zero_row].set(0.0)
        # The product has the standard deviation of a full table.
        self.up = None if rank is None else normal(rngs, (rank, dim), (last, "embed"), rank**-0.5)

    def __call__(self, index_BT: jax.Array) -> jax.Array:
        rows = constrain(self.rows[...], self.axis, None)  # whole rows: lookups shard badly across
        # An index outside the table gives NaN; by default, take would count from the end.
        index_BT = jnp.where(index_BT < 0, rows.shape[0], index_BT)
        x = jnp.take(rows, index_BT, axis=0, mode="fill", fill_value=jnp.nan)
        return x if self.up is None else x @ self.up[...]

    def head(self, x_BTD: jax.Array, dtype: str) -> tuple[jax.Array, jax.Array]:
        """(x, rows) for the product x rows^T of a tied head."""
        if self.up is None:
            return x_BTD.astype(dtype), self.rows[...]
        x = x_BTD.reshape(-1, x_BTD.shape[-1]).astype(dtype) @ self.up[...].astype(dtype).T
        return x.reshape(*x_BTD.shape[:-1], -1), self.rows[...]


def vocabulary_logits(
    x_BTD: jax.Array, rows_VD: jax.Array, bias_V: jax.Array | None, dtype: str
) -> jax.Array:
    """x rows^T + bias in float32 (float64 for float64), the products in `dtype`."""
    x = x_BTD.reshape(-1, x_BTD.shape[-1]).astype(dtype)
    kept = parameter_dtype(dtype)
    y = jnp.einsum("nd,vd->nv", x, rows_VD.astype(dtype), preferred_element_type=kept)
    y = constrain(y.reshape(*x_BTD.shape[:-1], -1), "batch", None, "vocab")
    return y if bias_V is None else y + bias_V


def untied_head(config: ModelConfig, stddev: float, rngs: nnx.Rngs) -> Table:
    """An output head with its own matrix."""
    return Table(config.vocab_size, config.embed_dim, None, "vocab", stddev, rngs=rngs)


class Positions(nnx.Module):
    """Adds a token's place in its group to its embedding; nothing for ALiBi and rotary."""

    def __init__(
        self, config: ModelConfig, *, offset: int = 0, zero_row: int | None = None, stddev: float,
        rngs: nnx.Rngs,
    ):  # fmt: skip
        self.kind, self.offset, self.dim = config.position, offset, config.embed_dim
        self.length = config.context_length
        if self.kind == "learned":
            self.table = Table(
                self.length + offset, self.dim, config.position_rank, "position", stddev,
                zero_row=zero_row, rngs=rngs,
            )  # fmt: skip
        elif self.kind == "linear":
            self.direction = normal(rngs, (self.dim,), ("embed",), stddev)

    def __call__(self, x_BTD: jax.Array, place: Place) -> jax.Array:
        if self.kind == "learned":
            return x_BTD + self.table(place.position_BT + self.offset)
        if self.kind == "sinusoidal":
            return x_BTD + attention.sinusoidal(place.position_BT, self.dim)
        if self.kind == "linear":  # proportional to the position, at most the direction itself
            share_BT = place.position_BT.astype(jnp.float32) / self.length
            return x_BTD + share_BT[..., None] * self.direction[...]
        return x_BTD


class Attention(nnx.Module):
    """Multi-head softmax attention with heads of any size."""

    def __init__(
        self, config: TransformerConfig, *, causal: bool, out_stddev: float, rngs: nnx.Rngs
    ):
        self.causal, self.rate, self.kind = causal, config.attention_dropout, config.attention
        self.position, self.num_heads = config.position, config.num_heads
        embed, heads = (
            {"embed": config.embed_dim},
            {"heads": self.num_heads, None: head_dim(config)},
        )
        options = {"stddev": config.init_stddev, "dtype": config.dtype, "rngs": rngs}
        self.query = Dense(embed, heads, **options)
        self.key = Dense(embed, heads, **options)
        self.value = Dense(embed, heads, **options)
        self.out = Dense(heads, embed, stddev=out_stddev, dtype=config.dtype, rngs=rngs)

    def __call__(
        self,
        x_BTD: jax.Array,
        place: Place,
        dropout_key: jax.Array | None,
        read: Reader | None = None,
    ) -> tuple[jax.Array, Any]:
        """What the heads write, and what `read` says of their softmax weights before dropout."""
        q_BHTK, k_BHTK, v_BHTK = self._project(x_BTD, place)
        if read is not None:
            if self.kind == "splash":
                raise ConfigError(
                    "attention='splash' never forms the softmax weights, so they cannot be read; "
                    "set attention='plain'"
                )
            weights_BHTT = attention.weigh(
                q_BHTK, k_BHTK, place, place, self.causal, self._slopes()
            )
            mixed_BHTK = attention.mix(weights_BHTT, v_BHTK, self.rate, dropout_key)
            return self.out(mixed_BHTK.transpose(0, 2, 1, 3)), read(weights_BHTT)
        _, _, length, head_dim = q_BHTK.shape
        alibi, dropout = self.position == "alibi", dropout_key is not None and self.rate > 0
        if choose_splash(self.kind, length, head_dim, alibi=alibi, dropout=dropout):
            mixed_BHTK = splash_attend(q_BHTK, k_BHTK, v_BHTK, place, causal=self.causal)
            return self.out(mixed_BHTK.transpose(0, 2, 1, 3)), None
        return self._mix(q_BHTK, k_BHTK, v_BHTK, place, place, dropout_key), None

    def extend(
        self, x_BTD: jax.Array, places: Place, start: int | jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """The same for T more tokens of rows that have `start`; `places` has all slots' places."""
        length = x_BTD.shape[1]
        place = places.window(start, length)
        q_BHTK, k_BHTK, v_BHTK = self._project(x_BTD, place)
        cache = cache.write(k_BHTK, v_BHTK, start)
        k_BHSK, v_BHSK = cache.read()
        if isinstance(start, int):  # later slots are empty
            stop = start + length
            k_BHSK, v_BHSK, places = k_BHSK[:, :, :stop], v_BHSK[:, :, :stop], places.part(0, stop)
        return self._mix(q_BHTK, k_BHSK, v_BHSK, place, places, None), cache

    def _project(self, x_BTD: jax.Array, place: Place) -> tuple[jax.Array, jax.Array, jax.Array]:
        q_BHTK = self._split_heads(self.query(x_BTD))
        k_BHTK = self._split_heads(self.key(x_BTD))
        v_BHTK = self._split_heads(self.value(x_BTD))
        if self.position == "rotary":
            q_BHTK = attention.rotate(q_BHTK, place.position_BT)
            k_BHTK = attention.rotate(k_BHTK, place.position_BT)
        return q_BHTK, k_BHTK, v_BHTK

    def _mix(self, q_BHTK, k_BHSK, v_BHSK, query: Place, key: Place, dropout_key) -> jax.Array:
        mixed_BHTK = attention.attend(
            q_BHTK, k_BHSK, v_BHSK, query, key, causal=self.causal, slopes_H=self._slopes(),
            dropout_rate=self.rate, dropout_key=dropout_key,
        )  # fmt: skip
        return self.out(mixed_BHTK.transpose(0, 2, 1, 3))

    def _slopes(self) -> jax.Array | None:
        return attention.alibi_slopes(self.num_heads) if self.position == "alibi" else None

    def _split_heads(self, x_BTHK: jax.Array) -> jax.Array:
        return constrain(x_BTHK.transpose(0, 2, 1, 3), "batch", "heads", None, None)


class MLP(nnx.Module):
    """The feed-forward layer, with one hidden layer or several of the same width.

    A gate multiplies the last of them by a product of the input.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        out_stddev: float,
        hidden: int = 1,
        gated: bool = False,
        rngs: nnx.Rngs,
    ):
        self.activation = config.activation
        embed, mlp = {"embed": config.embed_dim}, {"mlp": mlp_dim(config)}
        options = {"stddev": config.init_stddev, "dtype": config.dtype, "rngs": rngs}
        self.up = Dense(embed, mlp, **options)
        # Only the outputs name their axis: a mesh axis cuts one side of a matrix.
        self.middle = nnx.List(
            [Dense({None: mlp_dim(config)}, mlp, **options) for _ in range(hidden - 1)]
        )
        self.gate = Dense(embed, mlp, **options) if gated else None
        self.down = Dense(mlp, embed, stddev=out_stddev, dtype=config.dtype, rngs=rngs)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        h_BTF = x_BTD
        for layer in (self.up, *self.middle):
            h_BTF = constrain(ACTIVATIONS[self.activation](layer(h_BTF)), "batch", None, "mlp")
        if self.gate is not None:
            h_BTF = h_BTF * constrain(self.gate(x_BTD), "batch", None, "mlp")
        return self.down(h_BTF)


def split_key(key: jax.Array | None, count: int) -> list[jax.Array | None]:
    """`count` dropout keys, or `count` times None."""
    return [None] * count if key is None else list(jax.random.split(key, count))


def make_blocks(make: Callable[[nnx.Rngs], nnx.Module], config: ModelConfig, rngs: nnx.Rngs):
    """One block per layer, or all stacked in one; the same seed gives the same weights."""
    if config.dtype == "float64" and not jax.config.jax_enable_x64:
        raise ValueError("dtype float64 needs `with jax.enable_x64(True):` around the network")
    keys = jax.random.split(rngs.params(), config.num_layers)
    if config.scan_layers:
        return nnx.vmap(lambda key: make(nnx.Rngs(params=key)))(keys)
    return nnx.List([make(nnx.Rngs(params=key)) for key in keys])


def run_blocks(
    blocks,
    config: ModelConfig,
    x_BTD: jax.Array,
    place: Place,
    dropout_key: jax.Array | None = None,
    read: Reader | None = None,
) -> tuple[jax.Array, Any]:
    """x through all blocks, each `block(x, place, key, read)`; scan and remat as configured.

    Second: what was read of each layer's attention, stacked; None without a reader.
    """
    keys = None if dropout_key is None else jax.random.split(dropout_key, config.num_layers)

    def apply(graphdef, params, x_BTD, key):
        x_BTD, reading = nnx.merge(graphdef, params)(x_BTD, place, key, read)
        return constrain(x_BTD, "batch", None, None), reading

    if config.remat == "full":
        apply = jax.checkpoint(apply, static_argnums=0)
    elif config.remat == "dots":
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        apply = jax.checkpoint(apply, static_argnums=0, policy=policy)

    if config.scan_layers:
        graphdef, params = nnx.split(blocks)
        return jax.lax.scan(lambda x, layer: apply(graphdef, layer[0], x, layer[1]), x_BTD,
                            (params, keys))  # fmt: skip
    readings = []
    for n, block in enumerate(blocks):
        x_BTD, reading = apply(*nnx.split(block), x_BTD, None if keys is None else keys[n])
        readings.append(reading)
    return x_BTD, None if read is None else jax.tree.map(lambda *each: jnp.stack(each), *readings)


def first_block(blocks, config: ModelConfig) -> nnx.Module:
    """The block of the first layer."""
    if not config.scan_layers:
        return blocks[0]
    graphdef, params = nnx.split(blocks)
    return nnx.merge(graphdef, jax.tree.map(lambda stacked: stacked[0], params))


def make_cache(config: TransformerConfig, batch: int, slots: int) -> Cache | list[Cache]:
    """Empty slots: one cache per layer, or all stacked in one, as the blocks are."""
    shape, axes = (batch, config.num_heads, slots, head_dim(config)), ("batch", "heads", None, None)
    if config.scan_layers:
        shape, axes = (config.num_layers, *shape), ("layers", *axes)
    empty = lambda: constrain(jnp.zeros(shape, config.dtype), *axes)  # noqa: E731
    if config.scan_layers:
        return Cache(empty(), empty())
    return [Cache(empty(), empty()) for _ in range(config.num_layers)]


def extend_blocks(blocks, config: TransformerConfig, x_BTD, places: Place, start, cache):
    """x of more tokens through all blocks, each `block.extend(x, places, start, cache)`."""

    def extend(block, x_BTD, cache):
        x_BTD, cache = block.extend(x_BTD, places, start, cache)
        return constrain(x_BTD, "batch", None, None), cache

    if not config.scan_layers:
        caches = []
        for block, layer in zip(blocks, cache, strict=True):
            x_BTD, layer = extend(block, x_BTD, layer)
            caches.append(layer)
        return x_BTD, caches
    graphdef, params = nnx.split(blocks)
    # The caches are in the scan's carry, so that only the new slots are written.
    (x_BTD, cache), _ = jax.lax.scan(
        lambda carry, layer: (
            extend(nnx.merge(graphdef, layer[0]), carry[0], carry[1]._replace(layer=layer[1])),
            None,
        ),
        (x_BTD, cache._replace(layer=jnp.int32(0))),
        (params, jnp.arange(config.num_layers, dtype=jnp.int32)),
    )
    return x_BTD, cache._replace(layer=None)
