"""The check of exact networks: it tries every string once, and finds what is wrong."""

import pickle

import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata import make
from icl_jax.sandboxes.automata.exact import checking
from icl_jax.sandboxes.automata.exact.checking import check, count_wrong, find, plan, random_letters
from icl_jax.sandboxes.automata.exact.network import exact_network


def test_every_string_is_tried_once(monkeypatch):
    monkeypatch.setattr(checking, "MOST_ROWS", 20)  # so that strings branch after two letters
    network = exact_network(make("C3"), 6)
    result = count_wrong(network, all_to=5, random_rows=8, random_length=6)
    assert result["strings"] == sum(3**n for n in range(1, 6))
    assert result["wrong_states"] == 0
    assert (result["automaton"], result["construction"], result["layers"]) == ("C3", "counter", 1)


def test_only_legal_strings_are_tried(monkeypatch):
    monkeypatch.setattr(checking, "MOST_ROWS", 20)
    result = count_wrong(exact_network(make("Dyck(2,1)"), 6), 5, 8, 6)
    # Of one type: opens and closes between heights 0 and 2.
    assert result["strings"] == 1 + 2 + 2 + 4 + 4
    assert result["wrong_states"] == 0


def test_wrong_states_are_counted(monkeypatch):
    right = exact_network
    wrong = make("D6")
    other = wrong.delta_SQ.copy()
    other[0, [0, 2]] = other[0, [2, 0]]

    def build(automaton, *rest):
        network = right(automaton, *rest)
        # The network follows D6, the automaton it is compared with moves otherwise in two states.
        object.__setattr__(automaton, "delta_SQ", other)
        return network

    monkeypatch.setattr(checking, "exact_network", build)
    network = right(make("D6"), 5, "solvable")
    result = count_wrong(network, all_to=4, random_rows=8, random_length=5)
    assert 0 < result["wrong_states"] < sum(n * 2**n for n in range(1, 5)) + 40


def test_more_strings_than_8_to_the_7_shorten_the_exhaustive_part(monkeypatch):
    monkeypatch.setattr(checking, "MOST_STRINGS", 100)
    result = count_wrong(exact_network(make("C3"), 6), random_rows=4, random_length=6)
    assert (result["all_to"], result["strings"]) == (4, 3 + 9 + 27 + 81)


def test_longer_random_rows_than_the_network_has_places_for_are_refused():
    with pytest.raises(ConfigError, match="at most 6 letters"):
        count_wrong(exact_network(make("C3"), 6))


def test_the_plan_has_every_construction_and_automata_that_exist():
    entries = plan()
    assert len(entries) == len(set(entries)) > 35
    assert all(find(name).num_states for name, _ in entries)
    pickle.dumps((check, entries))


def test_an_entry_of_the_plan_runs_on_its_own():
    result = check("memory4", "memory", length=9)
    assert (result["wrong_states"], result["random_rows"]) == (0, 1000)
    assert result["bounds"]["width"] == (4, "4")
    pickle.dumps(result)


def test_random_letters_are_legal_and_use_every_letter():
    automaton = make("Dyck(2,2)")
    letters_BT = random_letters(automaton, 50, 12, seed=0)
    automaton.run(letters_BT)
    assert set(np.unique(letters_BT)) == set(range(4))
