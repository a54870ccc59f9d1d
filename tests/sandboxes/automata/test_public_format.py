"""Rows that `datasets` takes as they are; automata of synthseq/automata as its loader has them."""

import itertools

import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata import make, public, rows
from icl_jax.sandboxes.automata.library import permutation_reset, permutations
from icl_jax.sandboxes.automata.public_format import DRAWN_AT_ONCE, PUBLIC


def random_letters(automaton, length=40, seed=0):
    return np.random.default_rng(seed).integers(0, automaton.num_letters, length)


def labels(automaton, letters):
    return automaton.label_Q[automaton.run(np.asarray(letters)[None])[0]].tolist()


# What the loader computes, in words of our own.


def cumulative(letters, n):
    return (np.cumsum(letters) % n).tolist()


def clipped(letters, n):
    steps = itertools.accumulate(
        [0, *letters], lambda q, a: min(max(q + (1 if a else -1), 0), n - 1)
    )
    return list(steps)[1:]


def dihedral_labels(letters, n):
    reversed_ = np.cumsum(np.equal(letters, 0)) % 2
    place = np.cumsum(np.where(np.equal(letters, 0), 0, 1 - 2 * reversed_)) % n
    return (n * reversed_ + place).tolist()


def arrangements(letters, moves, n):
    """The row of chairs after each letter: matrices of permutations times a vector."""
    chairs, out = np.arange(n), []
    for letter in letters:
        chairs = np.eye(n, dtype=int)[list(moves[letter])] @ chairs
        out.append(tuple(chairs.tolist()))
    return out


def test_counters_and_grids_are_sums():
    for automaton, expected in (
        (public("parity"), lambda x: cumulative(x, 2)),
        (public("cyclic"), lambda x: cumulative(x, 5)),
        (public("cyclic", n=7, n_actions=4), lambda x: cumulative(x, 7)),
        (public("gridworld"), lambda x: clipped(x, 9)),
        (public("gridworld", n=4), lambda x: clipped(x, 4)),
        (public("dihedral"), lambda x: dihedral_labels(x, 4)),
        (public("dihedral", n=3), lambda x: dihedral_labels(x, 3)),
    ):
        letters = random_letters(automaton)
        assert labels(automaton, letters) == expected(letters), automaton.name
    assert public("cyclic").num_letters == 2


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (("parity", {}), "C2"), (("cyclic", {"n": 6, "n_actions": 6}), "C6"),
        (("gridworld", {"n": 4}), "Grid4"), (("gridworld", {}), "Grid9"), (("abab", {}), "abab"),
        (("quaternion", {}), "Q8"),
    ],
)  # fmt: skip
def test_these_are_ours_number_for_number(theirs, ours):
    name, settings = theirs
    np.testing.assert_array_equal(public(name, **settings).delta_SQ, make(ours).delta_SQ)
    assert public(name, **settings).start == make(ours).start


def test_quaternions_and_abab_have_the_published_tables():
    table = [[0, 1, 2, 3], [1, 4, 3, 6], [2, 7, 4, 1], [3, 2, 5, 4]]  # state x letter, positive
    table += [[(q + 4) % 8 for q in row] for row in table]
    np.testing.assert_array_equal(public("quaternion").delta_SQ.T, table)
    table = [[4, 1], [2, 4], [4, 3], [0, 4], [4, 4]]
    np.testing.assert_array_equal(public("abab").delta_SQ.T, table)


def test_a_quarter_of_the_rows_of_abab_repeats_it():
    def share(automaton):
        letters = np.stack([row["input_ids"] for row in rows(automaton, 22, 1024)])
        return (letters == np.arange(22) % 2).all(axis=1).mean()

    assert abs(share(public("abab")) - 0.25) < 0.08
    assert share(public("abab", prob_abab_pos_sample=1.0)) == 1 and share("abab") == 0


def test_the_flip_flop_is_memory_that_nothing_was_written_to():
    automaton = public("flipflop")
    assert (automaton.num_states, automaton.num_letters) == (3, 3)
    assert labels(automaton, [0, 0, 2, 0, 1, 1, 0, 2]) == [0, 0, 2, 2, 1, 1, 1, 2]
    letters = random_letters(public("flipflop", n=5), 200)
    theirs, ours = labels(public("flipflop", n=5), letters), labels(make("memory5"), letters)
    first = np.flatnonzero(letters)[0]  # from here on, they differ in the number alone
    assert theirs[:first] == [0] * first
    assert theirs[first:] == [value + 1 for value in ours[first:]]
    drawn = np.stack([r["input_ids"] for r in rows(automaton, 16, 1024, weights=(2, 1, 1))])
    np.testing.assert_allclose(np.bincount(drawn.reshape(-1)) / drawn.size, [0.5, 0.25, 0.25],
                               atol=0.02)  # fmt: skip


