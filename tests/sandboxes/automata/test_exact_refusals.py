"""What exact networks refuse, with the reason and the way out; and how far float32 goes."""

import dataclasses

import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata import Semiautomaton, make
from icl_jax.sandboxes.automata.exact.assembly import assemble
from icl_jax.sandboxes.automata.exact.cascades import unsolvable_subgroup
from icl_jax.sandboxes.automata.exact.checking import random_letters
from icl_jax.sandboxes.automata.exact.network import (
    CONSTRUCTIONS,
    ExactNetwork,
    exact_network,
    greatest_length,
)

# Solvable, but a later level of its cascade of holes is not.
SPURIOUS = Semiautomaton(
    "spurious", np.array([[3, 1, 5, 4, 2, 0], [0, 1, 2, 3, 2, 5], [5, 1, 2, 3, 4, 5]])
)


def test_an_unknown_construction_is_refused_with_the_closest_names():
    with pytest.raises(ConfigError, match=r"no construction 'solveable'; closest: solvable"):
        exact_network(make("D6"), 8, "solveable")


@pytest.mark.parametrize("construction", ["solvable", "cascade", "reset"])
def test_a_non_solvable_group_is_sent_to_the_prefix_construction(construction):
    message = r"A5: its letters generate a non-solvable group of 60 elements.*theorem 13.*"
    with pytest.raises(ConfigError, match=message + r"'prefix', ceil\(log2 T\) = 6 layers"):
        exact_network(make("A5"), 64, construction)


def test_a_row_of_one_letter_takes_one_prefix_layer():
    with pytest.raises(ConfigError, match=r"'prefix', ceil\(log2 T\) = 1 layers"):
        exact_network("A5", 1, "solvable")
    assert exact_network("A5", 1).sizes()["layers"] == 1


def test_a_counter_of_a_non_solvable_group_is_sent_to_the_prefix_construction():
    with pytest.raises(ConfigError, match=r"non-solvable group of 60 elements.*'prefix'"):
        exact_network("A5", 8, "counter")
    with pytest.raises(ConfigError, match="expected construction='solvable', 2 layers"):
        exact_network("D6", 8, "counter")


def test_five_states_can_be_non_solvable_in_a_part_that_letters_do_not_permute():
    a5 = make("A5").point_delta_SP
    collapse = np.array([[0, 0, 1, 2, 3]])
    automaton = Semiautomaton("A5 and a collapse", np.concatenate([a5, collapse]))
    assert unsolvable_subgroup(automaton) == 60
    with pytest.raises(ConfigError, match="60 elements"):
        exact_network(automaton, 8, "cascade")


def test_a_level_that_is_not_solvable_by_the_decomposition_alone_is_told_apart():
    assert unsolvable_subgroup(SPURIOUS) is None
    with pytest.raises(ConfigError, match=r"spurious is solvable, but level \d of its cascade"):
        exact_network(SPURIOUS, 8, "cascade")
    assert exact_network(SPURIOUS, 8).construction == "prefix"


@pytest.mark.parametrize(
    ("name", "construction", "message"),
    [
        ("D6", "counter", "abelian"), ("Grid4", "counter", "permute"),
        ("Grid4", "memory", "keep the state or set it"), ("Grid4", "reset", "take all of them"),
        ("abab", "gridworld", "is no grid"), ("Grid4", "dyck", "as the library makes it"),
        ("C2^8", "prefix", "expected at most 64 points"), ("flipflop", "solvable", "permute"),
        ("D6x", None, "there is no automaton"), (6, None, "the name of an automaton"),
    ],
)  # fmt: skip
def test_an_automaton_that_does_not_fit_is_refused(name, construction, message):
    with pytest.raises(ConfigError, match=message):
        exact_network(name, 8, construction)


def test_a_grid_that_starts_inside_is_refused_by_the_construction_for_grids():
    inside = dataclasses.replace(make("Grid4"), start=2)
    with pytest.raises(ConfigError, match="starts at the lower ends, state 0, got state 2"):
        exact_network(inside, 8, "gridworld")


