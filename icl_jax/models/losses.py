"""Cross-entropy over the vocabulary in chunks of time, so that the logits never exist all at once.

Shape suffixes: B batch, T time, C time of one chunk, D embed, V vocab.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from icl_jax.sharding import spec

CHUNK_BYTES = 256 * 2**20  # of one chunk's float32 logits on one device
DENSE_CHUNKS, SPARSE_CHUNKS = 2, 4  # a row is cut into at least this many


@functools.partial(jax.jit, static_argnames=("dtype", "sparse"))
def vocabulary_loss(
    x_BTD: jax.Array,
    rows_VD: jax.Array,
    bias_V: jax.Array | None,
    targets_BT: jax.Array,
    weights_BT: jax.Array,  # float32; 0 skips a token; no gradient flows into them
    *,
    dtype: str,
    sparse: bool = False,
) -> jax.Array:
    """The sum of weight * cross-entropy of softmax(x rows^T + bias), in float32.

    Matrix products take their inputs in `dtype`. `sparse` skips most tokens of weight 0, which pays
    if most tokens have none, as with masked tokens.
    """
    operands = x_BTD, rows_VD, bias_V, targets_BT, weights_BT.astype(jnp.float32)
    mesh = jax.sharding.get_abstract_mesh()
    axes = () if mesh.empty else spec(("batch",), x_BTD.shape[:1], mesh)[0] or ()
    axes = (axes,) if isinstance(axes, str) else axes
    vocab_parts = 1 if mesh.empty else mesh.shape.get("tensor", 1)
    batch = x_BTD.shape[0] // math.prod(mesh.shape[axis] for axis in axes)
    columns = CHUNK_BYTES // (4 * batch * rows_VD.shape[0] // vocab_parts)
    length, parts = x_BTD.shape[1], SPARSE_CHUNKS if sparse else DENSE_CHUNKS
    columns = max(1, min(columns, -(-length // parts)))
    if not axes:
        return _chunked_loss(*operands, dtype, sparse, columns, axes)

    # Each device sums the gradient of the rows over its own tokens; after all chunks it is reduced
    # once, by the transposes of `all_gather` and of replicated inputs. "tensor" stays automatic.
    cut = spec((None, "embed"), rows_VD.shape, mesh)

    def local_loss(x_BTD, rows_VD, *rest):
        if cut[1] is not None:
            rows_VD = jax.lax.all_gather(rows_VD, cut[1], axis=1, tiled=True)
        loss = _chunked_loss(x_BTD, rows_VD, *rest, dtype, sparse, columns, axes)
        return jax.lax.psum(loss, axes)

    whole, by_batch = PartitionSpec(), PartitionSpec(axes)
    return jax.shard_map(
        local_loss,
        in_specs=(by_batch, cut, whole, by_batch, by_batch),
        out_specs=whole,
        axis_names=set(axes),
        check_vma=False,
    )(*operands)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7, 8))
def _chunked_loss(x_BTD, rows_VD, bias_V, targets_BT, weights_BT, dtype, sparse, columns, axes):
    operands = x_BTD, rows_VD, bias_V, targets_BT, weights_BT
    return _over_chunks(*operands, dtype, sparse, columns, axes, with_gradients=False)[0]


def _forward(*operands):
    # Gradients are computed here, from the same logits, so the backward pass recomputes none.
    return _over_chunks(*operands, with_gradients=True)


def _backward(dtype, sparse, columns, axes, gradients, cotangent):
    scaled = jax.tree.map(lambda g: (g * cotangent).astype(g.dtype), gradients)
    return *scaled, None, None


_chunked_loss.defvjp(_forward, _backward)


def _over_chunks(
    x_BTD, rows_VD, bias_V, targets_BT, weights_BT, dtype, sparse, columns, axes, *, with_gradients
):
    """The loss, and its gradients (x, rows, bias) or None."""
    length, size = x_BTD.shape[1], rows_VD.shape[0]
    num_chunks, order_BT = -(-length // columns), None
    tokens = x_BTD, targets_BT, weights_BT
    if sparse:  # weighted tokens first, in as many chunks as the fullest row of any device needs
        order_BT = jnp.argsort(weights_BT == 0, axis=1, stable=True)
        tokens = tuple(_permute(a, order_BT) for a in tokens)
        fullest = jnp.max(jnp.sum(weights_BT != 0, axis=1, dtype=jnp.int32))
        fullest = jax.lax.pmax(fullest, axes) if axes else fullest
        needed = (fullest + columns - 1) // columns
    else:
        needed = num_chunks
    padding = num_chunks * columns - length
    tokens = [jnp.pad(a, ((0, 0), (0, padding)) + ((0, 0),) * (a.ndim - 2)) for a in tokens]
    rows = rows_VD.astype(dtype)

    def add_chunk(n, carry):
        loss, gradients = carry
        cut = [jax.lax.dynamic_slice_in_dim(a, n * columns, columns, axis=1) for a in tokens]
        x_ND = cut[0].reshape(-1, x_BTD.shape[-1]).astype(dtype)
        target_N1, weight_N1 = cut[1].reshape(-1, 1), cut[2].reshape(-1, 1)
        logits_NV = jnp.einsum("nd,vd->nv", x_ND, rows, preferred_element_type=jnp.float32)
        if bias_V is not None:
            logits_NV += bias_V.astype(jnp.float32)
        hit_NV = target_N1 == jnp.arange(size, dtype=target_N1.dtype)
        top_N1 = jnp.max(logits_NV, axis=1, keepdims=True)
        exp_NV = jnp.exp(logits_NV - top_N1)
        sum_N1 = jnp.sum(exp_NV, axis=1, keepdims=True)
        hit_N1 = jnp.sum(jnp.where(hit_NV, logits_NV, 0.0), axis=1, keepdims=True)
        known = (target_N1 >= 0) & (target_N1 < size)  # any other id with weight gives NaN
        loss_N1 = jnp.where(known, jnp.log(sum_N1) + top_N1 - hit_N1, jnp.nan)
        loss += jnp.sum(jnp.where(weight_N1 == 0, 0.0, weight_N1 * loss_N1))
        if not with_gradients:
            return loss, None
        # d loss / d logits = weight * (softmax - one-hot)
        slope_NV = exp_NV * (weight_N1 / sum_N1) - jnp.where(hit_NV, weight_N1, 0.0)
        dx, drows, dbias = gradients
        slope = slope_NV.astype(dtype)
        dx_ND = jnp.einsum("nv,vd->nd", slope, rows, preferred_element_type=jnp.float32)
        dx_BCD = dx_ND.reshape(cut[0].shape).astype(dx.dtype)
        dx = jax.lax.dynamic_update_slice_in_dim(dx, dx_BCD, n * columns, axis=1)
        drows += jnp.einsum("nv,nd->vd", slope, x_ND, preferred_element_type=jnp.float32)
        dbias = None if dbias is None else dbias + jnp.sum(slope_NV, axis=0)
        return loss, (dx, drows, dbias)

    gradients = None
    if with_gradients:
        dbias = None if bias_V is None else jnp.zeros(bias_V.shape, jnp.float32)
        gradients = jnp.zeros_like(tokens[0]), jnp.zeros(rows_VD.shape, jnp.float32), dbias
    loss, gradients = jax.lax.fori_loop(0, needed, add_chunk, (jnp.float32(0.0), gradients))
    if with_gradients:
        dx, *rest = gradients
        dx = dx[:, :length]
        gradients = dx if order_BT is None else _permute(dx, jnp.argsort(order_BT, axis=1)), *rest
    return loss, gradients


def _permute(x: jax.Array, order_BT: jax.Array) -> jax.Array:
    """Each row of x (batch, time, ...) in its own order."""
    order = order_BT.reshape(order_BT.shape + (1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, order, axis=1)