def test_the_dihedral_group_is_ours_with_other_numbers():
    theirs, ours = public("dihedral", n=5), make("D10")
    letters = random_letters(theirs)
    assert [theirs.letters[a] for a in (0, 1)] == ["reverse", "advance"]
    got = [theirs.states[q] for q in theirs.run(letters[None])[0]]
    assert got == [ours.states[q] for q in ours.run(1 - letters[None])[0]]
    assert labels(public("dihedral", n=5, label_type="toggle"), letters) == [
        int(state.endswith("-")) for state in got
    ]
    assert labels(public("dihedral", n=5, label_type="position"), letters) == [
        int(state[:-1]) for state in got
    ]


PERMUTATIONS = [
    ("symmetric", {"n": 4}, [(0, 1, 2, 3), (1, 2, 3, 0), (1, 0, 2, 3)]),
    # Above 3, the transposition of the first two is overwritten.
    ("symmetric", {"n": 4, "n_actions": 5},
     [(0, 1, 2, 3), (1, 2, 3, 0), (0, 1, 3, 2), (0, 2, 1, 3), (0, 2, 3, 1)]),
    ("symmetric", {"n": 3, "n_actions": 2}, [(0, 1, 2), (1, 2, 0)]),
    ("alternating", {"n": 4}, [(0, 1, 2, 3), (1, 2, 0, 3), (1, 3, 2, 0)]),
    ("alternating", {"n": 5}, [(0, 1, 2, 3, 4), (1, 2, 0, 3, 4), (1, 3, 2, 0, 4), (1, 4, 2, 3, 0)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "moves"), PERMUTATIONS)
def test_permutations_move_what_is_at_a_place(name, settings, moves):
    automaton, n = public(name, **settings), settings["n"]
    states = list(itertools.permutations(range(n)))
    if name == "alternating":
        even = pytest.importorskip("sympy.combinatorics", reason="needs sympy").Permutation
        states = [state for state in states if even(state).is_even]
    assert automaton.num_letters == len(moves) and automaton.num_states == len(states)
    letters = random_letters(automaton)
    chairs = arrangements(letters, moves, n)
    assert labels(automaton, letters) == [states.index(c) for c in chairs]
    first = public(name, label_type="first_chair", **settings)
    assert labels(first, letters) == [c[0] for c in chairs] and first.num_labels == n


def test_permutations_there_are_the_inverses_of_ours():
    """Read every letter and every state as its inverse, and one automaton is the other."""
    for name, settings, moves in PERMUTATIONS:
        theirs, n = public(name, **settings), settings["n"]
        ours = permutations("inverse", [tuple(np.argsort(move).tolist()) for move in moves])
        letters = random_letters(theirs)
        inverses = [ours.image_QP[q].argsort() for q in ours.run(letters[None])[0]]
        assert [tuple(i.tolist()) for i in inverses] == arrangements(letters, moves, n)
        first = public(name, label_type="first_chair", **settings)
        assert labels(first, letters) == [i[0] for i in inverses]


def test_the_swap_that_is_lost_there_is_a_letter_of_ours():
    swap = [1, 0, 2, 3, 4]
    assert swap in make("S5").point_delta_SP.tolist()
    theirs = public("symmetric", n=5, n_actions=8)
    swapped = list(itertools.permutations(range(5))).index(tuple(swap))
    assert swapped not in theirs.delta_SQ[:, theirs.start]  # no letter leads there at once
    assert swapped in public("symmetric").delta_SQ[:, 0]


def test_permutation_reset_has_its_resets_first_and_acts_as_ours():
    automaton = public("permutation_reset", n=3, generators=["120", "102"])
    assert (automaton.num_letters, automaton.num_states) == (6 + 2, 6)
    states, letters = list(itertools.permutations(range(3))), random_letters(automaton)
    now, expected = (0, 1, 2), []
    for letter in letters:
        generator = [(1, 2, 0), (1, 0, 2)][letter - 6] if letter >= 6 else None
        now = states[letter] if generator is None else tuple(generator[x] for x in now)
        expected.append(states.index(now))
    assert labels(automaton, letters) == expected
    ours = permutation_reset(permutations("S3", [(1, 2, 0), (1, 0, 2)]))
    moved = np.where(letters < 6, letters + 2, letters - 6)
    assert labels(ours, moved) == expected
    by_lists = public("permutation_reset", n=3, generators=[[1, 2, 0], [1, 0, 2]])
    np.testing.assert_array_equal(by_lists.delta_SQ, automaton.delta_SQ)


def test_label_types_of_grids_and_abab():
    letters = random_letters(public("gridworld"))
    places = np.array(clipped(letters, 9))
    parity, boundary = (public("gridworld", label_type=kind) for kind in ("parity", "boundary"))
    assert labels(parity, letters) == (places % 2).tolist()
    assert labels(boundary, letters) == np.isin(places, (0, 8)).astype(int).tolist()
    seen = public("abab", label_type="boundary")
    assert labels(seen, [0, 1, 0, 1, 0, 0]) == [0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: public("dyck"), "expected one of abab, alternating, .*got 'dyck'"),
        (lambda: public("cyclic", m=3), "cyclic: .*unexpected keyword argument 'm'"),
        (lambda: public("permutation_reset"), "permutation_reset: .*missing"),
        (lambda: public("permutation_reset", n=3, generators=["110"]), "permutations of 0 to 2"),
        (lambda: public("permutation_reset", n=3, generators=[]), "permutations of 0 to 2"),
        (lambda: public("permutation_reset", n=3, generators="120"), "each as '012', got '120'"),
        (lambda: public("permutation_reset", n=3, generators=["abc"]), "permutations of 0 to 2"),
        (lambda: public("symmetric", n=9), "S9: n must be from 3 to 6, got 9"),
        (lambda: public("symmetric", n_actions=0), "n_actions must be from 1 to 120, got 0"),
        (lambda: public("cyclic", n_actions=0), "n_actions must be from 1"),
        (lambda: public("parity", label_type="x"), "parity has the label types state, got 'x'"),
        (lambda: public("dihedral", label_type="x"), "state, toggle, position, got 'x'"),
        (lambda: rows("C5", 0), "length must be a whole number, at least 1, got 0"),
        (lambda: rows("C5", 2.5), "length must be a whole number, at least 1, got 2.5"),
        (lambda: rows("C5", 3, 0), "count must be a whole number, at least 1, got 0"),
        (lambda: rows(5, 3), "the name of an automaton, as 'D6', got 5"),
        (lambda: rows("D7", 3), "even number of elements"),
        (lambda: rows("C2", 3, 1, weights=(1,)), "C2 has 2 letters"),
    ],
)
def test_what_there_is_not_is_refused_at_once(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


@pytest.mark.parametrize("name", PUBLIC)
def test_every_automaton_of_the_set_gives_rows(name):
    settings = {"n": 4, "generators": ["1230"]} if name == "permutation_reset" else {}
    automaton = public(name, **settings)
    (row,) = rows(automaton, 11, 1)
    assert labels(automaton, row["input_ids"]) == row["label_ids"].tolist()


# Rows.


def test_rows_are_letters_and_labels():
    found = list(rows("Dyck(4,2)", 13, 5))
    automaton = make("Dyck(4,2)")
    for row in found:
        assert [*row] == ["input_ids", "label_ids"]
        assert {(x.shape, x.dtype.name) for x in row.values()} == {((13,), "int32")}
        assert labels(automaton, row["input_ids"]) == row["label_ids"].tolist()
    assert len({row["input_ids"].tobytes() for row in found}) == 5


def test_rows_depend_on_the_seed_and_not_on_the_count():
    def ids(count, seed=0):
        return np.stack([row["input_ids"] for row in rows("C3", 17, count, seed)])

    more = DRAWN_AT_ONCE + 3
    np.testing.assert_array_equal(ids(more)[:5], ids(5))
    endless = itertools.islice(rows(make("C3"), 17), more)
    np.testing.assert_array_equal([row["input_ids"] for row in endless], ids(more))
    assert (ids(5, seed=1) != ids(5)).any()
    assert len({row.tobytes() for row in ids(more)}) == more  # parts differ


def test_datasets_takes_the_rows_as_they_are(tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    settings = {"automaton": "D6", "length": 7, "count": 5}
    found = datasets.Dataset.from_generator(rows, gen_kwargs=settings, cache_dir=str(tmp_path))
    kinds = {name: feature.feature.dtype for name, feature in found.features.items()}
    assert kinds == {"input_ids": "int32", "label_ids": "int32"}  # as in the public set
    expected = [{name: x.tolist() for name, x in row.items()} for row in rows(**settings)]
    assert found.to_list() == expected
    endless = datasets.IterableDataset.from_generator(
        rows, gen_kwargs={"automaton": public("dihedral", n=3), "length": 7}
    )
    got = list(endless.take(3))
    assert [labels(public("dihedral", n=3), row["input_ids"]) for row in got] == [
        list(row["label_ids"]) for row in got
    ]
    assert len(got) == 3
