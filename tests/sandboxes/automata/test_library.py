"""Each automaton against a definition of its own: stacks, matrices, steps, a regular expression."""

import itertools
import math
import re

import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata import Semiautomaton, make, names
from icl_jax.sandboxes.automata.library import (
    INDIRECT,
    OTHERS,
    PUBLISHED,
    alternating,
    cascade,
    cyclic,
    cyclic_power,
    dihedral,
    dyck,
    grid,
    indirect,
    memory,
    permutation_reset,
    product,
    symmetric,
)


def random_letters(automaton, rows=7, length=23, seed=0):
    """Rows of letters, legal ones if the automaton says which."""
    rng = np.random.default_rng(seed)
    letters = rng.integers(0, automaton.num_letters, (rows, length))
    if automaton.legal_QS is not None:
        for row in letters:
            state = automaton.start
            for t in range(length):
                row[t] = rng.choice(np.flatnonzero(automaton.legal_QS[state]))
                state = automaton.delta_SQ[row[t], state]
    return letters


def walk(automaton):
    """(letters, states) of random rows, as lists."""
    letters = random_letters(automaton)
    return list(zip(letters.tolist(), automaton.run(letters).tolist(), strict=True))


# Sizes.

SIZES = {  # states, letters, classes: Liu 2024, 3.4.5.1
    "Dyck(4,2)": (31, 4, 81), "Grid4": (4, 2, 4), "Grid9": (9, 2, 9),
    **{f"C{n}": (n, n, n) for n in range(2, 9)},
    "C2^2": (4, 4, 4), "C2^3": (8, 8, 8), "D6": (6, 2, 6), "D8": (8, 2, 8), "Q8": (8, 4, 8),
    "A4": (12, 2, 12), "A5": (60, 3, 60), "S4": (24, 8, 24), "S5": (120, 8, 120),
    "flipflop": (2, 3, 2), "memory4": (4, 5, 4), "Grid4+": (4, 3, 4), "Grid9+": (9, 3, 9),
    "Grid4xGrid4": (16, 5, 16), "abab": (5, 2, 5), "C2xC3": (6, 6, 6), "reset(D6)": (6, 8, 6),
}  # fmt: skip


@pytest.mark.parametrize("name", names())
def test_states_letters_and_classes_are_as_many_as_published(name):
    automaton = make(name)
    assert automaton.name == name
    found = (automaton.num_states, automaton.num_letters, automaton.num_labels)
    assert found == SIZES[name]
    reached = {automaton.start}
    while True:  # no state is idle
        further = reached | set(automaton.delta_SQ[:, sorted(reached)].reshape(-1).tolist())
        if further == reached:
            break
        reached = further
    assert len(reached) == automaton.num_states
    start_over = name == "abab"
    assert automaton.start == (3 if start_over else 0)


def test_every_published_automaton_has_a_name():
    assert names() == [*SIZES] and len(PUBLISHED) == 19 and len(OTHERS) == 8


# Counters.


def test_cyclic_groups_add_up():
    for n in (2, 3, 7):
        for letters, states in walk(cyclic(n)):
            assert states == [sum(letters[: t + 1]) % n for t in range(len(letters))]


def test_powers_of_a_cyclic_group_add_digit_by_digit():
    for n, k in ((2, 2), (2, 3), (3, 2)):
        automaton = cyclic_power(n, k)
        for letters, states in walk(automaton):
            digits = [[int(d) for d in automaton.letters[a]] for a in letters]
            sums = np.cumsum(digits, axis=0) % n
            assert [automaton.states[q] for q in states] == ["".join(map(str, s)) for s in sums]
    xor = cyclic_power(2, 3)
    assert (xor.delta_SQ == np.bitwise_xor(*np.indices((8, 8)))).all()


# Groups.


@pytest.mark.parametrize("order", [4, 6, 8, 14])
def test_dihedral_groups_walk_a_ring_back_and_forth(order):
    n, automaton = order // 2, dihedral(order)
    for letters, states in walk(automaton):
        place, direction, expected = 0, 1, []
        for letter in letters:
            if automaton.letters[letter] == "advance":
                place = (place + direction) % n
            else:
                direction = -direction
            expected.append(f"{place}{'+' if direction > 0 else '-'}")
        assert [automaton.states[q] for q in states] == expected


def test_quaternions_multiply_as_matrices_do():
    one, i = np.eye(2, dtype=complex), np.diag([1j, -1j])
    j = np.array([[0, 1], [-1, 0]], complex)
    units = {"1": one, "i": i, "j": j, "k": i @ j}
    matrices = units | {f"-{name}": -matrix for name, matrix in units.items()}
    automaton = make("Q8")
    for letters, states in walk(automaton):
        value = one
        for letter, state in zip(letters, states, strict=True):
            value = value @ units[automaton.letters[letter]]  # on the right
            np.testing.assert_array_equal(value, matrices[automaton.states[state]])


