"""Trained networks: what they read, what they are tested on, and that they learn."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.config import ConfigError, GPTConfig
from icl_jax.models.gpt import GPT
from icl_jax.sandboxes.automata import make
from icl_jax.sandboxes.automata.trained import (
    TEST_SEED,
    Right,
    Training,
    Trial,
    check,
    draw_test,
    fill_in,
    interleave,
    make_draw,
    make_test,
    measure_all,
    train,
)

TINY = {
    "layers": 1, "width": 8, "hidden": 8, "heads": 2, "batch": 8, "steps": 20, "seeds": 2,
}  # fmt: skip


def fields(training):
    return dataclasses.asdict(training)


def test_a_direct_batch_has_letters_in_and_states_out():
    training = Training("D6", 5, (), **TINY)
    task, offset = make_draw(training)(jax.random.key(0))
    assert offset is None and task.group_BT is None
    np.testing.assert_array_equal(task.targets_BT - 2, make("D6").run(task.inputs_BT))
    assert task.weights_BT.all()


def test_labels_are_revealed_with_their_probability_and_no_input_changes():
    training = Training("C2", 40, (), **TINY | {"batch": 100}, revealed=0.3)
    task, _ = make_draw(training)(jax.random.key(0))
    assert set(np.unique(task.weights_BT)) == {0.0, 1.0}
    assert abs(float(task.weights_BT.mean()) - 0.3) < 0.04
    whole, _ = make_draw(dataclasses.replace(training, revealed=1.0))(jax.random.key(0))
    np.testing.assert_array_equal(task.inputs_BT, whole.inputs_BT)


def test_a_shift_is_one_position_for_a_batch_from_0_to_its_limit():
    draw = make_draw(Training("C2", 4, (), **TINY, shift=3))
    offsets = [int(draw(jax.random.key(n))[1]) for n in range(60)]
    assert set(offsets) == {0, 1, 2, 3}


def test_what_is_learnt_is_the_label_or_the_state():
    task, _ = make_draw(Training("C4 zero", 6, (), **TINY))(jax.random.key(1))
    states = make("C4").run(task.inputs_BT)
    np.testing.assert_array_equal(task.targets_BT - 4, states == 0)
    task, _ = make_draw(Training("C4 zero", 6, (), **TINY, learn="states"))(jax.random.key(1))
    np.testing.assert_array_equal(task.targets_BT - 4, states)


def test_a_scratchpad_row_has_letters_and_states_in_turn_and_is_graded_after_letters():
    task, _ = make_draw(Training("C3", 4, (), **TINY, form="scratchpad"))(jax.random.key(2))
    letters, written = task.inputs_BT[:, ::2], task.inputs_BT[:, 1::2]
    states = make("C3").run(letters)
    assert task.inputs_BT.shape == (8, 7)
    np.testing.assert_array_equal(written - 3, states[:, :-1])
    np.testing.assert_array_equal(task.targets_BT[:, ::2] - 3, states)
    np.testing.assert_array_equal(task.weights_BT[0], [1, 0, 1, 0, 1, 0, 1])


def test_a_filled_scratchpad_is_that_of_one_forward_pass_after_another():
    config = GPTConfig(
        vocab_size=5, context_length=9, num_layers=2, embed_dim=8, num_heads=2, position="alibi",
        tie_head=False,
    )  # fmt: skip
    model = GPT(config, rngs=nnx.Rngs(params=3))
    model.head.rows[...] *= 50.0  # far from ties
    letters = np.random.default_rng(0).integers(0, 2, (6, 5)).astype(np.int32)
    written = np.zeros((6, 0), np.int32)
    for t in range(5):
        row = np.zeros((6, 2 * t + 1), np.int32)
        row[:, ::2], row[:, 1::2] = letters[:, : t + 1], 2 + written
        chosen = np.argmax(model(row)[:, -1, 2:], axis=-1).astype(np.int32)
        written = np.concatenate([written, chosen[:, None]], axis=1)
    assert len(np.unique(written)) > 1
    np.testing.assert_array_equal(fill_in(model, jnp.array(letters), 2), written)


def test_a_scratchpad_network_is_tested_on_what_it_wrote_itself():
    training = Training("C7", 6, (), **TINY, form="scratchpad", position="alibi")
    model = GPT(training.model(), rngs=nnx.Rngs(params=1))
    attention = model.blocks[0].attention
    for kernel in (model.token_embedding.rows, attention.value.kernel, attention.out.kernel):
        kernel[...] *= 30.0  # so that what is read matters
    test = Trial(6, rows=40)
    right_BT = make_test(training, test)(model, jnp.ones(7)).right_BT.reshape(40, 6)
    (key,) = jax.random.split(jax.random.fold_in(jax.random.key(TEST_SEED), 6), 1)
    rows = draw_test(make("C7"), test, 40, key, jnp.ones(7))
    written_BT = fill_in(model, rows["letters"], 7)
    np.testing.assert_array_equal(right_BT, written_BT == rows["labels"])
    unwritten_BT = jnp.argmax(model(rows["letters"])[..., 7:], axis=-1)
    assert (written_BT != unwritten_BT).any()


def test_dropout_is_of_all_rates_and_acts_in_training():
    dropped, plain = Training("C2", 4, (), **TINY, dropout=0.25), Training("C2", 4, (), **TINY)
    assert dropped.recipe().dropout and not plain.recipe().dropout
    rates = ("embedding_dropout", "attention_dropout", "residual_dropout")
    assert {getattr(dropped.model(), rate) for rate in rates} == {0.25}
    assert {getattr(plain.model(), rate) for rate in rates} == {0.0}


def test_interleaving_leaves_out_the_last_of_the_second():
    made = interleave(jnp.array([[1, 2, 3]]), jnp.array([[7, 8, 9]]))
    assert made.tolist() == [[1, 7, 2, 8, 3]]


def test_test_rows_have_the_share_of_ones_or_every_number_of_them():
    automaton, key = make("C2"), jax.random.key(0)
    rare = draw_test(automaton, Trial(20, ones=0.1), 500, key, jnp.array([0.9, 0.1]))
    assert abs(float(rare["letters"].mean()) - 0.1) < 0.02
    counted = draw_test(automaton, Trial(6, by_count=True), 2000, key, jnp.ones(2))
    counts = np.bincount(np.asarray(counted["letters"]).sum(axis=1), minlength=7)
    assert abs(counts / 2000 - 1 / 7).max() < 0.04
    np.testing.assert_array_equal(counted["labels"], automaton.run(counted["letters"]))
    assert len(np.unique(counted["letters"][:, 0])) == 2  # in any order


def test_accuracies_are_of_prefixes_whole_rows_positions_and_numbers_of_ones():
    random = np.random.default_rng(0)
    right = random.random((2, 3, 4, 5)) < 0.8  # seeds, chunks, rows, letters
    ones = np.tile(random.integers(0, 6, (3, 4)), (2, 1, 1))  # the same rows for every seed

    class Measured:
        def of_each_seed(self, measure):
            return lambda weights: Right(right, ones)

    training = Training("C2", 5, (Trial(5, (2,), by_count=True),), **TINY)
    found = measure_all(training, Measured())
    assert [*found] == ["T=2 by count", "T=5 by count"]
    for place, rows_BT in enumerate(right.reshape(2, 12, 5)):
        for length in (2, 5):
            own = found[f"T={length} by count"]
            assert own["accuracy"][place] == pytest.approx(rows_BT[:, :length].mean())
            whole = [all(row[:length]) for row in rows_BT]
            assert own["whole_rows"][place] == pytest.approx(np.mean(whole))
        np.testing.assert_allclose(own["by_position"][place], rows_BT.mean(axis=0), atol=1e-5)
        for count in set(ones[0].flat):
            expected = rows_BT[ones[0].reshape(-1) == count].mean()
            assert own["by_count"][count][place] == pytest.approx(expected, abs=1e-5)


@pytest.fixture(scope="module")
def parity(tmp_path_factory):
    """A recurrent network that learnt parity, and all that was measured of it."""
    folder = tmp_path_factory.mktemp("parity")
    tests = (
        Trial(12, (3, 6), rows=256),
        Trial(6, ones=0.9, rows=256),
        Trial(6, by_count=True, rows=512),
    )
    training = Training(
        "C2", 6, tests, network="lstm", layers=1, width=8, hidden=24, batch=64, steps=300, seeds=3,
        learning_rate=2e-2, weight_decay=0.0,
    )  # fmt: skip
    with jax.numpy_dtype_promotion("standard"):
        return train(folder, **fields(training)), folder


def test_an_lstm_finds_parity_and_keeps_it_at_other_lengths_and_shares(parity):
    tests = parity[0]["tests"]
    for name in ("T=3", "T=6", "T=12", "T=6 ones=0.9"):
        assert min(tests[name]["accuracy"]) > 0.99, name
    assert len(tests["T=12"]["by_position"]) == 3 and len(tests["T=12"]["by_position"][0]) == 12
    assert np.array(tests["T=6 by count"]["by_count"]).shape == (7, 3)
    assert min(tests["T=12"]["whole_rows"]) <= min(tests["T=12"]["accuracy"])


def test_nothing_unfinished_is_left_behind(parity):
    assert not (parity[1] / "unfinished.npz").exists()
    assert parity[0]["losses"][0][0] > 10 * parity[0]["losses"][0][-1]


def test_a_network_that_saw_the_states_is_tested_on_what_is_seen_of_them(tmp_path):
    with jax.numpy_dtype_promotion("standard"):
        results = train(
            tmp_path,
            **fields(
                Training(
                    "C4 zero", 3, (Trial(3, rows=128),), network="lstm", layers=1, width=8,
                    hidden=24, batch=64, steps=300, seeds=1, learning_rate=2e-2, learn="states",
                )
            ),
        )  # fmt: skip
    assert min(results["tests"]["T=3"]["accuracy"]) > 0.97


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"network": "rnn"}, "network must be gpt or lstm, got 'rnn'"),
        ({"form": "pad"}, "form must be direct or scratchpad"),
        ({"learn": "all"}, "learn must be labels or states"),
        ({"form": "scratchpad", "network": "lstm"}, "has its state already"),
        ({"form": "scratchpad", "learn": "states"}, "set learn='labels'"),
        ({"shift": 3, "network": "lstm"}, "an LSTM has none; set shift=0"),
        ({"automaton": "C3", "tests": (Trial(4, ones=0.5),)}, "needs an automaton of two letters"),
        ({"automaton": "D7"}, "even number"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        check(dataclasses.replace(Training("C2", 4, (), **TINY), **change))
