"""Flip-flop languages: rows are drawn as defined, and rows of no such language are refused."""

from fractions import Fraction
import math

import jax
import numpy as np
import pytest
from scipy import stats

from icl_jax.config import ConfigError
from icl_jax.sandboxes.flip_flop import Language, Mixture, ffl
from icl_jax.sandboxes.flip_flop.language import (
    IGNORE,
    ONE,
    READ,
    TOKENS,
    WRITE,
    ZERO,
    check,
    density,
    distance,
    from_text,
    is_read,
    memory,
    to_text,
)


def drawn(language, rows=400, seed=0):
    return np.asarray(language.sample(jax.random.key(seed), rows))


def replay(text):
    """What a read gives, how long ago it was written, and writes in 100, pair by pair."""
    bit, since, writes, found = None, 0, 0, []
    for n, (instruction, data) in enumerate(zip(text[::2], text[1::2]), 1):
        since += 1
        if instruction == "w":
            bit, since, writes = data, 0, writes + 1
        found.append((bit, since, math.ceil(Fraction(100 * writes, n))))
    return found


@pytest.mark.parametrize(
    "language",
    [
        ffl(12, 0.8), ffl(4, 0.5), Language(22, 0.7, 0.1, 0.2), Language(10, 0.0, 0.5, 0.5),
        Language(14, 0.5, 0.5, 0.0), Mixture((ffl(16, 0.9), ffl(16, 0.1))),
    ],
)  # fmt: skip
def test_every_row_begins_with_a_write_ends_with_a_read_and_reads_what_was_written(language):
    tokens = drawn(language)
    assert tokens.shape == (400, language.length) and tokens.dtype == np.int32
    for row in tokens:
        text = "".join(TOKENS[token] for token in row)
        assert text[0] == "w" and text[-2] == "r" and set(text[1::2]) <= {"0", "1"}
        for (bit, _, _), instruction, data in zip(replay(text), text[::2], text[1::2]):
            assert instruction != "r" or data == bit
    np.testing.assert_array_equal(check(tokens), tokens)


def test_instructions_have_their_chances_and_other_bits_are_fair_coins():
    tokens = drawn(Language(42, 0.2, 0.3, 0.5), 1000)
    counts = np.bincount(tokens[:, 2:-2:2].reshape(-1), minlength=3)
    assert stats.chisquare(counts, np.array([0.2, 0.3, 0.5]) * counts.sum()).pvalue > 1e-3
    free = tokens[:, 1::2][tokens[:, ::2] != READ]
    assert stats.binomtest(int((free == ONE).sum()), free.size).pvalue > 1e-3


def test_an_instruction_of_no_chance_never_comes():
    middle = drawn(Language(64, 0.5, 0.5, 0.0), 500)[:, 2:-2:2]
    assert set(np.unique(middle)) == {WRITE, READ}
    assert set(np.unique(drawn(Language(64, 0.0, 0.0, 1.0))[:, 2:-2:2])) == {IGNORE}


def test_ffl_writes_as_often_as_it_reads():
    found = ffl(512, 0.98)
    assert (found.length, found.ignore) == (512, 0.98)
    assert found.write == found.read == pytest.approx(0.01)


def test_a_mixture_draws_each_row_from_one_of_its_languages():
    """Rows that ignore nothing and rows that ignore everything are told apart by one look."""
    one, other = Language(30, 0.5, 0.5, 0.0), Language(30, 0.0, 0.0, 1.0)
    ignored = (drawn(Mixture((one, other)), 1000)[:, 2:-2:2] == IGNORE).mean(axis=1)
    assert set(ignored) == {0.0, 1.0}
    assert stats.binomtest(int(ignored.sum()), 1000).pvalue > 1e-3


def test_rows_depend_on_the_key_alone():
    np.testing.assert_array_equal(drawn(ffl(16, 0.5)), drawn(ffl(16, 0.5)))
    assert (drawn(ffl(16, 0.5), seed=1) != drawn(ffl(16, 0.5))).any()


