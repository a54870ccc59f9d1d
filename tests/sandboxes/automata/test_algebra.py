"""Groups beside SymPy's, quotients by their laws, and cascades that replay what they stand for."""

import itertools
import math

import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata import Semiautomaton, make, names
from icl_jax.sandboxes.automata.algebra import (
    facts,
    generate,
    group,
    hole_cascade,
    is_group,
    is_permutation,
    is_permutation_reset,
    is_reset,
    semigroup,
)
from icl_jax.sandboxes.automata.library import dihedral, permutation_reset, product

GROUPS = [name for name in names() if is_group(make(name))]
# What is known of them: order, derived length (None: not solvable).
KNOWN = {
    "A4": (12, 2), "A5": (60, None), "S4": (24, 3), "S5": (120, None), "Q8": (8, 2), "D6": (6, 2),
    "D8": (8, 2), "C2xC3": (6, 1), "C2^2": (4, 1), "C2^3": (8, 1),
    **{f"C{n}": (n, 1) for n in range(2, 9)},
}  # fmt: skip


def sympy_group(automaton):
    combinatorics = pytest.importorskip("sympy.combinatorics", reason="needs sympy")
    moves = [move for move in automaton.delta_SQ.tolist() if is_permutation(move)]
    return combinatorics.PermutationGroup([combinatorics.Permutation(move) for move in moves])


@pytest.mark.parametrize("name", GROUPS)
def test_order_and_derived_series_are_those_of_sympy(name):
    automaton = make(name)
    ours, theirs = group(automaton), sympy_group(automaton)
    series = [len(members) for members in ours.derived_series]
    assert ours.order == theirs.order() and ours.solvable == theirs.is_solvable
    assert series == [part.order() for part in theirs.derived_series()]
    assert (ours.order, ours.derived_length) == KNOWN[name]
    for members, part in zip(ours.derived_series[:3], theirs.derived_series(), strict=False):
        assert {tuple(ours.maps_EQ[e]) for e in members} == {
            tuple(element.array_form) for element in part.elements
        }


@pytest.mark.parametrize("name", names())
def test_facts_of_every_automaton(name):
    automaton, found = make(name), facts(make(name))
    assert (found["name"], found["states"]) == (name, automaton.num_states)
    assert found["letters"] == automaton.num_letters
    assert found["is_group"] == (name in KNOWN)
    flips = {"flipflop", "memory4", "reset(D6)"}
    assert found["permutation_reset"] == (name in KNOWN or name in flips)
    inner = "D6" if name == "reset(D6)" else name
    assert (found["order"], found["derived_length"]) == KNOWN.get(inner, (1, 0))
    assert found["solvable"] == (found["derived_length"] is not None)
    assert found["derived_series"][0] == found["order"]
    counts = {
        "Dyck(4,2)": None,  # more than 20,000: its illegal letters change nothing
        "Grid4": maps_of_grid(4), "Grid9": maps_of_grid(9),
        "Grid4+": maps_of_grid(4) + 1, "Grid9+": maps_of_grid(9) + 1,
        # Each grid on its own, and each may stay.
        "Grid4xGrid4": (maps_of_grid(4) + 1) ** 2,
        "flipflop": 3, "memory4": 5, "reset(D6)": 6 + 6, "abab": 9,
    }  # fmt: skip
    assert found["semigroup"] == counts.get(name, found["order"])


def maps_of_grid(n):
    """What strings do to a grid: q goes to clip(q, low, high) + shift, but not to itself."""
    maps = {
        tuple(min(max(q, low), high) - low + place for q in range(n))
        for low in range(n) for high in range(low, n) for place in range(n - (high - low))
    }  # fmt: skip
    return len(maps - {tuple(range(n))})


@pytest.mark.parametrize("name", ["Grid4", "abab", "C5", "S3", "reset(C3)", "Grid3xC2"])
def test_the_semigroup_is_what_all_strings_do(name):
    automaton = make(name)
    found = semigroup(automaton)
    assert len(set(found)) == len(found)
    level, brute = {tuple(range(automaton.num_states))}, set()
    while level:  # strings of 1, 2, 3, ... letters, until nothing is new
        longer = {
            tuple(int(move[q]) for q in made) for made in level for move in automaton.delta_SQ
        }
        level = longer - brute
        brute |= longer
    assert set(found) == brute


