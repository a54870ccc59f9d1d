"""Rows are legal, uniform and the same for the same key; states follow from the letters."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from scipy.stats import chisquare

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata import Semiautomaton, make, names
from icl_jax.sandboxes.automata.library import dyck, indirect

# Three states in a ring: letter 0 stays, 1 moves on; in state 2 only 1 is legal.
RING = Semiautomaton("ring", np.array([[0, 1, 2], [1, 2, 0]]), letters=("stay", "on"))
ONE_WAY = Semiautomaton(
    "one way", RING.delta_SQ, letters=("stay", "on"), states=("a", "b", "c"),
    legal_QS=np.array([[1, 1], [1, 1], [0, 1]], bool),
)  # fmt: skip


def drawn(automaton, seed=0, batch=257, length=13, weights=None):
    return jax.device_get(automaton.sample(jax.random.key(seed), batch, length, weights))


def test_states_follow_one_letter_after_the_other():
    assert RING.run(np.array([[1, 0, 1, 1, 1]])).tolist() == [[1, 1, 2, 0, 1]]
    later = Semiautomaton("later", RING.delta_SQ, start=2)
    assert later.run(np.array([[1, 0], [0, 1]])).tolist() == [[0, 0], [2, 0]]


LATER = dataclasses.replace(ONE_WAY, name="later", start=2)


@pytest.mark.parametrize("name", ["Dyck(4,2)", "D6", "S4", "abab", "Grid4xGrid4", "later"])
def test_states_on_the_device_are_those_in_numpy(name):
    automaton = LATER if name == "later" else make(name)
    batch = drawn(automaton, batch=31)
    np.testing.assert_array_equal(automaton.run(batch["letters"]), batch["states"])
    np.testing.assert_array_equal(automaton.advance(batch["letters"]), batch["states"])
    np.testing.assert_array_equal(automaton.label_Q[batch["states"]], batch["labels"])
    assert {x.dtype.name for x in batch.values()} == {"int32"}
    assert {x.shape for x in batch.values()} == {(31, 13)}


def test_one_key_gives_one_batch_and_another_key_another():
    for automaton in (RING, ONE_WAY):
        one, same, other = (drawn(automaton, seed) for seed in (3, 3, 4))
        for name in one:
            np.testing.assert_array_equal(one[name], same[name])
        assert (one["letters"] != other["letters"]).mean() > 0.2
        assert (one["letters"][0] != one["letters"][1]).any()


@pytest.mark.parametrize("name", ["C5", "Q8", "Dyck(3,2)", "Dyck(4,2)"])
def test_letters_are_uniform_among_the_legal_ones_of_every_state(name):
    automaton = make(name)
    batch = drawn(automaton, batch=1024, length=24)
    before = np.pad(batch["states"], ((0, 0), (1, 0)), constant_values=automaton.start)[:, :-1]
    legal_QS = automaton.legal_QS
    if legal_QS is None:
        legal_QS = np.ones((automaton.num_states, automaton.num_letters), bool)
    counts_QS = np.zeros(legal_QS.shape)
    np.add.at(counts_QS, (before.reshape(-1), batch["letters"].reshape(-1)), 1)
    assert counts_QS.sum(axis=1).min() > 100  # every state was there
    assert not counts_QS[~legal_QS].any()
    p = [chisquare(row[ok]).pvalue for row, ok in zip(counts_QS, legal_QS, strict=True)
         if ok.sum() > 1]  # fmt: skip
    assert min(p) > 1e-3 / len(p)  # of one seed: a wrong distribution gives 1e-100


def test_letters_of_a_row_are_independent():
    letters = drawn(make("C3"), batch=2048, length=10)["letters"]
    pairs = np.bincount((3 * letters[:, :-1] + letters[:, 1:]).reshape(-1), minlength=9)
    assert chisquare(pairs).pvalue > 1e-4


def test_weights_are_the_shares_of_the_letters():
    letters = drawn(RING, batch=1024, length=16, weights=(1.0, 3.0))["letters"]
    assert abs(letters.mean() - 0.75) < 0.02  # 6 standard deviations
    assert drawn(RING, weights=(0.0, 2.0))["letters"].all()
    batch = drawn(ONE_WAY, batch=1024, length=16, weights=(3.0, 1.0))
    before = np.pad(batch["states"], ((0, 0), (1, 0)))[:, :-1]
    assert abs(batch["letters"][before < 2].mean() - 0.25) < 0.03
    assert batch["letters"][before == 2].all()  # the only legal one, whatever its weight


def test_weights_may_be_known_on_the_device_only():
    draw = jax.jit(lambda w: RING.sample(jax.random.key(0), 5, 7, w)["letters"])
    np.testing.assert_array_equal(draw(np.array([1.0, 3.0], "float32")),
                                  drawn(RING, 0, 5, 7, (1.0, 3.0))["letters"])  # fmt: skip


@pytest.mark.parametrize(
    ("automaton", "weights", "words"),
    [
        (RING, (1.0,), r"ring has 2 letters, got weights of shape \(1,\)"),
        (RING, (1.0, -1.0), "weights must be at least 0"),
        (RING, (np.nan, 1.0), "weights must be at least 0"),
        (RING, (0.0, 0.0), "needs a legal letter of positive weight"),
        (ONE_WAY, (1.0, 0.0), "needs a legal letter of positive weight"),
    ],
)
def test_weights_that_leave_no_letter_are_refused(automaton, weights, words):
    with pytest.raises(ConfigError, match=words):
        automaton.sample(jax.random.key(0), 2, 3, weights)


def test_a_share_of_the_rows_repeats_the_pattern():
    always = drawn(indirect("abab 1"), length=11)["letters"]
    assert (always == np.arange(11) % 2).all()
    half = drawn(indirect("abab 2"), batch=1024, length=22)["letters"]
    assert abs((half == np.arange(22) % 2).all(axis=1).mean() - 0.5) < 0.1
    assert abs(half.mean() - 0.5) < 0.02
    never = drawn(make("abab"), batch=1024, length=22)["letters"]
    assert not (never == np.arange(22) % 2).all(axis=1).any()


@pytest.mark.parametrize("wrong", [(0, 5), (5, 0)])
def test_empty_batches_are_refused(wrong):
    with pytest.raises(ConfigError, match="at least 1 row of 1 letter"):
        RING.sample(jax.random.key(0), *wrong)


def test_illegal_letters_are_refused_by_row_and_place():
    letters = np.array([[0, 1, 1], [1, 1, 0]])
    with pytest.raises(ConfigError) as caught:
        ONE_WAY.run(letters)
    message = "one way: row 1 has 'stay' at place 2, but in the state 'c' only on may come"
    assert str(caught.value) == message
    for letters in np.array(list(itertools.product(range(4), repeat=3)))[:, None]:
        stack, legal = [], True  # Dyck(2,2): 0 and 1 open, 2 and 3 close
        for letter in letters[0]:
            if letter < 2:
                legal, stack = legal and len(stack) < 2, [*stack, letter]
            else:
                legal = legal and bool(stack) and stack[-1] == letter - 2
                stack = stack[:-1]
        if legal:
            dyck(2, 2).run(letters)
        else:
            with pytest.raises(ConfigError, match="may come"):
                dyck(2, 2).run(letters)


@pytest.mark.parametrize(
    ("letters", "words"),
    [
        ([[0, 2]], "ring has the letters 0 to 1, got 0 to 2"),
        ([[-1, 0]], "ring has the letters 0 to 1, got -1 to 0"),
        ([0, 1], r"integers \(batch, time\), got int64 of shape \(2,\)"),
        ([[0.0, 1.0]], "integers"),
    ],
)
def test_what_are_no_rows_of_letters_is_refused(letters, words):
    with pytest.raises(ConfigError, match=words):
        RING.run(np.array(letters))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"delta_SQ": np.array([[0, 2]])}, "states 0 to states - 1"),
        ({"delta_SQ": np.array([[0, -1]])}, "states 0 to states - 1"),
        ({"delta_SQ": np.array([[0.5, 1.0]])}, "got float64"),
        ({"delta_SQ": np.zeros((0, 3), int)}, r"shape \(0, 3\)"),
        ({"delta_SQ": np.array([0, 1])}, r"shape \(2,\)"),
        ({"start": 3}, "start must be a state from 0 to 2, got 3"),
        ({"letters": ("one",)}, "expected 2 names of letters, got 1"),
        ({"states": ("one",)}, "expected 3 names of states, got 1"),
        ({"label_Q": np.array([0, 1])}, "expected 3 labels, got 2"),
        ({"label_Q": np.array([0, 1, 5]), "num_labels": 3}, "labels must be from 0 to 2"),
        ({"legal_QS": np.ones((2, 3), bool)}, r"legal must be \(3, 2\), got \(2, 3\)"),
        ({"legal_QS": np.array([[1, 1], [0, 0], [1, 0]], bool)}, "every state needs a legal"),
        ({"pattern": (2,)}, "the pattern needs letters from 0 to 1"),
        ({"pattern": (1,), "pattern_share": 1.5}, "a share from 0 to 1"),
        ({"pattern_share": 0.5}, "needs the pattern"),
        ({"pattern": (1,), "pattern_share": 0.5, "legal_QS": np.ones((3, 2), bool)}, "may always"),
    ],
)
def test_automata_that_cannot_be_are_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        Semiautomaton(**({"name": "wrong", "delta_SQ": RING.delta_SQ} | fields))


def test_what_is_seen_of_a_state_is_a_function_of_it():
    seen = make("Grid4").observed("ends", lambda q: int(q in (0, 3)), 2)
    batch = drawn(seen)
    np.testing.assert_array_equal(batch["labels"], np.isin(batch["states"], (0, 3)))
    assert (seen.name, seen.num_labels, seen.num_states) == ("ends", 2, 4)


def test_names_and_numbers_are_filled_in():
    bare = Semiautomaton("bare", [[0, 1], [1, 0], [1, 1]])
    assert (bare.letters, bare.states) == (("0", "1", "2"), ("0", "1"))
    assert (bare.num_letters, bare.num_states, bare.num_labels) == (3, 2, 2)
    for name in names():
        automaton = make(name)
        assert len(set(automaton.letters)) == automaton.num_letters
        assert len(set(automaton.states)) == automaton.num_states
