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
    """Each token is to be told whether it and the one before it are alike."""
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