@pytest.mark.parametrize("name", ["S3", "S4", "S5", "A4", "A5"])
def test_permutations_act_one_after_the_other_on_the_points(name):
    automaton = make(name)
    n = int(name[1])
    for letters, states in walk(automaton):
        points = list(range(n))  # where each point is
        for letter, state in zip(letters, states, strict=True):
            points = [automaton.point_delta_SP[letter][x] for x in points]
            assert automaton.image_QP[state].tolist() == points
            assert automaton.states[state] == "".join(str(x + 1) for x in points)
    assert automaton.letters == tuple(
        "".join(str(x + 1) for x in move) for move in automaton.point_delta_SP
    )


def test_letters_of_the_symmetric_group_are_a_cycle_a_transposition_and_others_in_order():
    for n in (4, 5):
        letters = [tuple(move) for move in symmetric(n).point_delta_SP.tolist()]
        assert letters[0] == (*range(1, n), 0) and letters[1] == (1, 0, *range(2, n))
        assert len(set(letters)) == 8 and tuple(range(n)) not in letters
        assert letters[2:] == sorted(letters[2:])
        rest = [p for p in itertools.permutations(range(n)) if p not in letters[:2]]
        assert letters[2:] == rest[1:7]  # the first of them is the identity
    assert symmetric(5, generators=5).num_letters == 5
    assert [symmetric(n).num_letters for n in (2, 3)] == [1, 5]  # as many as there are


def test_letters_of_the_alternating_group_are_its_3_cycles_of_1_and_2():
    combinatorics = pytest.importorskip("sympy.combinatorics", reason="needs sympy")
    for n in (3, 4, 5, 6):
        cycles = [combinatorics.Permutation([[0, 1, i]], size=n) for i in range(2, n)]
        assert alternating(n).point_delta_SP.tolist() == [cycle.array_form for cycle in cycles]


# Memory.


@pytest.mark.parametrize(("depth", "types"), [(1, 1), (4, 2), (2, 3), (4, 8)])
def test_dyck_is_a_stack(depth, types):
    automaton = dyck(depth, types)
    assert automaton.num_states == sum(types**i for i in range(depth + 1))
    assert automaton.num_labels == (types + 1) ** depth
    for letters, states in walk(automaton):
        stack = []
        for letter, state in zip(letters, states, strict=True):
            if letter < types:
                stack.append(letter)
            else:
                assert stack.pop() == letter - types
            assert len(stack) <= depth
            shown = "".join("abcdefghijklmnopqrstuvwxyz"[kind] for kind in stack)
            assert automaton.states[state] == (shown or "empty")
            label, cells = automaton.label_Q[state], []
            for _ in range(depth):  # digits in base types + 1, bottom first
                label, cell = divmod(label, types + 1)
                cells.append(cell)
            assert label == 0 and cells == [kind + 1 for kind in stack] + [0] * (depth - len(stack))


def test_in_dyck_every_open_bracket_and_the_one_close_are_legal():
    automaton = dyck(3, 2)
    for stack, legal_S in zip(automaton.states, automaton.legal_QS, strict=True):
        height = 0 if stack == "empty" else len(stack)
        expected = [a for a in "ab" if height < 3]
        expected += [stack[-1].upper()] if height else []
        assert [automaton.letters[a] for a in np.flatnonzero(legal_S)] == expected


def test_grids_stop_at_their_ends():
    for n, name in ((2, "Grid2"), (4, "Grid4"), (9, "Grid9+")):
        automaton = make(name)
        steps = {"L": -1, "R": 1, "-": 0}
        for letters, states in walk(automaton):
            place = 0
            for letter, state in zip(letters, states, strict=True):
                place = min(max(place + steps[automaton.letters[letter]], 0), n - 1)
                assert state == place
    assert make("Grid4").letters == ("L", "R") and make("Grid4+").letters == ("L", "R", "-")


def test_in_a_plane_a_step_goes_along_one_of_two_grids():
    automaton = make("Grid3xGrid5")
    steps = {"left": (-1, 0), "right": (1, 0), "down": (0, -1), "up": (0, 1), "stay": (0, 0)}
    for letters, states in walk(automaton):
        place = np.zeros(2, int)
        for letter, state in zip(letters, states, strict=True):
            place = np.clip(place + steps[automaton.letters[letter]], 0, (2, 4))
            assert automaton.states[state] == f"{place[0]},{place[1]}"