def test_brackets_of_other_rules_than_the_librarys_are_refused():
    every = dataclasses.replace(make("Dyck(2,2)"), legal_QS=np.ones((7, 4), bool))
    with pytest.raises(ConfigError, match="as the library makes it"):
        exact_network(every, 8, "dyck")


@pytest.mark.parametrize("length", [0, 8.0, "8"])
def test_a_length_that_is_no_number_of_letters_is_refused(length):
    with pytest.raises(ConfigError, match="length must be a whole number of letters, at least 1"):
        exact_network("C3", length)


def test_networks_with_too_many_weights_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr("icl_jax.sandboxes.automata.exact.network.MOST_WEIGHTS", 5000)
    with pytest.raises(ConfigError, match=r"85 wide, 18,\d+ weights; expected at most 5,000"):
        exact_network("D6", 20, "solvable")
    assert exact_network("C3", 20).construction == "counter"


def test_where_nothing_applies_every_reason_has_a_line():
    moves = np.tile(np.arange(65), (4, 1))
    moves[:3, :5] = make("A5").point_delta_SP
    moves[3, 1] = 0
    with pytest.raises(ConfigError, match="no construction applies to large at T = 4") as caught:
        exact_network(Semiautomaton("large", moves), 4)
    assert len(str(caught.value).splitlines()) == 1 + len(CONSTRUCTIONS)


def test_rows_that_the_network_was_not_built_for_are_refused():
    network = exact_network(make("C3"), 5)
    with pytest.raises(ConfigError, match="rows of 1 to 5 letters"):
        network.states(np.zeros((2, 6), np.int64))
    with pytest.raises(ConfigError, match="letters 0 to 2, got 0 to 7"):
        network.states(np.array([[0, 7]]))
    with pytest.raises(ConfigError, match="at least 1"):
        exact_network(make("C3"), 0)


def test_brackets_that_no_legal_string_has_are_refused():
    network = exact_network(make("Dyck(2,2)"), 4)
    with pytest.raises(ConfigError, match="only a, b, A may come"):
        network.states(np.array([[0, 1, 3, 3]]))  # a b B B


def test_float32_holds_for_grids_to_40_letters_but_not_to_100():
    grid = make("Grid4")
    letters_BT = random_letters(grid, 64, 40, seed=0)
    network = exact_network(grid, 40, "gridworld", "float32")
    np.testing.assert_array_equal(network.states(letters_BT), grid.run(letters_BT))
    with pytest.raises(ConfigError, match=r"float32.*sure to hold to T = \d+; use dtype='float64'"):
        exact_network(grid, 100, "gridworld", "float32")


@pytest.mark.parametrize(
    ("name", "construction", "below"),
    [("Grid4", "gridworld", 100), ("C8", "counter", 300), ("D6", "solvable", 100)],
)
def test_the_longest_rows_that_float32_accepts_have_no_wrong_state(name, construction, below):
    automaton = make(name)
    longest = greatest_length(automaton, construction, "float32", below)
    assert 1 < longest < below - 1
    letters_BT = random_letters(automaton, 64, longest, seed=3)
    network = exact_network(automaton, longest, construction, "float32")
    np.testing.assert_array_equal(network.states(letters_BT), automaton.run(letters_BT))
    with pytest.raises(ConfigError, match=f"to T = {longest}"):
        exact_network(automaton, longest + 1, construction, "float32")


def test_float32_far_beyond_that_is_wrong():
    automaton = make("S4")
    draft = CONSTRUCTIONS["solvable"](automaton, 100)
    model, pads = assemble(draft, "float32"), tuple(draft.pad_tokens.tolist())
    network = ExactNetwork(automaton, "solvable", 100, model, pads, draft.bounds)
    letters_BT = random_letters(automaton, 32, 100, seed=0)
    assert (network.states(letters_BT) != automaton.run(letters_BT)).any()
