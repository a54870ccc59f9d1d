"""The step: sharding, accumulation and masks change nothing; padding never counts."""

import dataclasses
import functools
import json
import math

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.config.tree import from_dict, to_dict
from icl_jax.models import abstract, create
from icl_jax.sharding import make_mesh
from icl_jax.training.optimizer import learning_rate, make_optimizer
from icl_jax.training.train_state import (
    abstract_batch,
    abstract_state,
    compile_train_step,
    init_state,
    lower_train_step,
    step_keys,
)
from tests.training.small import ROBERTA, experiment, random_batch

FACTORISATIONS = [(d, f, 8 // d // f) for d in (1, 2, 4, 8) for f in (1, 2, 4, 8) if d * f <= 8]
TYPICAL = [(8, 1, 1), (2, 2, 2)]  # the others behind -m slow


@functools.cache
def _compile(written, devices):
    config = from_dict(json.loads(written))
    mesh = make_mesh(config.mesh, jax.devices()[:devices])
    schedule = learning_rate(config.optimizer, config.training.steps)
    optimizer = make_optimizer(config.optimizer, schedule)
    step = compile_train_step(config, optimizer, schedule, mesh)
    return step, abstract_state(config, optimizer, mesh), abstract_batch(config, mesh)


def fresh_state(like, seed=0):
    """Parameters from NumPy on the shards of `like`, the rest zero: there is nothing to compile."""
    rng = np.random.default_rng(seed)

    def draw(path, x):
        scale = path[-1].key == "scale" if hasattr(path[-1], "key") else False
        drawn = scale + 0.1 * rng.normal(size=x.shape)
        return jax.device_put(drawn.astype(x.dtype), x.sharding)

    zeros = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), like)
    params = jax.tree_util.tree_map_with_path(draw, like.params)
    ema = jax.tree.map(jnp.copy, params) if like.ema is not None else None
    return dataclasses.replace(zeros, params=params, ema=ema)


def prepare(config):
    """A fresh state and `run(state, batch)`; the same config is compiled once."""
    step, like, batch_like = _compile(json.dumps(to_dict(config)), math.prod(mesh_sizes(config)))

    def run(state, batch):
        placed = jax.tree.map(lambda x, s: jax.device_put(x, s.sharding), batch, batch_like)
        return step(state, placed)

    return fresh_state(like), run


def mesh_sizes(config):
    return config.mesh.data, config.mesh.fsdp, config.mesh.tensor


def curve(config, steps=20):
    state, run = prepare(config)
    losses = []
    for n in range(steps):
        state, metrics = run(state, random_batch(seed=n))
        losses.append(float(metrics["loss"]))
    return losses


@pytest.mark.parametrize(
    "mesh",
    [pytest.param(m, marks=() if m in TYPICAL else pytest.mark.slow) for m in FACTORISATIONS],
)
def test_every_mesh_gives_the_loss_curve_of_one_device(mesh):
    expected = curve(experiment(mesh=(1, 1, 1), dropout=False, steps=20))
    losses = curve(experiment(mesh=mesh, dropout=False, steps=20))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_dropout_and_masks_are_the_same_on_every_mesh_and_the_loss_falls():
    expected = curve(experiment(model=ROBERTA, mesh=(1, 1, 1), steps=20))
    losses = curve(experiment(model=ROBERTA, mesh=(2, 2, 2), steps=20))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_parameters_and_moments_are_created_on_their_shards():
    config = experiment(mesh=(2, 2, 2))
    optimizer = make_optimizer(config.optimizer, learning_rate(config.optimizer, 6))
    state = init_state(config, optimizer, make_mesh(config.mesh))
    kernel = state.params["blocks"][0]["mlp"]["up"]["kernel"]
    moment = state.opt_state[1][0].mu["blocks"][0]["mlp"]["up"]["kernel"]
    for array in (kernel, moment):
        assert array.shape == (16, 64)
        assert {shard.data.shape for shard in array.addressable_shards} == {(8, 32)}
    expected = create(config.model, config.seed).blocks[0].mlp.up.kernel
    np.testing.assert_array_equal(np.asarray(kernel), np.asarray(expected[...]))


def test_the_old_state_is_donated():
    state, run = prepare(experiment(mesh=(8, 1, 1), dropout=False, steps=20))
    after, _ = run(state, random_batch())
    assert all(x.is_deleted() for x in jax.tree.leaves(state.params))
    assert int(after.step) == 1


def test_accumulated_parts_equal_the_big_batch():
    options = {"model": ROBERTA, "mesh": (2, 1, 1), "dropout": False}
    whole = curve(experiment(**options), steps=4)
    parts = curve(experiment(**options, accumulate=4), steps=4)
    np.testing.assert_allclose(parts, whole, rtol=1e-5)


def plain_loss(model, batch):
    """By the definition: mean over the followers inside groups of minus their log probability."""
    logits = np.asarray(model(batch["tokens"], batch["group"]), np.float64)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = [
        -logits[b, t, batch["tokens"][b, t + 1]]
        for b, row in enumerate(batch["group"])
        for t in range(len(row) - 1)
        if row[t] == row[t + 1] > 0
    ]
    return np.mean(losses)


def test_the_loss_is_the_mean_over_the_predicted_tokens_of_the_whole_batch():
    config = experiment(mesh=(8, 1, 1), dropout=False, steps=20)
    batch = random_batch()
    batch["group"][5:] = 0  # some devices have padding only
    state, run = prepare(config)
    model = nnx.merge(abstract(config.model)[0], jax.device_get(state.params))
    _, metrics = run(state, batch)
    expected = plain_loss(model, batch)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)
    assert metrics["tokens"] == (batch["group"] > 0).sum()