def test_memory_keeps_what_was_written_last():
    for automaton in (memory(4), make("flip-flop")):
        for letters, states in walk(automaton):
            kept = 0
            for letter, state in zip(letters, states, strict=True):
                name = automaton.letters[letter]
                kept = kept if name == "-" else int(name.removeprefix("write "))
                assert state == kept


def test_abab_accepts_its_regular_expression_and_sinks_where_no_prefix_is_left():
    automaton = make("abab")
    prefix = re.compile(r"(abab)*(a|ab|aba)?")
    for text in map("".join, itertools.product("ab", repeat=9)):
        letters = np.array([["ab".index(letter) for letter in text]])
        states = automaton.run(letters)[0]
        for t, state in enumerate(states):
            read = text[: t + 1]
            assert (state == 4) == (prefix.fullmatch(read) is None)
            if state != 4:  # 0, 1, 2, 3 for a, ab, aba, abab
                assert state == t % 4
            assert (state == 3) == (re.fullmatch(r"(abab)+", read) is not None)
    text = "abababaaabab"  # the example of 3.4.5.2.1
    states = automaton.run(np.array([["ab".index(letter) for letter in text]]))[0]
    assert "".join(map(str, states)) == "012301244444"


# Several together.


def test_a_product_moves_both_and_each_may_stay():
    first, second = make("Grid3"), make("C4")
    both = product(first, second)
    assert both.num_letters == 3 * 4  # left, right, stay; the 0 of C4 is its stay
    assert both.name == "Grid3xC4" and both.start == 0
    assert both.letters[0] == "-,-" and (both.delta_SQ[0] == np.arange(12)).all()
    assert [*both.letters][:4] == ["-,-", "-,1", "-,2", "-,3"]
    for letters, states in walk(both):
        q, p = first.start, second.start
        for letter, state in zip(letters, states, strict=True):
            one, other = both.letters[letter].split(",")
            q = q if one == "-" else first.delta_SQ[first.letters.index(one), q]
            p = p if other == "-" else second.delta_SQ[second.letters.index(other), p]
            assert both.states[state] == f"{first.states[q]},{second.states[p]}"


def test_a_product_begins_where_both_begin():
    both = product(make("abab"), make("Grid3"))
    assert both.states[both.start] == "3,0"
    assert both.letters[0] == "-,-" and (both.delta_SQ[0] == np.arange(15)).all()


def test_permutation_reset_adds_a_letter_that_sets_each_state():
    group = make("D6")
    automaton = permutation_reset(group)
    assert automaton.num_letters == group.num_letters + group.num_states
    np.testing.assert_array_equal(automaton.delta_SQ[:2], group.delta_SQ)
    for state in range(6):
        assert automaton.letters[2 + state] == f"reset {group.states[state]}"
        assert (automaton.delta_SQ[2 + state] == state).all()
    with pytest.raises(ConfigError, match=r"reset\(Grid4\): every letter must permute"):
        make("reset(Grid4)")


def test_a_cascade_is_its_levels_reading_one_another():
    # A counter modulo 3; where it was 2, the letter is written; where both agreed, a third counts.
    levels = [cyclic(3), memory(2), Semiautomaton("count", [[0, 1], [1, 0]], start=1)]
    wires = [
        lambda letter: letter,
        lambda letter, q: 1 + letter if q == 2 else 0,
        lambda letter, q, p: int(q == p),
    ]
    automaton = cascade("three", levels, wires, num_letters=2)
    assert (automaton.num_states, automaton.num_letters) == (12, 2)
    assert automaton.states[automaton.start] == "0,0,1"
    for letters, states in walk(automaton):
        q, p, r = 0, 0, 1
        for letter, state in zip(letters, states, strict=True):
            q, p, r = (q + letter) % 3, letter if q == 2 else p, 1 - r if q == p else r
            assert automaton.states[state] == f"{q},{p},{r}"


# What is seen.


@pytest.mark.parametrize("name", INDIRECT)
def test_what_is_seen_is_what_the_experiment_says(name):
    automaton = indirect(name)
    classes = {"Dyck(4,8) top": 9, "S5 first": 5, "D8 place": 4}.get(name, 2)
    assert automaton.name == name and automaton.num_labels == classes
    seen = {
        "Dyck(4,8) top": lambda q: 0 if q == "empty" else "abcdefgh".index(q[-1]) + 1,
        "Grid9 boundary": lambda q: q in ("0", "8"),
        "S5 first": lambda q: q.index("1"),
        "C4 zero": lambda q: q == "0",
        "D8 place": lambda q: int(q[0]),
        "abab 1": lambda q: q == "3",
        "abab 2": lambda q: q == "3",
    }[name]
    assert automaton.label_Q.tolist() == [int(seen(q)) for q in automaton.states]


