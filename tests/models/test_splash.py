"""The TPU's attention kernel, interpreted on a CPU, is the plain attention."""

import dataclasses
import functools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.config import ConfigError, GPTConfig, MeshConfig, RobertaConfig
from icl_jax.config.tree import validate
from icl_jax.models import splash
from icl_jax.models.attention import attend, locate
from icl_jax.models.layers import make_cache
from icl_jax.sharding import make_mesh, state_shardings
from tests.models.small import make_model
from tests.models.test_groups import expected_to_move

LENGTH = 130  # two of the blocks below, the second almost all padding of the kernel's own
# Groups that end inside and behind the first block, one in two pieces, and padding everywhere.
GROUP = np.repeat([[1, 0, 2, 1, 0, 3, 0]], [20, 2, 60, 30, 3, 14, 1], axis=1).repeat(2, axis=0)
SMALL = {
    "vocab_size": 31, "context_length": LENGTH, "num_layers": 1, "embed_dim": 64, "num_heads": 1,
    "mlp_dim": 8, "attention": "splash",
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(splash, "LARGEST_BLOCK", 128)


def mixed_and_gradients(mix, arrays, weights):
    """What `mix` gives, and the gradients of a weighted sum of it; one program for both."""

    def loss(*arrays):
        mixed = mix(*arrays)
        return jnp.sum(mixed * weights), mixed

    (_, mixed), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*arrays)
    return [mixed, *gradients]


def draw(shape, dtype="float32"):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), dtype) for _ in range(4)]


SLOW = pytest.mark.slow
CASES = [
    pytest.param(True, True, LENGTH, "float32", id="causal groups", marks=SLOW),
    pytest.param(False, True, 128, "float32", id="bidirectional groups", marks=SLOW),
    pytest.param(False, False, LENGTH, "float32", id="bidirectional rows", marks=SLOW),
    pytest.param(True, False, 384, "float32", id="causal rows", marks=SLOW),
    pytest.param(True, True, LENGTH, "bfloat16", id="causal groups, bfloat16", marks=SLOW),
]


@pytest.mark.parametrize(("causal", "grouped", "length", "dtype"), CASES)
def test_the_kernel_gives_the_values_and_gradients_of_plain_attention(
    causal, grouped, length, dtype
):
    *arrays, weights = draw((2, 1, length, 64), dtype)
    place = locate(length, jnp.asarray(GROUP[:, :length], jnp.int32) if grouped else None)
    kernel = functools.partial(splash.splash_attend, place=place, causal=causal)
    plain = lambda q, k, v: attend(q, k, v, place, place, causal=causal)  # noqa: E731
    got = mixed_and_gradients(kernel, arrays, weights)
    expected = mixed_and_gradients(plain, arrays, weights)
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == dtype
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        close = 2e-6 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(one, other, rtol=0, atol=close * np.abs(other).max())


