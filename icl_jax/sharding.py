"""The device mesh, and the one table from logical axes to mesh axes.

Models only name logical axes; which devices hold what is decided here and nowhere else.
"""

from collections.abc import Callable, Sequence
import contextlib
import math

from flax import nnx
import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from icl_jax.config import ConfigError, MeshConfig

MESH_AXES = ("data", "fsdp", "tensor")

LOGICAL_TO_MESH: dict[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),  # activations only
    "embed": "fsdp",
    "heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
    "rank": None,  # of a factored embedding
    "position": None,
    "layers": None,
}


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh data x fsdp x tensor over all devices (or those given)."""
    devices = jax.devices() if devices is None else list(devices)
    sizes = [config.data, config.fsdp, config.tensor]
    if -1 in sizes:
        rest = int(np.prod([size for size in sizes if size != -1]))
        sizes[sizes.index(-1)] = max(1, len(devices) // rest)
    if int(np.prod(sizes)) != len(devices):
        wanted = " x ".join(f"{axis} {size}" for axis, size in zip(MESH_AXES, sizes, strict=True))
        raise ConfigError(
            f"mesh {wanted} needs {int(np.prod(sizes))} devices, but there are {len(devices)}; "
            "change mesh.data, mesh.fsdp or mesh.tensor so that their product is the device count"
        )
    # jax.make_mesh places neighbours next to each other on the pod's network; its default axes
    # would be Explicit.
    return jax.make_mesh(sizes, MESH_AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def make_host_mesh(config: MeshConfig) -> Mesh:
    """The mesh over the devices of this host alone, where it works without the others of its job.

    Alone in its job it has all devices, as the config says; else each axis is as large as it can be
    on one host, tensor first, and data takes what is left.
    """
    devices = jax.local_devices()
    if len(devices) == jax.device_count():
        return make_mesh(config, devices)
    sizes, left = {}, len(devices)
    for axis in reversed(MESH_AXES):
        size = getattr(config, axis)
        sizes[axis] = -1 if size == -1 else math.gcd(size, left)
        left //= abs(sizes[axis])
    if -1 not in sizes.values():
        sizes["data"] = -1
    return make_mesh(MeshConfig(**sizes), devices)


def spec(logical_axes: Sequence[str | None], shape: Sequence[int], mesh) -> PartitionSpec:
    """The placement of an array with these axes; one that the devices don't divide stays whole."""
    if len(logical_axes) != len(shape):
        raise ValueError(f"logical axes {logical_axes} do not fit the shape {tuple(shape)}")
    entries, taken = [], {}
    for logical, length in zip(logical_axes, shape, strict=True):
        wanted = LOGICAL_TO_MESH[logical] if logical else None
        wanted = (wanted,) if isinstance(wanted, str) else wanted or ()
        wanted = tuple(axis for axis in wanted if mesh.shape.get(axis, 1) > 1)
        for axis in wanted:
            if axis in taken:
                raise ValueError(
                    f"logical axes '{taken[axis]}' and '{logical}' of {tuple(logical_axes)} "
                    f"are both on mesh axis '{axis}'; change LOGICAL_TO_MESH"
                )
            taken[axis] = logical
        parts = int(np.prod([mesh.shape[axis] for axis in wanted]))
        if length % parts:
            wanted = ()
        entries.append(wanted[0] if len(wanted) == 1 else wanted or None)
    return PartitionSpec(*entries)


def own_rows(like: jax.ShapeDtypeStruct, owns: Callable | None = None) -> np.ndarray:
    """The rows (places in axis 0) that this process must supply, in ascending order.

    They are read from the sharding, because a mesh may list its devices in any order (on a real
    slice not that of the hosts), and several processes may need the same rows. `owns` says which
    devices belong to this process.
    """
    owns = owns or (lambda device: device.process_index == jax.process_index())
    every, places = np.arange(like.shape[0]), like.sharding.devices_indices_map(like.shape)
    held = [every[index[0]] for device, index in places.items() if owns(device)]
    return np.unique(np.concatenate(held))


def put_rows(local: np.ndarray, like: jax.ShapeDtypeStruct) -> jax.Array:
    """The array of all processes; each supplies its `own_rows`."""
    rows, every = own_rows(like), np.arange(like.shape[0])

    def part(index: tuple[slice, ...]) -> np.ndarray:
        return local[(np.searchsorted(rows, every[index[0]]), *index[1:])]

    return jax.make_array_from_callback(like.shape, like.sharding, part)


def constrain(x: jax.Array, *logical_axes: str | None) -> jax.Array:
    """Pins an activation to the mesh that is set or in use; does nothing without one.

    Inside a `shard_map` over all axes every array is on one device already.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or all(kind == AxisType.Manual for kind in mesh.axis_types):
        return x
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise ConfigError(
            f"the mesh that is set has axes of types {mesh.axis_types}, expected Auto; "
            "make it with icl_jax.sharding.make_mesh"
        )
    return jax.lax.with_sharding_constraint(x, spec(logical_axes, x.shape, mesh))


def platform() -> str:
    """The platform that is traced for: that of the mesh in use, or of the default devices."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def use_mesh_of(model: nnx.Module):
    """A context in which `constrain` uses the model's own mesh, unless one is set."""
    array = jax.tree.leaves(nnx.state(model))[0]
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        return contextlib.nullcontext()
    if not isinstance(array.sharding, NamedSharding) or not jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(array.sharding.mesh.abstract_mesh)


def variable_axes(variable: nnx.Variable) -> tuple[str | None, ...]:
    """The logical axes of a parameter; one stacked over layers has 'layers' in front."""
    axes = variable.get_metadata("logical_axes")
    return ("layers",) * (len(variable.shape) - len(axes)) + tuple(axes)


def variable_sharding(variable: nnx.Variable, mesh: Mesh) -> NamedSharding:
    """Where a parameter is placed."""
    return NamedSharding(mesh, spec(variable_axes(variable), variable.shape, mesh))


def state_shardings(state: nnx.State, mesh: Mesh) -> nnx.State:
    """The sharding of every parameter in `state` (arrays or shapes), as a tree of the same form."""
    return jax.tree.map(
        lambda variable: variable_sharding(variable, mesh),
        state,
        is_leaf=lambda x: isinstance(x, nnx.Variable),
    )


def with_auto_axes(mesh: Mesh) -> Mesh:
    """`mesh` with Auto axes, which the compiler shards over, whatever types it had."""
    check_mesh(mesh)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def check_mesh(mesh) -> None:
    """Stops on a mesh with axes that are not in the table."""
    unknown = [axis for axis in mesh.axis_names if axis not in MESH_AXES]
    if unknown:
        raise ConfigError(
            f"mesh axes must be among {MESH_AXES}, got {mesh.axis_names}; "
            "make it with icl_jax.sharding.make_mesh"
        )
