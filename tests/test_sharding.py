"""The one table from logical axes to mesh axes."""

import jax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from icl_jax.config import ConfigError, MeshConfig
from icl_jax.sharding import MESH_AXES, check_mesh, make_host_mesh, make_mesh, spec

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
