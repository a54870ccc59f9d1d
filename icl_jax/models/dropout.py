"""Dropout; each device draws the bits for its own part of an array."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from icl_jax.sharding import spec

STREAM = ("batch", None, None)  # logical axes of the residual stream


def dropout(
    x: jax.Array, rate: float, key: jax.Array | None, logical_axes: tuple[str | None, ...] = STREAM
) -> jax.Array:
    """Zeroes a share `rate` of x and scales up the rest; without a key, returns x unchanged."""
    if key is None or rate == 0.0:
        return x
    return jnp.where(_keep(key, 1.0 - rate, x.shape, logical_axes), x / (1.0 - rate), 0)


def _keep(
    key: jax.Array, share: float, shape: tuple[int, ...], logical_axes: tuple[str | None, ...]
) -> jax.Array:
    """True for a random `share` of the entries.

    With threefry, an entry depends only on its place in the whole array, and the compiler lets each
    device compute its own part. Hardware bits (rbg) would be drawn for the whole array on every
    device, so each device draws its own part with a key of its own: the bits depend on the mesh.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if jax.random.key_impl(key) != "rbg" or mesh.empty:
        return jax.random.bernoulli(key, share, shape)
    cut = NamedSharding(mesh, spec(logical_axes, shape, mesh))
    axes = tuple(axis for entry in cut.spec for axis in np.ravel(entry) if axis)

    def draw(key: jax.Array) -> jax.Array:
        own = jax.random.fold_in(key, jax.lax.axis_index(axes)) if axes else key
        return jax.random.bernoulli(own, share, cut.shard_shape(shape))

    return jax.shard_map(draw, in_specs=PartitionSpec(), out_specs=cut.spec, check_vma=False)(key)
