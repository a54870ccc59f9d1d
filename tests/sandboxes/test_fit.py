import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from icl_jax.config import GPTConfig, LSTMConfig, OptimizerConfig
from icl_jax.models import abstract
from icl_jax.models.kinds import kind_of
from icl_jax.sandboxes import fit as fitting
from icl_jax.sandboxes.fit import Recipe, fit, over_seeds
from icl_jax.training.objectives import Task
from icl_jax.training.optimizer import learning_rate, make_optimizer

CONFIG = GPTConfig(
    vocab_size=7, context_length=5, num_layers=1, embed_dim=6, mlp_dim=10, num_heads=2,
    position="sinusoidal", tie_head=False,
)  # fmt: skip
OPTIMIZER = OptimizerConfig(learning_rate=1e-2, schedule="constant", warmup=0)


def draw(key):
    """The target of each token: whether it equals the one before it."""
    tokens_BT = jax.random.randint(key, (4, 5), 0, 5)
    alike_BT = tokens_BT == jnp.roll(tokens_BT, 1, axis=1)
    targets_BT = 5 + alike_BT.astype(jnp.int32)
    return Task(tokens_BT, None, targets_BT, jnp.ones((4, 5)).at[:, 0].set(0.0)), None


def alone(seed, steps, ema_decay=0.0):
    """The same training, one seed, one step after another, by optax alone."""
    graphdef, _ = abstract(CONFIG)
    optimizer = make_optimizer(OPTIMIZER, learning_rate(OPTIMIZER, steps))
    key = jax.random.key(seed)
    rngs = nnx.Rngs(params=jax.random.fold_in(key, 0))
    params = nnx.as_pure(nnx.state(kind_of(CONFIG).module(CONFIG, rngs=rngs)))
    state, average, losses = optimizer.init(params), params, []

    @jax.jit
    def loss_and_grads(params, task):
        def loss_of(params):
            logits = nnx.merge(graphdef, params)(task.inputs_BT)
            log_p = jax.nn.log_softmax(logits)
            picked = jnp.take_along_axis(log_p, task.targets_BT[..., None], axis=-1)[..., 0]
            return -jnp.sum(picked * task.weights_BT) / jnp.sum(task.weights_BT)

        return jax.value_and_grad(loss_of)(params)

    for n in range(steps):
        data_key, _ = jax.random.split(jax.random.fold_in(key, n + 1))
        loss, grads = loss_and_grads(params, draw(data_key)[0])
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        average = jax.tree.map(lambda a, p: ema_decay * a + (1 - ema_decay) * p, average, params)
        losses.append(float(loss))
    return (average if ema_decay else params), losses


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_seeds_trained_at_once_are_as_trained_one_by_one(ema_decay):
    fitted = fit(CONFIG, draw, Recipe(5, OPTIMIZER, ema_decay), [3, 8])
    for place, seed in enumerate((3, 8)):
        params, losses = alone(seed, 5, ema_decay)
        ours = jax.tree.map(lambda x, place=place: x[place], fitted.params)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(params), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-4)
        np.testing.assert_allclose(fitted.losses[place], [np.mean(losses)], rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "offset", "dropout"),
    [({}, None, False), ({}, 3, False), ({"residual_dropout": 0.5}, None, False),
     ({"residual_dropout": 0.5}, 2, True)],
)  # fmt: skip
def test_a_step_has_the_offset_of_its_batch_and_dropout_if_the_recipe_says_so(
    options, offset, dropout
):
    config = dataclasses.replace(CONFIG, position="learned", context_length=9, **options)
    fitted = fit(
        config, lambda key: (draw(key)[0], offset), Recipe(1, OPTIMIZER, 0.0, dropout), [3]
    )
    key = jax.random.key(3)
    model = kind_of(config).module(config, rngs=nnx.Rngs(params=jax.random.fold_in(key, 0)))
    data_key, dropout_key = jax.random.split(jax.random.fold_in(key, 1))
    (task, _), key = draw(data_key), dropout_key if dropout else None
    logits = model(task.inputs_BT, offset=offset, dropout_key=key)
    each_BT = optax.softmax_cross_entropy_with_integer_labels(logits, task.targets_BT)
    expected = (each_BT * task.weights_BT).sum() / task.weights_BT.sum()
    np.testing.assert_allclose(fitted.losses, [[expected]], rtol=1e-5)
    usual = optax.softmax_cross_entropy_with_integer_labels(model(task.inputs_BT), task.targets_BT)
    usual = (usual * task.weights_BT).sum() / task.weights_BT.sum()
    assert (abs(usual - expected) > 1e-5) == (offset is not None or dropout)


def test_a_network_and_a_loss_of_ones_own_are_trained_and_know_the_step():
    class Scale(nnx.Module):
        def __init__(self, rngs):
            self.factor = nnx.Param(1.0 + rngs.params.uniform(()))

    seen = lambda model, batch, key, n: jnp.square(model.factor[...] - batch) + n  # noqa: E731
    optimizer = dataclasses.replace(OPTIMIZER, learning_rate=0.1, weight_decay=0.0)
    recipe = Recipe(100, optimizer)
    fitted = fit(Scale, lambda key: jnp.float32(3.0), recipe, [0, 1], loss=seen)
    np.testing.assert_allclose(fitted.params["factor"][...], 3.0, atol=0.05)
    np.testing.assert_allclose(
        fitted.losses, np.arange(100).mean(), rtol=0.05
    )  # of n, for the most


def test_seeds_lie_on_as_many_devices_as_divide_them():
    assert [len(over_seeds(n).device_set) for n in (1, 5, 6, 8, 12)] == [1, 1, 2, 8, 4]


def test_a_training_that_was_cut_off_continues_bit_for_bit(tmp_path, monkeypatch):
    recipe = Recipe(2 * fitting.STEPS_PER_CALL + 7, OPTIMIZER, 0.9)
    whole = fit(CONFIG, draw, recipe, [0, 1])
    monkeypatch.setattr(fitting, "SAVE_SECONDS", -1)
    save, saved = fitting._save, []

    def save_once(*arguments):
        save(*arguments)
        saved.append(arguments)
        if len(saved) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "_save", save_once)
    with pytest.raises(KeyboardInterrupt):
        fit(CONFIG, draw, recipe, [0, 1], tmp_path)
    continued = fit(CONFIG, draw, recipe, [0, 1], tmp_path)
    assert len(saved) == 2  # the second call alone: the first was not made again
    for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(continued.params), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(whole.losses, continued.losses)


def test_a_recurrent_network_learns_and_measures_are_of_each_seed():
    config = LSTMConfig(vocab_size=7, embed_dim=6, hidden_dim=16)
    optimizer = OptimizerConfig(learning_rate=2e-2, schedule="constant", warmup=0, weight_decay=0)
    fitted = fit(config, draw, Recipe(300, optimizer), [0, 1, 2])
    task, _ = draw(jax.random.key(123))
    accuracy = fitted.of_each_seed(
        lambda model, tokens: jnp.mean(
            (jnp.argmax(model(tokens), axis=-1) == task.targets_BT)[:, 1:].astype(jnp.float32)
        )
    )(task.inputs_BT)
    assert accuracy.shape == (3,)
    assert accuracy.min() > 0.9
    assert fitted.losses.shape == (3, 3)
