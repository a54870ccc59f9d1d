"""Whatever the mesh, the logits are those of one device."""

import dataclasses
import itertools

from flax import nnx
import jax
import numpy as np
import pytest

from icl_jax.config import ConfigError, GPTConfig, LinearAttentionConfig, MeshConfig, RobertaConfig
from icl_jax.models import create
from icl_jax.sharding import MESH_AXES, make_mesh, state_shardings
from tests.models.small import leaves, make_model

MESHES = [
    MeshConfig(*sizes) for sizes in itertools.product((1, 2, 4, 8), repeat=3) if np.prod(sizes) == 8
]
TYPICAL = [MeshConfig(*sizes) for sizes in ((8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2))]
SMALL = {"vocab_size": 40, "context_length": 16, "num_layers": 2, "embed_dim": 16, "num_heads": 8}
CONFIGS = {
    "gpt": GPTConfig(**SMALL, scan_layers=True),
    "roberta": RobertaConfig(**SMALL, scan_layers=True),
    "analysed": LinearAttentionConfig(**SMALL, scan_layers=True),
}
TOKENS = np.random.default_rng(0).integers(0, 40, (8, 16))
GROUP = np.repeat([[1, 2, 0]], [9, 5, 2], axis=1).repeat(8, axis=0)


@pytest.fixture(scope="module")
def one_device():
    return {name: make_model(config) for name, config in CONFIGS.items()}


def assert_same_logits(got, expected):
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6 * scale)


EVERY_CASE = [
    pytest.param(name, mesh, id=f"{name}-{mesh.data}x{mesh.fsdp}x{mesh.tensor}",
                 marks=() if name == "gpt" or mesh in TYPICAL else pytest.mark.slow)
    for name in CONFIGS for mesh in MESHES
]  # fmt: skip


@pytest.mark.parametrize("name, sizes", EVERY_CASE)
def test_every_factorisation_of_8_devices_gives_the_logits_of_one(name, sizes, one_device):
    mesh = make_mesh(sizes)
    graphdef, params = nnx.split(one_device[name])
    model = nnx.merge(graphdef, jax.device_put(params, state_shardings(params, mesh)))
    with jax.set_mesh(mesh):
        got = model(TOKENS, GROUP)
    assert_same_logits(got, one_device[name](TOKENS, GROUP))
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves(model))
    whole = sum(leaf.nbytes for leaf in leaves(model))
    # Of one mesh axis of 8, each device holds an eighth of what that axis cuts.
    assert held == whole if sizes.data == 8 else held < 0.8 * whole


UNDIVIDED = GPTConfig(vocab_size=41, context_length=17, num_layers=2, embed_dim=15, num_heads=3)
UNROLLED = dataclasses.replace(CONFIGS["gpt"], scan_layers=False)


@pytest.mark.parametrize("config", [UNDIVIDED, pytest.param(UNROLLED, marks=pytest.mark.slow)])
def test_other_layouts_give_the_same_logits_too(config):
    tokens = TOKENS[:3]  # nor does any axis divide the batch
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    model = create(config, seed=5, mesh=mesh)
    with jax.set_mesh(mesh):
        got = model(tokens)
    kernel = model.blocks[0].mlp.up.kernel[...]
    assert kernel.sharding.mesh.shape == {"data": 2, "fsdp": 2, "tensor": 2}
    alone = create(config, seed=5)
    assert_same_logits(got, alone(tokens))
    for one, other in zip(leaves(model), leaves(alone), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_batch_is_cut_over_data_and_fsdp():
    mesh = make_mesh(MeshConfig(data=2, fsdp=4, tensor=1))
    model = create(CONFIGS["gpt"], mesh=mesh)
    assert model(TOKENS).sharding.shard_shape((8, 16, 40)) == (1, 16, 40)
    with jax.set_mesh(mesh):
        assert model(TOKENS).sharding.shard_shape((8, 16, 40)) == (1, 16, 40)


def test_a_set_mesh_of_another_kind_is_refused_with_the_way_out():
    model = make_model(CONFIGS["gpt"])
    explicit = jax.make_mesh((2, 2, 2), MESH_AXES)
    with jax.set_mesh(explicit), pytest.raises(ConfigError, match=r"sharding\.make_mesh"):
        model(TOKENS)