def test_too_large_semigroups_and_groups_are_refused():
    with pytest.raises(ConfigError, match=r"Dyck\(4,2\): its letters make more than 50 maps of 31"):
        semigroup(make("Dyck(4,2)"), most=50)
    with pytest.raises(ConfigError, match="S7: its letters generate more than 2500"):
        generate([(1, 2, 3, 4, 5, 6, 0), (1, 0, 2, 3, 4, 5, 6)], 7, "S7")


def test_permutations_and_resets():
    assert is_permutation((2, 0, 1)) and not is_permutation((2, 0, 0))
    assert is_reset((2, 2, 2)) and not is_reset((2, 2, 1))
    assert not is_group(make("flipflop")) and is_permutation_reset(make("flipflop"))
    assert not is_permutation_reset(make("Grid4"))
    assert not is_group(permutation_reset(make("D6")))


@pytest.mark.parametrize("name", ["S4", "Q8", "D6"])
def test_products_are_maps_one_after_the_other(name):
    found = group(make(name))
    for g, f in itertools.product(range(found.order), repeat=2):
        after = found.maps_EQ[g][found.maps_EQ[f]]  # f first
        np.testing.assert_array_equal(found.maps_EQ[found.product_EE[g, f]], after)
    identity = np.arange(found.maps_EQ.shape[1])
    np.testing.assert_array_equal(found.maps_EQ[0], identity)
    for g, inverse in enumerate(found.inverse_E):
        np.testing.assert_array_equal(found.maps_EQ[g][found.maps_EQ[inverse]], identity)
        assert found.numbers[tuple(found.maps_EQ[g].tolist())] == g


def test_groups_of_letters_that_do_not_permute_are_those_of_the_others():
    assert group(make("reset(D6)")).order == 6
    assert group(make("Grid4")).order == group(make("Grid4+")).order == 1


@pytest.mark.parametrize("name", ["S4", "A4", "Q8", "D8", "D6", "S3xC4"])
def test_every_step_of_the_series_has_an_abelian_quotient(name):
    found = group(make(name))
    series = found.derived_series
    for whole, normal in itertools.pairwise(series):
        quotient = found.quotient(whole, normal)
        assert quotient.order == len(whole) // len(normal)
        assert quotient.section_K[0] == 0  # s(1) = 1
        for k, element in enumerate(quotient.section_K):
            assert quotient.coset_E[element] == k
        outside = np.setdiff1d(np.arange(found.order), whole)
        assert (quotient.coset_E[outside] == -1).all()
        assert set(np.flatnonzero(quotient.coset_E == 0)) == set(normal)
        for g, f in itertools.product(whole, repeat=2):  # pi is a homomorphism
            one, other = quotient.coset_E[[g, f]]
            made = quotient.coset_E[found.product_EE[g, f]]
            assert quotient.product_KK[one, other] == quotient.product_KK[other, one] == made
        for k in range(quotient.order):
            assert quotient.product_KK[k, quotient.inverse_K[k]] == 0


@pytest.mark.parametrize(
    ("name", "orders"),
    [
        ("C8", [8]), ("C2xC3", [6]), ("C2^3", [2, 2, 2]), ("C4xC2", [4, 2]), ("C6xC2", [6, 2]),
        ("C4xC6", [12, 2]), ("C8xC4xC2", [8, 4, 2]), ("C3^2", [3, 3]),
    ],
)  # fmt: skip
def test_the_basis_of_an_abelian_group_writes_every_element_once(name, orders):
    found = group(make(name))
    whole = np.arange(found.order)
    quotient = found.quotient(whole, np.zeros(1, int))
    assert [order for _, order in quotient.basis] == orders  # each divides the one before it
    assert len({tuple(row) for row in quotient.exponents_KR}) == found.order == math.prod(orders)
    for g, f in itertools.product(range(quotient.order), repeat=2):
        added = (quotient.exponents_KR[g] + quotient.exponents_KR[f]) % orders
        np.testing.assert_array_equal(quotient.exponents_KR[quotient.product_KK[g, f]], added)
    for place, (generator, _) in enumerate(quotient.basis):
        unit = np.eye(len(orders), dtype=int)[place]
        np.testing.assert_array_equal(quotient.exponents_KR[generator], unit)


def test_a_group_that_is_not_abelian_has_no_basis():
    found = group(dihedral(6))
    with pytest.raises(ConfigError, match="a quotient of 6 elements is not abelian"):
        _ = found.quotient(np.arange(6), np.zeros(1, int)).basis


