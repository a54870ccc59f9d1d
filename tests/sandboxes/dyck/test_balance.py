"""Balance and its violation, compared with the definitions in loops over brackets."""

import itertools
import math

import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.sandboxes.dyck.balance import closings, is_balanced, openings, violation

SHAPES = [(2, 2), (2, 4), (3, 3)]


def a_layer(k, D, embed=5, seed=0):
    rng, tokens = np.random.default_rng(seed), 2 * k * D + 1
    return rng.normal(size=(tokens, tokens)), rng.normal(size=(tokens, embed))


def token(kind, depth, is_open, k, D):
    """The numbers of the tokens, as written down: types from 0."""
    if is_open:
        return 1 + kind * D + (depth - 1)
    return 1 + k * D + kind * D + depth


def violation_in_loops(score, value, k, D):
    """Beta and its largest term, token by token."""
    embed = len(value[0])
    centre = [[float(i == j) - 1 / embed for j in range(embed)] for i in range(embed)]

    def added(key, query):
        weight = math.exp(score[key][query])
        return [
            weight * sum(centre[i][j] * value[key][j] for j in range(embed)) for i in range(embed)
        ]

    def norm_of_sum(keys, query):
        return math.sqrt(sum(sum(parts) ** 2 for parts in zip(*(added(x, query) for x in keys))))

    ratios = []
    for depth, kind in itertools.product(range(1, D), range(k)):
        query = token(kind, depth, False, k, D)
        sizes = {}
        for types in itertools.product(range(k), repeat=depth):
            keys = [0, *(token(t, s, True, k, D) for s, t in enumerate(types, 1))]
            keys += [token(kind, depth + 1, True, k, D), query]
            sizes[types] = norm_of_sum(keys, query)
        smallest = min(sizes, key=sizes.get)
        rival = min(size for types, size in sizes.items() if types[-1] != smallest[-1])
        for i, d in itertools.product(range(k), range(1, D + 1)):
            pair = [token(i, d, True, k, D), token(i, d - 1, False, k, D)]
            ratios.append(norm_of_sum(pair, query) / rival)
    return sum(ratios) / len(ratios), max(ratios)


@pytest.mark.parametrize(("k", "D"), SHAPES)
def test_the_violation_is_that_of_the_definition_in_loops(k, D):
    score, value = a_layer(k, D)
    np.testing.assert_allclose(
        violation(score, value, k, D), violation_in_loops(score, value, k, D), rtol=1e-12
    )


@pytest.mark.parametrize(("k", "D"), SHAPES)
def test_tokens_are_numbered_as_agreed_and_each_number_is_used_once(k, D):
    opening, closing = openings(k, D), closings(k, D)
    for kind, depth in itertools.product(range(k), range(1, D + 1)):
        assert opening[kind, depth - 1] == token(kind, depth, True, k, D)
        assert closing[kind, depth - 1] == token(kind, depth - 1, False, k, D)
    numbers = np.concatenate([opening.ravel(), closing.ravel()])
    assert sorted(numbers) == list(range(1, 2 * k * D + 1))


def test_the_violation_does_not_depend_on_what_softmax_and_layer_norm_take_away():
    score, value = a_layer(2, 4)
    expected = violation(score, value, 2, 4)
    rng = np.random.default_rng(1)
    shifted = score + np.linspace(-900, 900, len(score))  # by query; exp(900) is no float64
    np.testing.assert_allclose(violation(shifted, value, 2, 4), expected, rtol=1e-9)
    np.testing.assert_allclose(violation(score, 7 * value, 2, 4), expected, rtol=1e-12)
    raised = value + rng.normal(size=(len(value), 1))  # along the vector of ones
    np.testing.assert_allclose(violation(score, raised, 2, 4), expected, rtol=1e-9)


def test_values_that_are_all_zero_violate_balance_without_limit():
    score, value = a_layer(2, 2)
    assert violation(score, 0 * value, 2, 2) == (np.inf, np.inf)


def test_balance_needs_one_gap_per_pair_for_all_closings_that_leave_a_bracket_open():
    k, D = 2, 3
    score, _ = a_layer(k, D)
    gap = np.random.default_rng(1).normal(size=(k, D))
    for kind, depth in itertools.product(range(k), range(1, D + 1)):
        opens, closes = token(kind, depth, True, k, D), token(kind, depth - 1, False, k, D)
        for query in closings(k, D)[:, 1:].ravel():
            score[opens, query] = score[closes, query] + gap[kind, depth - 1]
    assert is_balanced(score, k, D, 1e-12)
    # Other queries are free; START is no part of a pair.
    score[:, closings(k, D)[:, 0]] += 1.0 * np.arange(len(score))[:, None]
    score[:, openings(k, D).ravel()] = 0.0
    score[0] = 5.0
    assert is_balanced(score, k, D, 1e-12)
    score[token(1, 2, True, k, D), token(0, 2, False, k, D)] += 0.1
    assert not is_balanced(score, k, D, 0.09)
    assert is_balanced(score, k, D, 0.11)


@pytest.mark.parametrize(("k", "D"), [(1, 4), (2, 1)])
def test_too_few_types_or_depths_are_refused(k, D):
    score, value = a_layer(k, D)
    message = f"at least 2 types and depth 2, got k={k} and D={D}"
    with pytest.raises(ConfigError, match=message):
        violation(score, value, k, D)
    with pytest.raises(ConfigError, match=message):
        is_balanced(score, k, D, 0.0)


def test_matrices_that_do_not_fit_the_tokens_are_refused():
    score, value = a_layer(2, 4)
    with pytest.raises(ConfigError, match=r"scores .*expected shape \(17, 17\).*got \(17, 16\)"):
        violation(score[:, 1:], value, 2, 4)
    with pytest.raises(ConfigError, match=r"values .*expected shape \(17, any\).*got \(16, 5\)"):
        violation(score, value[1:], 2, 4)
    with pytest.raises(ConfigError, match=r"expected shape \(17, 17\).*got \(17,\)"):
        is_balanced(score[0], 2, 4, 0.0)


def test_a_score_that_is_not_a_number_is_refused():
    score, value = a_layer(2, 2)
    score[3, 4] = np.nan
    with pytest.raises(ConfigError, match="finite numbers, got 1"):
        violation(score, value, 2, 2)