@pytest.mark.parametrize("name", list(INDIRECT))
def test_what_is_seen_does_not_tell_how_it_goes_on(name):
    """Else it would be an automaton of its own, seen in full."""
    automaton = indirect(name)
    following = {}
    for letter, state in np.ndindex(automaton.delta_SQ.shape):
        if automaton.legal_QS is None or automaton.legal_QS[state, letter]:
            after = int(automaton.label_Q[automaton.delta_SQ[letter, state]])
            following.setdefault((letter, int(automaton.label_Q[state])), set()).add(after)
    assert any(len(labels) > 1 for labels in following.values())


# Names.


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("Dyck_{4,2}", "Dyck(4,2)"), ("dyck4,2", "Dyck(4,2)"), ("grid_9", "Grid9"),
        ("(abab)*", "abab"), ("flip-flop", "flipflop"), ("C_2^3", "C2^3"), (" D 6 ", "D6"),
        ("memory2", "flipflop"), ("d6", "D6"), ("GRID9+", "Grid9+"),
        ("Reset(c2XC3)", "reset(C2xC3)"),
        ("C2xC3xC2", "C2x(C3xC2)"), ("C2 x C3", "C2xC3"),
    ],
)  # fmt: skip
def test_a_name_is_read_in_every_spelling(name, other):
    ours = make(name)
    if "(C3" in other:  # the product of a product
        theirs = product(make("C2"), make("C3xC2"))
    else:
        theirs = make(other)
    np.testing.assert_array_equal(ours.delta_SQ, theirs.delta_SQ)
    assert ours.start == theirs.start


def test_products_of_names_with_parentheses_are_read():
    assert make("reset(C2)xreset(C3)").num_states == 6
    assert make("reset(C2xC3)xC4").num_letters == (6 + 6) * 4
    assert make("reset(C2xC3)").num_states == 6
    assert make("Grid4xC2").num_letters == 3 * 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("D66x", "there is no automaton 'D66x'; closest: D6"),
        ("Q9", "closest: Q8"),
        (
            "xyz",
            r"'xyz'; expected Dyck\(4,2\), Grid4, .*, or another of the forms Cn, ",
        ),
        (6, "the name of an automaton, as 'D6', got 6"),
        ("dick(4,2)", r"closest: Dyck\(4,2\)"),
        ("C2xfoo", "there is no automaton 'foo'"),
        ("reset(C2", r"closest: reset\(D6\)"),
        ("", "there is no automaton ''"),
        ("C1", "C1: n must be from 2 to 1000, got 1"),
        ("C1001", "n must be from 2 to 1000, got 1001"),
        ("C10^4", r"C10\^4: states must be from 2 to 1000, got 10000"),
        ("D7", "an even number of elements, got D7"),
        ("D2", "elements must be from 4 to 2000, got 2"),
        ("S7", "S7: n must be from 2 to 6, got 7"),
        ("A2", "A2: n must be from 3 to 6, got 2"),
        ("Dyck(0,2)", r"Dyck\(0,2\): depth must be from 1 to 12, got 0"),
        ("Dyck(3,27)", "types must be from 1 to 26, got 27"),
        ("Dyck(12,9)", "stacks must be from 1 to 5000"),
        ("Grid1", "Grid1: n must be from 2"),
        ("memory1", "memory1: m must be from 2"),
        ("Grid100xGrid100", "states must be from 4 to 5000, got 10000"),
        ("C100xC100", "C100xC100: states must be from 1 to 5000, got 10000"),
        ("C70xC70", "letters x states must be from 1 to 10000000, got 24010000"),
        ("C2xDyck(4,2)", r"C2xDyck\(4,2\): a product needs automata without rules"),
    ],
)
def test_wrong_names_and_sizes_are_refused_with_what_there_is(name, words):
    with pytest.raises(ConfigError, match=words):
        make(name)


def test_wrong_parts_are_refused_with_what_there_is():
    with pytest.raises(ConfigError, match=r"expected one of Dyck\(4,8\) top, Grid9 boundary.*'C5'"):
        indirect("C5")
    with pytest.raises(ConfigError, match="S5: generators must be from 2"):
        symmetric(5, generators=1)
    with pytest.raises(ConfigError, match="wide: states must be from 1 to 5000"):
        cascade("wide", [grid(100)] * 2, [lambda a: 0, lambda a, q: 0], 1)


def test_sizes_at_the_border_are_made():
    assert dyck(12, 1).num_states == 13
    assert symmetric(6).num_states == math.factorial(6)
    assert alternating(3).num_letters == 1
