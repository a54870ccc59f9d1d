import collections
import itertools

import jax
import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.sandboxes.dyck import Dyck
from icl_jax.sandboxes.dyck.language import EMPTY, START


def prefixes(language, length):
    """Every prefix of this length, by trying all strings."""
    found = []
    for letters in itertools.product(range(1, language.num_tokens), repeat=length):
        try:
            language.check(np.array([[START, *letters]]))
        except ConfigError:
            continue
        found.append((START, *letters))
    return found


def by_definition(language, tokens):
    """Definition 12, factor by factor: 1/k, q/k, 1 - q or 1."""
    k, q = language.types, language.opening
    found, depth = 1.0, 0
    for token in tokens[1:]:
        before = depth
        depth += 1 if token <= k else -1
        if token <= k:
            found *= (1 / k) if before == 0 else q / k
        elif depth < language.depth - 1:
            found *= 1 - q
    return found


@pytest.mark.parametrize("opening", [0.5, 0.3])
@pytest.mark.parametrize("types, depth", [(2, 2), (1, 3), (3, 1)])
def test_probabilities_of_all_prefixes_sum_to_1_and_are_those_of_the_definition(
    types, depth, opening
):
    language = Dyck(types, depth, opening)
    for length in (1, 4, 5):
        found = {p: language.probability(np.array(p)) for p in prefixes(language, length)}
        assert sum(found.values()) == pytest.approx(1)
        for prefix, probability in found.items():
            assert probability == pytest.approx(by_definition(language, prefix))


@pytest.mark.parametrize("opening", [0.5, 0.2])
def test_rows_are_drawn_as_often_as_the_definition_says(opening):
    language, count = Dyck(2, 2, opening), 20_000
    tokens_BT = np.asarray(language.sample(jax.random.key(0), count, 5).tokens_BT)
    seen = collections.Counter(map(tuple, tokens_BT.tolist()))
    expected = {p: count * language.probability(np.array(p)) for p in prefixes(language, 5)}
    assert set(seen) <= set(expected)
    chi_squared = sum((seen[p] - e) ** 2 / e for p, e in expected.items())
    assert chi_squared < len(expected) + 5 * (2 * len(expected)) ** 0.5


def test_rows_are_prefixes_and_say_which_type_must_close():
    language = Dyck(3, 4, 0.6)
    rows = language.sample(jax.random.key(1), 50, 30)
    tokens_BT = np.asarray(rows.tokens_BT)
    assert tokens_BT.shape == (50, 31) and (tokens_BT[:, 0] == START).all()
    np.testing.assert_array_equal(rows.top_BT, language.check(tokens_BT))
    typed_BT = np.asarray(language.typed(tokens_BT))
    assert set(np.unique(typed_BT)) == set(range(language.num_typed))  # all depths are reached


def test_typed_tokens_are_numbered_by_type_and_depth():
    language = Dyck(2, 3)
    tokens = language.read("[([])][]")
    openings = {(i, d): 1 + i * 3 + (d - 1) for i in range(2) for d in (1, 2, 3)}
    closings = {(i, d): 7 + i * 3 + d for i in range(2) for d in (0, 1, 2)}
    expected = [
        0, openings[0, 1], openings[1, 2], openings[0, 3], closings[0, 2], closings[1, 1],
        closings[0, 0], openings[0, 1], closings[0, 0],
    ]  # fmt: skip
    assert np.asarray(language.typed(tokens[None]))[0].tolist() == expected
    assert len({*openings.values(), *closings.values(), 0}) == language.num_typed == 13


def test_nested_pairs_are_what_they_look_like():
    language = Dyck(2, 4)
    written = "".join(language.symbols[token] for token in language.nested([0, 0, 1]))
    assert written == "[[()]]"
    assert "".join(language.symbols[t] for t in language.read("[[()]]")) == "·[[()]]"
    assert language.check(language.read("([)"[:2])[None])[0].tolist() == [EMPTY, 1, 0]


@pytest.mark.parametrize(
    "text, message",
    [
        ("[[[[[]", "row 0, place 5: an opening at depth 5, but the language is 4 deep"),
        ("[(])", "row 0, place 3: closes type 0, but type 1 is open"),
        ("[]]", "row 0, place 3: a closing where nothing is open"),
        ("[a]", "place 1 of '\\[a\\]' has 'a', but the brackets of 2 types are \\[\\(\\]\\)"),
    ],
)
def test_a_string_that_is_no_prefix_is_refused_with_place_and_reason(text, message):
    with pytest.raises(ConfigError, match=message):
        Dyck(2, 4).read(text)


@pytest.mark.parametrize(
    "tokens, message",
    [
        ([[0, 1, 3], [0, 1, 9]], "row 1, place 2: token 9 is not of 0 to 4"),
        ([[1, 3]], "row 0, place 0: token 1, but 0 is the first of a row"),
        ([[0, 1, 0]], "row 0, place 2: token 0, but 0 is the first of a row and only there"),
        ([0, 1], "tokens must be integers \\(batch, time\\), got int64 of shape \\(2,\\)"),
        ([[0.0, 1.0]], "got float64"),
    ],
)
def test_tokens_that_are_no_rows_are_refused(tokens, message):
    with pytest.raises(ConfigError, match=message):
        Dyck(2, 4).check(np.array(tokens))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"opening": 1.0}, "probability of an opening must be between 0 and 1, got 1.0"),
        ({"opening": 0.0}, "probability of an opening"),
        ({"types": 0}, "types"),
        ({"depth": 0}, "depth"),
    ],
)
def test_languages_that_cannot_be_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        Dyck(**fields)