def test_what_a_read_gives_its_distance_and_the_density_are_those_of_a_replay():
    tokens = drawn(ffl(40, 0.6), 60)
    expected = [replay("".join(TOKENS[token] for token in row)) for row in tokens]
    bits, distances, densities = (np.array(part) for part in zip(*(zip(*row) for row in expected)))
    np.testing.assert_array_equal(np.asarray(memory(tokens)) == ONE, bits == "1")
    np.testing.assert_array_equal(distance(tokens), distances.astype(int))
    np.testing.assert_array_equal(density(tokens), densities.astype(int))
    assert {ZERO, ONE} == set(np.unique(memory(tokens)))


def test_reads_are_where_the_instruction_is_r():
    assert is_read(from_text(["w1r1i0r1"]))[0].tolist() == [0, 0, 1, 0, 0, 0, 1, 0]


def test_text_and_tokens_are_each_others_inverse():
    tokens = drawn(ffl(18, 0.4), 50)
    np.testing.assert_array_equal(from_text(to_text(tokens)), tokens)
    assert to_text(from_text(["w 0 i 1 i 0 r 0", "w1w0r0r0"])) == ["w0i1i0r0", "w1w0r0r0"]
    assert from_text(["w0r0"]).dtype == np.int32


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["w0r0", "w0i1w1r0"[:4]], "row 1, place 2: the last instruction must be r, got 'i'"),
        (["w0i1w1r0"], "row 0, place 7: a read gives another bit than the latest write, got '0'"),
        (["w1r1w1r1", "w1r0w1r1"], "row 1, place 3: a read gives another bit"),
        (["r0r0"], "row 0, place 0: the first instruction must be w, got 'r'"),
        (["wwr0"], "row 0, place 1: expected a bit, 0 or 1, got 'w'"),
        (["w00r"], "row 0, place 2: expected an instruction, w, r or i, got '0'"),
        (["w0r0", "w0x0"], "row 1, place 2: expected one of w r i 0 1, got 'x'"),
        (["w0r0", "w0i1r0"], "one length: row 0 has 4 tokens, row 1 has 6"),
        (["w0r"], "even number of tokens, at least 4, got 3"),
        (["r0"], "even number of tokens, at least 4, got 2"),
        ([""], "at least 4, got 0"),
        ([], "at least 1 row of text, got none"),
    ],
)
def test_a_row_of_no_flip_flop_language_is_refused_with_its_place(rows, words):
    with pytest.raises(ConfigError, match=words):
        from_text(rows)


def test_tokens_that_are_none_are_refused():
    with pytest.raises(ConfigError, match=r"row 0, place 2: expected an instr.*, got the id 7"):
        check(np.array([[0, 3, 7, 3]]))
    with pytest.raises(ConfigError, match=r"integers \(rows, tokens\), got float64 of shape"):
        check(np.zeros(4))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ffl(7, 0.5), "even number of tokens, at least 4, got length=7"),
        (lambda: ffl(2, 0.5), "got length=2"),
        (lambda: Language(8, 0.5, 0.5, 0.5), "must sum to 1, got .*'ignore': 0.5.*sum to 1.5"),
        (lambda: Language(8, -0.1, 0.6, 0.5), "from 0 to 1, got {'write': -0.1"),
        (lambda: Language(8, float("nan"), 0.5, 0.5), "from 0 to 1"),
        (lambda: ffl(8, 1.2), "from 0 to 1"),
        (lambda: Mixture((ffl(8, 0.5), ffl(10, 0.5))), r"one length, got lengths \[8, 10\]"),
        (lambda: Mixture(()), r"one length, got lengths \[\]"),
        (lambda: drawn(ffl(8, 0.5), 0), "at least 1 row, got 0"),
    ],
)
def test_what_is_no_language_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
