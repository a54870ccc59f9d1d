"""The one table from logical axes to mesh axes."""

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from icl_jax.config import ConfigError, MeshConfig
from icl_jax.sharding import (
    MESH_AXES,
    check_mesh,
    make_host_mesh,
    make_mesh,
    own_rows,
    put_rows,
    spec,
)

MESH = AbstractMesh((2, 3, 5), MESH_AXES)


def test_axes_lie_where_the_table_says():
    assert spec(("embed", "mlp"), (6, 10), MESH) == P("fsdp", "tensor")
    assert spec(("batch", None, "heads"), (6, 7, 5), MESH) == P(("data", "fsdp"), None, "tensor")


def test_an_axis_that_the_devices_do_not_divide_stays_whole():
    assert spec(("vocab", "embed"), (7, 6), MESH) == P(None, "fsdp")
    assert spec(("batch", None), (4, 5), MESH) == P(None, None)


def test_two_axes_on_one_mesh_axis_are_refused_by_name():
    with pytest.raises(ValueError, match=r"'heads' and 'mlp'.*'tensor'"):
        spec(("heads", "mlp"), (5, 5), MESH)


def test_axes_must_fit_the_shape():
    with pytest.raises(ValueError, match="do not fit"):
        spec(("embed",), (3, 6), MESH)


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (MeshConfig(), (8, 1, 1)),
        (MeshConfig(data=1, fsdp=-1, tensor=2), (1, 4, 2)),
        (MeshConfig(data=2, fsdp=2, tensor=2), (2, 2, 2)),
    ],
)
def test_minus_one_takes_all_the_devices_that_are_left(config, shape):
    mesh = make_mesh(config)
    assert mesh.devices.shape == shape and mesh.axis_names == MESH_AXES
    assert set(mesh.devices.flat) == set(jax.devices())


@pytest.mark.parametrize(
    "of_all, of_host",
    [((-1, 1, 1), (4, 1, 1)), ((8, 1, 1), (4, 1, 1)), ((1, 8, 1), (1, 4, 1)),
     ((2, 2, 2), (1, 2, 2)), ((1, -1, 2), (1, 2, 2)), ((4, 2, 1), (2, 2, 1))],
)  # fmt: skip
def test_a_host_cuts_its_own_devices_as_far_as_the_mesh_of_all_says(monkeypatch, of_all, of_host):
    own = jax.devices()[4:]
    monkeypatch.setattr(jax, "local_devices", lambda: own)
    mesh = make_host_mesh(MeshConfig(*of_all))
    assert tuple(mesh.shape.values()) == of_host
    assert set(mesh.devices.flat) == set(own)


def test_a_product_other_than_the_device_count_is_refused():
    with pytest.raises(ConfigError, match="needs 6 devices, but there are 8"):
        make_mesh(MeshConfig(data=-1, fsdp=3, tensor=1))


def test_a_mesh_with_foreign_axes_is_refused():
    with pytest.raises(ConfigError, match="'model'"):
        check_mesh(Mesh(np.array(jax.devices()), ("model",)))


# The order in which a mesh has the 8 devices, and the first 4 of which are one host's.
ORDER = [0, 4, 1, 5, 2, 6, 3, 7]


def like_on(sizes, rows=8) -> jax.ShapeDtypeStruct:
    mesh = Mesh(np.array(jax.devices())[ORDER].reshape(sizes), MESH_AXES)
    sharding = NamedSharding(mesh, spec(("batch", None), (rows, 3), mesh))
    return jax.ShapeDtypeStruct((rows, 3), np.int32, sharding=sharding)


@pytest.mark.parametrize(
    "sizes, first, second",
    [
        ((4, 2, 1), [0, 2, 4, 6], [1, 3, 5, 7]),  # a mesh that goes from host to host
        ((2, 2, 2), range(8), range(8)),  # tensor over hosts: both need all rows
        ((1, 1, 8), range(8), range(8)),
    ],
)
def test_each_host_supplies_the_rows_that_its_devices_hold(sizes, first, second):
    like, hosts = like_on(sizes), (range(4), range(4, 8))
    found = [own_rows(like, lambda device, ids=ids: device.id in ids) for ids in hosts]
    assert [rows.tolist() for rows in found] == [list(first), list(second)]


def test_rows_that_do_not_divide_over_the_hosts_are_needed_by_all():
    rows = own_rows(like_on((1, 1, 8), rows=5), lambda device: device.id < 4)
    assert rows.tolist() == list(range(5))


def test_rows_reach_the_devices_of_a_mesh_in_any_order():
    like, x = like_on((2, 2, 2)), np.arange(24, dtype=np.int32).reshape(8, 3)
    made = put_rows(x, like)
    assert made.sharding == like.sharding
    np.testing.assert_array_equal(made, x)