def test_generated_subgroups_are_the_smallest_that_hold_their_elements():
    found = group(make("S4"))
    for elements in ([], [5], [7, 11], [1, 2]):
        moves = [tuple(found.maps_EQ[e].tolist()) for e in elements]
        expected = generate(moves, found.maps_EQ.shape[1])
        members = found.generated(np.array(elements, int))
        assert list(members) == sorted(members)
        assert {tuple(found.maps_EQ[e]) for e in members} == {tuple(m) for m in expected.maps_EQ}


# Cascades of holes.


def random_automaton(rng, states, letters):
    """Letters of every kind: permutations, resets and others."""
    kinds = [
        rng.permutation(states),
        np.full(states, rng.integers(states)),
        rng.integers(states, size=states),
        np.minimum(np.arange(states) + 1, states - 1),
    ]
    delta = np.array([kinds[rng.integers(4)] for _ in range(letters)])
    return Semiautomaton("random", delta, start=int(rng.integers(states)))


def replay(cascade, letters):
    """The states that its levels stand for, from the definition of a cascade alone."""
    contexts = [{c: n for n, c in enumerate(level.contexts)} for level in cascade.levels]
    now, out = [level.automaton.start for level in cascade.levels], []
    for letter in letters:
        before = tuple(now)
        for i, level in enumerate(cascade.levels):
            own = level.letter_CS[contexts[i][before[:i]], letter]
            now[i] = int(level.automaton.delta_SQ[own, before[i]])
        out.append(cascade.states[tuple(now)])
    return out


@pytest.mark.parametrize("seed", range(8))
def test_a_cascade_of_holes_replays_any_automaton(seed):
    rng = np.random.default_rng(seed)
    for _ in range(12):
        automaton = random_automaton(rng, int(rng.integers(1, 6)), int(rng.integers(1, 5)))
        cascade = hole_cascade(automaton)
        assert len(cascade.levels) <= max(1, automaton.num_states - 1)
        assert all(is_permutation_reset(level.automaton) for level in cascade.levels)
        starts = tuple(level.automaton.start for level in cascade.levels)
        assert cascade.states[starts] == automaton.start
        letters = rng.integers(automaton.num_letters, size=60)
        assert replay(cascade, letters) == automaton.run(letters[None])[0].tolist()


@pytest.mark.parametrize("name", ["Grid4", "Grid6+", "abab", "reset(C3)", "Dyck(2,2)", "Q8"])
def test_a_cascade_of_holes_replays_automata_of_the_library(name):
    automaton = make(name)
    cascade, rng = hole_cascade(automaton), np.random.default_rng(0)
    letters = np.zeros((1, 80), int)
    state = automaton.start
    for t in range(80):
        legal = np.ones(automaton.num_letters, bool)
        if automaton.legal_QS is not None:
            legal = automaton.legal_QS[state]
        letters[0, t] = rng.choice(np.flatnonzero(legal))
        state = automaton.delta_SQ[letters[0, t], state]
    assert replay(cascade, letters[0]) == automaton.run(letters)[0].tolist()


def test_a_grid_is_memory_alone_and_a_permutation_reset_automaton_one_level():
    cascade = hole_cascade(make("Grid5"))
    assert len(cascade.levels) == 4 and cascade.solvable
    for level in cascade.levels:
        assert group(level.automaton).order == 1
    for name in ("S5", "reset(D6)", "memory4"):
        assert len(hole_cascade(make(name)).levels) == 1
    assert not hole_cascade(make("S5")).solvable and hole_cascade(make("S4")).solvable


def test_levels_of_solvable_automata_of_up_to_5_states_are_solvable():
    rng, checked = np.random.default_rng(0), 0
    for _ in range(60):
        automaton = random_automaton(rng, 5, 3)
        cascade = hole_cascade(automaton)
        if group(automaton).solvable:
            assert cascade.solvable
            checked += 1
    assert checked > 30


def test_cascades_too_wide_are_refused(monkeypatch):
    monkeypatch.setattr("icl_jax.sandboxes.automata.algebra.MOST_CONTEXTS", 5)
    with pytest.raises(ConfigError, match="more than 5 joint states; choose fewer than 6 states"):
        hole_cascade(make("Grid6"))


def test_a_product_of_groups_has_the_product_of_their_orders():
    both = group(product(make("S3"), make("D8")))
    assert both.order == 6 * 8 and both.derived_length == 2
