"""The check of exact networks: it tries every string once, and finds what is wrong."""

import dataclasses
import itertools
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


def follows_another(monkeypatch, at=lambda length: True):
    """Networks that follow D6 are compared with an automaton that moves otherwise in two states."""
    right, delta = exact_network, make("D6").delta_SQ.copy()
    delta[0, [0, 2]] = delta[0, [2, 0]]
    other = dataclasses.replace(make("D6"), delta_SQ=delta)

    def build(automaton, length, *rest):
        network = right("D6", length, *rest)
        return dataclasses.replace(network, automaton=other) if at(length) else network

    monkeypatch.setattr(checking, "exact_network", build)

    def differ(letters_BT):
        return make("D6").run(letters_BT) != other.run(letters_BT)

    return build, differ


@pytest.mark.parametrize("most_rows", [4, 4096], ids=["branching", "at once"])
def test_wrong_states_are_counted(most_rows, monkeypatch):
    monkeypatch.setattr(checking, "MOST_ROWS", most_rows)
    build, differ = follows_another(monkeypatch)
    result = count_wrong(build(None, 5, "solvable"), all_to=4, random_rows=8, random_length=5)
    wrong = sum(  # every string counts once, by the state after its last letter
        differ(np.array(list(itertools.product((0, 1), repeat=n))))[:, -1].sum()
        for n in range(1, 5)
    )
    in_rows = differ(random_letters(make("D6"), 8, 5, seed=0)).sum()
    assert wrong and in_rows
    assert result["wrong_states"] == wrong + in_rows


def test_prefix_networks_are_checked_at_a_longer_length_too(monkeypatch):
    monkeypatch.setattr(checking, "LONG", 11)
    assert check("D6", "prefix", length=8)["wrong_states"] == 0
    _, differ = follows_another(monkeypatch, at=lambda length: length == 11)
    wrong = check("D6", "prefix", length=8)["wrong_states"]
    assert wrong == differ(random_letters(make("D6"), 1000, 11, seed=1)).sum() > 0


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
