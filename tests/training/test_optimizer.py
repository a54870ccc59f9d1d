"""The learning rate at every step, and AdamW against PyTorch's."""

import math

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from icl_jax.config import ConfigError, OptimizerConfig
from icl_jax.data.input_pipeline import open_data
from icl_jax.models import abstract
from icl_jax.training.optimizer import decay_mask, learning_rate, make_optimizer
from icl_jax.training.presets import PRESETS, preset
from icl_jax.training.train import plan_steps
from tests.training.small import GPT, ROBERTA, experiment, write_source

pytestmark = pytest.mark.delicate


def rates(steps, **fields):
    schedule = learning_rate(OptimizerConfig(learning_rate=2.0, **fields), steps)
    return [float(schedule(n)) for n in range(steps + 1)]


def test_the_rate_rises_linearly_then_follows_the_schedule():
    constant = rates(10, schedule="constant", warmup=4)
    np.testing.assert_allclose(constant, [0.5, 1, 1.5, 2] + [2] * 7)
    linear = rates(10, schedule="linear", warmup=4, final_share=0.1)
    np.testing.assert_allclose(linear[4:], 2 - 1.8 * np.arange(7) / 6, rtol=1e-6)
    cosine = rates(10, schedule="cosine", warmup=4)
    np.testing.assert_allclose(
        cosine[4:], [1 + math.cos(math.pi * n / 6) for n in range(7)], rtol=1e-5, atol=1e-6
    )


def test_without_warm_up_the_first_step_has_the_peak():
    assert rates(3, schedule="linear", warmup=0)[0] == 2.0


def test_a_warm_up_in_epochs_lasts_so_many_steps():
    schedule = learning_rate(OptimizerConfig(learning_rate=2.0, warmup=1), 50, steps_per_epoch=10)
    assert float(schedule(8)) < 2.0 and float(schedule(9)) == 2.0


def test_a_run_by_epochs_warms_up_for_epochs_and_one_by_steps_for_steps(tmp_path):
    source = write_source(tmp_path / "records", [[5, 6, 7, 0]] * 20)  # 2.5 steps of 8 an epoch

    def rise(**fields):
        optimizer = {"warmup": 2, "schedule": "constant", "learning_rate": 1.0}
        config = experiment(source, optimizer=optimizer, **fields)
        data = open_data(config.data, config.batch_size, config.sequence_length, config.seed)
        steps, schedule = plan_steps(config, data)
        return steps, [round(float(schedule(step)), 6) for step in range(6)]

    assert rise(steps=0, epochs=4.0) == (10, [0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert rise(steps=10) == (10, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0])


def test_a_schedule_may_end_later_than_the_run(tmp_path):
    source = write_source(tmp_path / "records", [[5, 6, 7, 0]] * 20)
    optimizer = {"warmup": 0, "schedule": "linear", "learning_rate": 1.0, "final_share": 0.0}
    config = experiment(source, optimizer=optimizer | {"schedule_steps": 40}, steps=10)
    data = open_data(config.data, config.batch_size, config.sequence_length, config.seed)
    steps, schedule = plan_steps(config, data)
    assert steps == 10 and float(schedule(steps)) == pytest.approx(0.75)


@pytest.mark.parametrize("model", [GPT, ROBERTA])
def test_biases_and_norms_do_not_decay_and_all_else_does(model):
    _, params = abstract(model)
    flat = nnx.to_flat_state(decay_mask(params))
    kept = {".".join(map(str, path)) for path, decays in flat if not decays}
    assert all(name.endswith(("bias", "scale")) for name in kept)
    decayed = {path[-1] for path, decays in flat if decays}
    assert decayed == {"kernel", "rows"}
    assert any("norm.scale" in name for name in kept) and any("mlp.up.bias" in n for n in kept)


def test_the_updates_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    start = {"kernel": rng.normal(size=(3, 5)), "bias": rng.normal(size=5)}
    config = OptimizerConfig(learning_rate=0.01, schedule="linear", warmup=2, clip_norm=0.5)
    optimizer = make_optimizer(config, learning_rate(config, 6))
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), start)
    state = optimizer.init(params)

    theirs = {k: torch.nn.Parameter(torch.tensor(v, dtype=torch.float32)) for k, v in start.items()}
    groups = [
        {"params": [theirs["kernel"]], "weight_decay": 0.1},
        {"params": [theirs["bias"]], "weight_decay": 0.0},
    ]
    peer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    for rate in (0.005, 0.01, 0.01, 0.0075, 0.005, 0.0025):
        grads = {k: rng.normal(size=v.shape).astype(np.float32) for k, v in start.items()}
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        for name, parameter in theirs.items():
            parameter.grad = torch.tensor(grads[name])
        torch.nn.utils.clip_grad_norm_(theirs.values(), 0.5)
        for group in peer.param_groups:
            group["lr"] = rate
        peer.step()
    for name in start:
        np.testing.assert_allclose(params[name], theirs[name].detach().numpy(), rtol=1e-4)


def test_decay_rates_and_epsilon_are_those_of_the_config():
    config = OptimizerConfig(
        learning_rate=2.0, schedule="constant", warmup=0, clip_norm=0.0, weight_decay=0.0, b1=0.5,
        b2=0.25, epsilon=3.0,
    )  # fmt: skip
    optimizer = make_optimizer(config, learning_rate(config, 6))
    params = {"kernel": jnp.zeros(())}
    state, mean, square = optimizer.init(params), 0.0, 0.0
    for step, gradient in enumerate((1.0, -4.0, 2.0), 1):
        updates, state = optimizer.update({"kernel": jnp.full((), gradient)}, state, params)
        mean, square = 0.5 * mean + 0.5 * gradient, 0.25 * square + 0.75 * gradient**2
        root = math.sqrt(square / (1 - 0.25**step))
        expected = -2.0 * mean / (1 - 0.5**step) / (root + 3.0)
        np.testing.assert_allclose(updates["kernel"], expected, rtol=1e-5)


def test_presets_are_copies_and_an_unknown_one_is_named():
    changed = preset("knn-tapt", learning_rate=7e-5)
    assert changed.learning_rate == 7e-5 and PRESETS["knn-tapt"].learning_rate == 5e-5
    assert (changed.b2, changed.epsilon, changed.weight_decay) == (0.98, 1e-6, 0.01)
    with pytest.raises(ConfigError, match=r"unknown optimiser 'x'; expected one of knn-pre"):
        preset("x")
