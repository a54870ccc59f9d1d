"""Dropout by the hardware's generator: as random as threefry's, and drawn where it is needed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.config import GPTConfig, MeshConfig
from icl_jax.models import create
from icl_jax.models.dropout import dropout
from icl_jax.sharding import make_mesh

RATE = 0.3
SHAPE = (8, 4, 32, 16)
AXES = ("batch", "heads", None, None)


def zeros_of(key, mesh, shape=SHAPE, axes=AXES):
    with jax.set_mesh(make_mesh(MeshConfig(*mesh))):
        kept = jax.jit(lambda key: dropout(jnp.ones(shape), RATE, key, axes))(key)
    return np.asarray(kept) == 0


def assert_independent(masks):
    """Each zeroes its share, and two of them agree as often as chance has it."""
    masks = np.reshape(masks, (len(masks), -1))
    spread = 5 * (RATE * (1 - RATE) / masks.shape[1]) ** 0.5  # of 5 standard deviations
    np.testing.assert_allclose(masks.mean(1), RATE, atol=spread)
    for n in range(len(masks)):
        for m in range(n):
            assert np.mean(masks[n] & masks[m]) == pytest.approx(RATE**2, abs=spread)


@pytest.mark.parametrize("mesh", [(8, 1, 1), (2, 2, 2)])
def test_hardware_bits_of_rows_heads_and_keys_are_independent_on_a_mesh(mesh):
    keys = jax.random.split(jax.random.key(3, impl="rbg"), 2)
    one, other = (zeros_of(key, mesh) for key in keys)
    assert_independent([one, other])
    assert_independent(one)  # rows
    assert_independent(one.swapaxes(0, 1))  # heads
    np.testing.assert_array_equal(one, zeros_of(keys[0], mesh))


def test_what_lies_whole_on_several_devices_has_the_same_hardware_bits_on_each():
    key = jax.random.key(3, impl="rbg")
    with jax.set_mesh(make_mesh(MeshConfig(2, 2, 2))):
        kept = jax.jit(lambda key: dropout(jnp.ones((8, 6, 4)), RATE, key))(key)
    parts = {}
    for shard in kept.addressable_shards:
        parts.setdefault(str(shard.index), []).append(np.asarray(shard.data))
    assert len(parts) == 4  # data x fsdp, and tensor has both of its copies
    for copies in parts.values():
        np.testing.assert_array_equal(*copies)


def test_no_device_draws_the_hardware_bits_of_others():
    key = jax.random.key(3, impl="rbg")
    with jax.set_mesh(make_mesh(MeshConfig(2, 2, 2))):
        text = jax.jit(lambda key: dropout(jnp.ones(SHAPE), RATE, key, AXES)).lower(key).as_text()
    (line,) = (line for line in text.splitlines() if "rng_bit_generator" in line)
    assert "tensor<2x2x32x16xui32>" in line


def test_threefry_gives_the_same_on_every_mesh():
    key = jax.random.key(3)
    np.testing.assert_array_equal(zeros_of(key, (8, 1, 1)), zeros_of(key, (2, 2, 2)))


def test_scanned_unrolled_and_recomputed_layers_draw_the_same_and_no_two_layers_do():
    config = GPTConfig(
        vocab_size=61, context_length=16, num_layers=2, embed_dim=16, num_heads=2,
        embedding_dropout=0.0, attention_dropout=0.5, residual_dropout=0.5,
    )  # fmt: skip
    tokens, key = np.arange(32).reshape(2, 16), jax.random.key(3, impl="rbg")
    made = []
    for options in ({}, {"scan_layers": True}, {"scan_layers": True, "remat": "full"}):
        model = create(dataclasses.replace(config, **options), 0)
        made.append(np.asarray(model.hidden(tokens, dropout_key=key)))
    np.testing.assert_allclose(made[1], made[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made[2], made[0], rtol=1e-4, atol=1e-5)
    assert not np.allclose(made[0], model.hidden(tokens), atol=1e-3)
    keys = jax.random.split(key, 2)  # as `run_blocks` makes them
    assert_independent([zeros_of(k, (1, 1, 8), (64, 32), (None, None)) for k in keys])
