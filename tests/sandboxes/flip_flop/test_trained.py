"""Trained networks: what they learn from, what sharpens their attention, how errors are counted."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from icl_jax.config import ConfigError
from icl_jax.models.gpt import GPT
from icl_jax.sandboxes.fit import mean_loss, prepare
from icl_jax.sandboxes.flip_flop import ffl, language, trained
from icl_jax.sandboxes.flip_flop.language import IGNORE, ONE, READ, WRITE, ZERO, memory
from icl_jax.sandboxes.flip_flop.trained import (
    DENSITIES,
    SHARPENERS,
    Training,
    Trial,
    count,
    make_draw,
    make_loss,
    make_strength,
    make_test,
    train,
)

TINY = Training(
    12, (0.5,), (), layers=1, width=8, heads=2, hidden=8, steps=20, batch=6, warmup=5, seeds=2
)


def changed(**fields):
    return dataclasses.replace(TINY, **fields)


def rows_of(task):
    return np.concatenate([task.inputs_BT, task.targets_BT[:, -1:]], axis=1)


# What a network learns from.


def test_only_the_bits_of_reads_are_learnt_or_every_token():
    task = make_draw(TINY)(jax.random.key(0))
    language.check(rows_of(task))
    np.testing.assert_array_equal(task.targets_BT[:, :-1], task.inputs_BT[:, 1:])
    np.testing.assert_array_equal(task.weights_BT, task.inputs_BT == READ)
    np.testing.assert_array_equal(
        task.targets_BT[:, ::2][task.inputs_BT[:, ::2] == READ],
        np.asarray(memory(rows_of(task)))[task.inputs_BT[:, ::2] == READ],
    )
    every = make_draw(changed(generative=True))(jax.random.key(0))
    assert every.weights_BT.all()
    np.testing.assert_array_equal(every.inputs_BT, task.inputs_BT)


def test_several_languages_are_mixed_row_by_row():
    task = make_draw(changed(ignore=(0.0, 1.0), batch=200))(jax.random.key(0))
    ignored = (task.inputs_BT[:, 2:-1:2] == IGNORE).mean(axis=1)
    assert set(np.unique(ignored)) == {0.0, 1.0}


def test_batches_that_come_again_are_as_many_as_told():
    draw = jax.jit(make_draw(changed(batches=3)))
    drawn = {rows_of(draw(jax.random.key(n))).tobytes() for n in range(40)}
    assert len(drawn) == 3
    fresh = jax.jit(make_draw(TINY))
    assert len({rows_of(fresh(jax.random.key(n))).tobytes() for n in range(40)}) == 40


def test_seeds_share_their_first_weights_or_their_data_or_neither():
    def first(training):
        ready = prepare(training.starting(), make_draw(training), training.recipe(), (0, 1))
        return jax.tree.leaves(ready.state.params)

    assert any((leaf[0] != leaf[1]).any() for leaf in first(TINY))
    assert all((leaf[0] == leaf[1]).all() for leaf in first(changed(shared="weights")))
    assert any((leaf[0] != leaf[1]).any() for leaf in first(changed(shared="data")))

    model, draw = GPT(TINY.model(), rngs=nnx.Rngs(params=0)), make_draw(TINY)
    batches = [draw(jax.random.key(n)) for n in range(2)]

    def losses(training, n):
        loss = make_loss(training)
        return [float(loss(model, batch, None, jnp.int32(n))) for batch in batches]

    own, shared = losses(TINY, 0), [losses(changed(shared="data"), n) for n in range(2)]
    assert own[0] != own[1]
    assert shared[0][0] == shared[0][1] != shared[1][0] == shared[1][1]


# Sharper attention.


def random_weights(seed=0):
    scores = 3 * np.random.default_rng(seed).normal(size=(2, 3, 5, 5))
    scores = np.where(np.tril(np.ones((5, 5))) > 0, scores, -np.inf)
    return np.asarray(jax.nn.softmax(scores.astype(np.float32), axis=-1))


def test_sharpeners_are_entropy_and_minus_the_norms():
    weights = random_weights()
    expected = {
        "entropy": stats.entropy(weights, axis=-1).mean(),
        "norm": -np.linalg.norm(weights, ord=2, axis=-1).mean(),
        "max": -np.linalg.norm(weights.reshape(-1, 5), ord=np.inf, axis=-1).mean(),
    }
    assert expected.keys() == SHARPENERS.keys()
    for name, value in expected.items():
        assert float(SHARPENERS[name](weights)) == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("name", SHARPENERS)
def test_what_sharpens_has_a_slope_where_weights_are_zero_and_points_to_one_key(name):
    def of_scores(scores, sharpener=SHARPENERS[name]):
        return sharpener(jax.nn.softmax(scores, axis=-1)[None, None])

    scores = jnp.array([[200.0, 0.0, -200.0], [1.0, 0.5, -jnp.inf]])
    assert jax.nn.softmax(scores, axis=-1).min() == 0
    slope = jax.grad(of_scores)(scores)
    assert np.isfinite(slope).all() and slope[1, 0] < 0 < slope[1, 1]


def test_the_loss_has_the_strength_times_the_mean_over_layers_heads_and_rows():
    training = changed(sharpen="entropy", strength=0.3, schedule="linear", layers=2)
    model = GPT(training.model(), rngs=nnx.Rngs(params=1))
    task = make_draw(training)(jax.random.key(3))
    weights = np.asarray(model.attention_weights(task.inputs_BT))
    expected = (
        mean_loss(model(task.inputs_BT), task) + 0.3 * 0.5 * stats.entropy(weights, axis=-1).mean()
    )
    assert float(make_loss(training)(model, task, None, jnp.int32(10))) == pytest.approx(
        float(expected), rel=1e-5
    )


def test_strengths_follow_their_schedules_from_their_first_step():
    def course(**fields):
        strength = make_strength(changed(sharpen="max", strength=2.0, steps=100, **fields))
        return [round(float(strength(jnp.int32(n))), 4) for n in (0, 5, 10, 50, 55, 100)]

    assert course() == [2, 2, 2, 2, 2, 2]
    assert course(sharpen_from=50) == [0, 0, 0, 2, 2, 2]
    assert course(schedule="linear") == [0, 0.1, 0.2, 1, 1.1, 2]
    assert course(schedule="linear", sharpen_from=50) == [0, 0, 0, 0, 0.2, 2]
    assert course(schedule="oscillating") == [0, 2, 0, 0, 2, 0]  # a wave is a tenth of the steps
    assert course(schedule="oscillating", sharpen_from=45) == [0, 0, 0, 2, 0, 2]


# How errors are counted.


def replayed(tokens, chosen):
    """Reads and errors by distance and by density, one token at a time."""
    found = {}
    for row, answers in zip(tokens, chosen):
        since, bit, writes = 0, None, 0
        for n, (instruction, data) in enumerate(zip(row[::2], row[1::2])):
            since, writes = since + 1, writes + (instruction == WRITE)
            if instruction == WRITE:
                since, bit = 0, data
            if instruction == READ:
                ends = enumerate(DENSITIES)
                density = next(g for g, end in ends if 100 * writes <= end * (n + 1))
                distance = next(g for g in range(9) if since <= 2**g)
                for key in (("by_distance", distance), ("by_density", density)):
                    reads, errors = found.get(key, (0, 0))
                    found[key] = reads + 1, errors + (answers[n] != bit)
    return found


def test_reads_and_errors_are_those_of_a_replay():
    tokens = np.asarray(ffl(40, 0.7).sample(jax.random.key(5), 80))
    chosen = np.random.default_rng(0).integers(0, 5, (80, 20)).astype(np.int32)
    expected, found = replayed(tokens, chosen), count(jnp.array(tokens), jnp.array(chosen))
    for by in ("by_distance", "by_density"):
        for group, (reads, errors) in enumerate(zip(found[by]["reads"], found[by]["errors"])):
            assert expected.get((by, group), (0, 0)) == (int(reads), int(errors)), (by, group)
    assert sum(n for n, _ in (expected[key] for key in expected if key[0] == "by_density")) == int(
        (tokens[:, ::2] == READ).sum()
    )


def says(choose):
    """A model that is sure of `choose(tokens)` after every instruction."""

    def model(tokens):
        odd = jnp.full(tokens[:, 1::2].shape, ZERO)
        chosen = choose(tokens)
        pairs = jnp.stack([chosen, jnp.pad(odd, ((0, 0), (0, 1)))], axis=-1)
        return jax.nn.one_hot(pairs.reshape(len(tokens), -1)[:, : tokens.shape[1]], 5)

    return model


def remembered(tokens):
    return memory(jnp.pad(tokens, ((0, 0), (0, 1))))


def test_a_test_counts_what_its_rows_hold_and_every_other_token_is_wrong():
    training, trial = changed(length=20), Trial("sparse", 0.9, 1000)
    run = make_test(training, trial)
    right, zero, read = (
        run(says(choose))["by_distance"]
        for choose in (
            remembered,
            lambda tokens: jnp.full(tokens[:, ::2].shape, ZERO),
            lambda tokens: jnp.full(tokens[:, ::2].shape, READ),
        )
    )
    total = int(right["reads"].sum())
    assert right["errors"].sum() == 0 and total >= 1000  # every row reads at its end
    assert stats.binomtest(int(zero["errors"].sum()), total).pvalue > 1e-4
    np.testing.assert_array_equal(read["errors"], right["reads"])


def test_errors_are_found_at_their_distance():
    def forgets(tokens):
        """Right only while the write is one of the last two pairs."""
        pairs = tokens[:, ::2]
        near = (pairs == WRITE).at[:, 1:].max((pairs == WRITE)[:, :-1])
        near = near.at[:, 2:].max((pairs == WRITE)[:, :-2])
        return jnp.where(near, remembered(tokens), IGNORE)

    found = make_test(changed(length=20), Trial("x", 0.6, 640))(says(forgets))["by_distance"]
    np.testing.assert_array_equal(found["errors"][:2], [0, 0])
    np.testing.assert_array_equal(found["errors"][2:], found["reads"][2:])
    assert found["reads"][2] > 0


def test_an_lstm_learns_to_read_without_an_error(tmp_path):
    tests = (Trial("in_distribution", 0.5, 500), Trial("sparse", 0.9, 500))
    training = changed(
        network="lstm", layers=1, width=8, hidden=24, steps=400, batch=64, learning_rate=2e-2,
        tests=tests, weight_decay=0.0,
    )  # fmt: skip
    found = train(tmp_path, **dataclasses.asdict(training))
    for name in ("in_distribution", "sparse"):
        result = found["tests"][name]
        assert result["errors"] == [0, 0] and result["reads"] >= result["rows"] >= 500
        assert sum(result["by_distance"]["reads"]) == result["reads"]
        assert sum(result["by_density"]["reads"]) == result["reads"]
    assert not list(tmp_path.glob("unfinished*"))


def test_a_sharpened_network_with_dropout_is_trained_and_tested(tmp_path):
    training = changed(
        sharpen="norm", strength=0.1, schedule="oscillating", embedding_dropout=0.5, gated=True,
        ignore=(0.5, 0.9), tests=(Trial("dense", 0.1, 10),),
    )  # fmt: skip
    found = train(tmp_path, **dataclasses.asdict(training))
    assert np.isfinite(found["losses"]).all() and len(found["tests"]["dense"]["errors"]) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"network": "rnn"}, "network must be 'gpt' or 'lstm', got 'rnn'"),
        ({"sharpen": "l1", "strength": 1.0}, "sharpen must be '' or 'entropy'.*got 'l1'"),
        ({"schedule": "cosine"}, "schedule must be 'constant' or 'linear' or 'oscillating'"),
        ({"shared": "all"}, "shared must be 'nothing'"),
        ({"sharpen": "max"}, "needs a strength above 0.*strength=0.0"),
        ({"strength": 0.1}, "needs a strength above 0, and only it; got sharpen=''"),
        ({"network": "lstm", "sharpen": "max", "strength": 0.1}, "are for network='gpt'"),
        ({"network": "lstm", "shared": "weights"}, "are for network='gpt', got 'lstm'"),
        ({"batches": 3, "shared": "data"}, "set shared='nothing'"),
        ({"ignore": (1.5,)}, "probabilities must be from 0 to 1"),
        ({"length": 13}, "even number of tokens"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        trained.check(changed(**fields))


def test_bits_have_the_ids_that_the_languages_give_them():
    assert (WRITE, READ, IGNORE, ZERO, ONE) == (0, 1, 2, 3, 4)  # files and prompts rely on them