def test_a_batch_that_predicts_nothing_has_loss_zero_and_no_gradient():
    state, run = prepare(experiment(mesh=(1, 1, 1), dropout=False, steps=20))
    _, metrics = run(state, {**random_batch(), "group": np.zeros((8, 16), np.int32)})
    assert metrics["loss"] == metrics["grad_norm"] == metrics["tokens"] == 0


def test_what_stands_in_padding_changes_nothing():
    config = experiment(mesh=(1, 1, 1), dropout=False, steps=20)
    batch, results = random_batch(), []
    for filler in (0, 17):
        changed = {**batch, "tokens": np.where(batch["group"] > 0, batch["tokens"], filler)}
        state, run = prepare(config)
        state, metrics = run(state, changed)
        results.append((float(metrics["loss"]), jax.tree.leaves(state.params)))
    assert results[0][0] == results[1][0]
    for a, b in zip(results[0][1], results[1][1]):
        np.testing.assert_array_equal(a, b)


def test_the_moving_average_follows_the_weights():
    config = experiment(mesh=(1, 1, 1), ema_decay=0.9)
    state, run = prepare(config)
    expected = jax.tree.map(np.array, state.params)
    for n in range(3):
        state, _ = run(state, random_batch(seed=n))
        expected = jax.tree.map(lambda e, p: 0.9 * e + 0.1 * np.asarray(p), expected, state.params)
    jax.tree.map(lambda e, a: np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-7),
                 expected, state.ema)  # fmt: skip


def test_dropout_acts_while_training_and_changes_with_the_step():
    still = {"mesh": (1, 1, 1), "optimizer": {"learning_rate": 0.0}}
    losses = []
    state, run = prepare(experiment(**still))
    for _ in range(2):
        state, metrics = run(state, random_batch())
        losses.append(float(metrics["loss"]))
    state, run = prepare(experiment(mesh=(1, 1, 1), dropout=False, steps=20))
    without = float(run(state, random_batch())[1]["loss"])
    assert losses[0] != losses[1]
    assert all(loss != pytest.approx(without, rel=1e-5) for loss in losses)


def test_hardware_keys_are_of_the_step_and_leave_the_masks_as_they_are():
    config, data = experiment(model=ROBERTA), {}
    for kind in ("threefry", "rbg"):
        data[kind] = [
            [jax.random.key_data(key).tolist() for key in step_keys(config, step, kind)]
            for step in (0, 1, 0)
        ]
    masks, dropouts = zip(*data["rbg"])
    assert list(masks) == [mask for mask, _ in data["threefry"]]
    assert dropouts[0] == dropouts[2] != dropouts[1] and len(dropouts[0]) == 4
    other = dataclasses.replace(config, seed=config.seed + 1)
    assert jax.random.key_data(step_keys(other, 0, "rbg")[1]).tolist() != dropouts[0]


def test_only_the_dropout_of_a_step_takes_bits_of_the_hardware():
    drawn = {}
    for keys in ("auto", "rbg"):
        config = experiment(model=ROBERTA, mesh=(2, 2, 2), dropout_keys=keys)
        schedule = learning_rate(config.optimizer, 6)
        optimizer = make_optimizer(config.optimizer, schedule)
        lowered = lower_train_step(config, optimizer, schedule, make_mesh(config.mesh))
        drawn[keys] = lowered.as_text().count("stablehlo.rng_bit_generator")
    # Of the embedding, of attention and of both residuals; shapes that are alike share a function.
    assert drawn["auto"] == 0 < drawn["rbg"] <= 4


@pytest.mark.parametrize("accumulate", [1, 2])
def test_hardware_dropout_trains_repeats_and_changes_with_the_step(accumulate):
    still = {"mesh": (2, 2, 1), "optimizer": {"learning_rate": 0.0}, "dropout_keys": "rbg"}
    losses = []
    for _ in range(2):
        state, run = prepare(experiment(**still, accumulate=accumulate))
        for _ in range(2):
            state, metrics = run(state, random_batch())
            losses.append(float(metrics["loss"]))
    assert losses[:2] == losses[2:] and losses[0] != losses[1]


def test_every_part_of_an_accumulated_batch_has_dropout_of_its_own():
    still = {"mesh": (2, 2, 1), "optimizer": {"learning_rate": 0.0}, "dropout_keys": "rbg"}
    losses = []
    for part in range(2):  # the same rows, in the one part or in the other
        batch = {name: np.zeros_like(x) for name, x in random_batch().items()}
        for name, rows in random_batch(rows=4).items():
            batch[name][part::2] = rows
        state, run = prepare(experiment(**still, accumulate=2))
        losses.append(float(run(state, batch)[1]["loss"]))
    assert losses[0] != pytest.approx(losses[1], rel=1e-4)


def test_masks_change_with_the_step_and_come_back_with_it():
    """Without dropout and at a rate of 0, only what is masked makes two losses differ."""
    config = experiment(
        model=ROBERTA, mesh=(1, 1, 1), optimizer={"learning_rate": 0.0}, dropout=False
    )
    state, run = prepare(config)
    losses = []
    for step in (0, 1, 2, 3, 1):
        state = dataclasses.replace(state, step=jnp.full_like(state.step, step))
        state, metrics = run(state, random_batch())
        losses.append(float(metrics["loss"]))
    assert len({*losses[:4]}) == 4 and losses[4] == losses[1]


def test_another_shape_is_refused_not_compiled():
    state, run = prepare(experiment(mesh=(1, 1, 1), dropout=False, steps=20))
    with pytest.raises(TypeError):
        run(state, random_batch(rows=16))