def test_on_a_mesh_each_device_runs_the_kernel_on_its_rows_and_heads():
    *arrays, weights = draw((4, 2, LENGTH, 64))
    place = locate(LENGTH, jnp.asarray(GROUP[[0, 1, 0, 1]], jnp.int32))
    kernel = functools.partial(splash.splash_attend, place=place, causal=True)
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        got = mixed_and_gradients(kernel, arrays, weights)
    assert {one.sharding.shard_shape(one.shape) for one in got} == {(1, 1, LENGTH, 64)}
    plain = lambda q, k, v: attend(q, k, v, place, place, causal=True)  # noqa: E731
    for one, other in zip(got, mixed_and_gradients(plain, arrays, weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max())


@pytest.mark.parametrize("kind", [GPTConfig, pytest.param(RobertaConfig, marks=SLOW)])
def test_through_the_kernel_a_changed_token_moves_its_group_and_exactly_nothing_else(kind):
    config, group = kind(**SMALL), GROUP[:1]
    model = make_model(config)
    tokens = np.random.default_rng(0).integers(2, config.vocab_size - 1, group.shape)
    before = np.asarray(model.hidden(tokens, group))
    assert np.isfinite(before).all()
    for place in (0, 21, 50, 100, 120, LENGTH - 1):
        changed = tokens.copy()
        changed[0, place] += 1
        moved = (before != np.asarray(model.hidden(changed, group))).any(axis=-1)
        expected = expected_to_move(group, 0, place, kind is GPTConfig)
        np.testing.assert_array_equal(moved, expected, err_msg=f"token {place}")


MODES = [
    (GPTConfig, {"scan_layers": True, "remat": "full"}, MeshConfig(data=2, fsdp=2, tensor=2)),
    (RobertaConfig, {"remat": "dots"}, MeshConfig(data=1, fsdp=4, tensor=2)),
    (GPTConfig, {"num_heads": 3, "head_dim": 64}, MeshConfig(data=1, fsdp=1, tensor=8)),
]


@SLOW
@pytest.mark.parametrize(("kind", "options", "sizes"), MODES)
def test_on_a_mesh_the_kernel_gives_the_gradients_of_plain_attention_on_one_device(
    kind, options, sizes
):
    config = kind(**(SMALL | {"embed_dim": 128, "num_heads": 2} | options))
    tokens = np.random.default_rng(0).integers(2, config.vocab_size, (4, LENGTH))
    group = GROUP[[0, 1, 0, 1]]

    def gradients(attention, params):
        graphdef, _ = nnx.split(make_model(dataclasses.replace(config, attention=attention)))
        loss = lambda params: jnp.sum(  # noqa: E731
            jnp.sin(3 * nnx.merge(graphdef, params).hidden(tokens, group))
        )
        return jax.jit(jax.grad(loss))(params)

    _, params = nnx.split(make_model(config))
    mesh = make_mesh(sizes)
    with jax.set_mesh(mesh):
        got = gradients("splash", jax.device_put(params, state_shardings(params, mesh)))
    expected = gradients("plain", params)
    got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
    largest = max(np.abs(x).max() for x in expected)  # that of a key's bias is 0 but for rounding
    for one, other in zip(got, expected, strict=True):
        close = 1e-5 * np.abs(other).max() + 1e-6 * largest
        np.testing.assert_allclose(one, other, rtol=0, atol=close)


@pytest.mark.parametrize(("device", "length", "options", "used"), [
    ("tpu", 1024, {}, True),
    ("tpu", 1000, {}, False),  # shorter than where it pays
    ("tpu", 1024, {"head_dim": 80}, False),
    ("tpu", 1024, {"alibi": True}, False),
    ("tpu", 1024, {"dropout": True}, False),
    ("cpu", 8192, {}, False),
    ("gpu", 8192, {}, False),
    ("tpu", 8192, {"kind": "plain"}, False),
    ("tpu", 8, {"kind": "splash"}, True),
    ("cpu", 8, {"kind": "splash"}, True),
])  # fmt: skip
def test_the_kernel_is_chosen_where_it_can_be_and_pays(device, length, options, used, monkeypatch):
    monkeypatch.setattr(splash, "platform", lambda: device)
    usual = {"kind": "auto", "head_dim": 64, "alibi": False, "dropout": False}
    assert splash.choose_splash(**(usual | options | {"length": length})) == used


def test_a_model_takes_the_kernel_as_chosen_and_a_cache_never_does(monkeypatch):
    taken = []
    mix = lambda q, k, v, place, causal: taken.append(q.shape) or v  # noqa: E731
    monkeypatch.setattr("icl_jax.models.layers.splash_attend", mix)
    tokens = np.zeros((1, 9), np.int32)  # of a shape that no other test has compiled
    for attention, count in (("auto", 0), ("plain", 0), ("splash", 1)):
        model = make_model(GPTConfig(**(SMALL | {"attention": attention})))
        jax.eval_shape(model.hidden, tokens)
        assert len(taken) == count, attention
    places, cache = locate(9, None), make_cache(model.config, 1, 9)
    jax.eval_shape(lambda cache: model.extend(tokens, places, 0, cache)[0], cache)
    assert len(taken) == 1


def test_the_kernel_where_it_cannot_work_is_refused_with_the_way_out(monkeypatch):
    with pytest.raises(
        ConfigError, match=r"needs no ALiBi .* got position 'alibi' and head_dim 64"
    ):
        validate(GPTConfig(**SMALL, position="alibi"))
    with pytest.raises(ConfigError, match="and head_dim 32; set attention='auto'"):
        validate(GPTConfig(**(SMALL | {"num_heads": 2})))
    with pytest.raises(ConfigError, match="attention must be one of auto, plain, splash, got 'f'"):
        validate(RobertaConfig(**(SMALL | {"attention": "f"})))
    model, tokens = make_model(GPTConfig(**SMALL)), np.zeros((1, 8), np.int32)
    with pytest.raises(ConfigError, match=r"no attention dropout, .*; set attention_dropout=0"):
        model(tokens, dropout_key=jax.random.key(0))
    monkeypatch.setattr(splash, "platform", lambda: "gpu")
    with pytest.raises(ConfigError, match="this runs on 'gpu'; set attention='auto'"):
        splash.choose_splash("splash", 1024, 64, alibi=False, dropout=False)
