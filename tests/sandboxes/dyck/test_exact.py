"""Balanced attention finds the last open bracket at every length; noise on its scores does not."""

import itertools
import json
import math

import jax
import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.sandboxes.dyck.balance import closings, is_balanced, openings, queries_of, violation
from icl_jax.sandboxes.dyck.exact import (
    approximate_balance,
    attend,
    balanced,
    depths,
    disturbed,
    measure,
    noise_curve,
)
from icl_jax.sandboxes.dyck.language import Dyck

TWO = Dyck(2, 4)
LANGUAGES = [TWO, Dyck(3, 3)]


def beta(network):
    return violation(
        network.score_MM, network.value_ME, network.language.types, network.language.depth
    )


def typed_row(language, length, seed=0):
    rows = language.sample(jax.random.key(seed), 1, length)
    return np.asarray(language.typed(rows.tokens_BT))[0]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("spread", [1.0, 0.0])
def test_matching_pairs_cancel_to_rounding_and_the_type_is_right_at_every_length(language, spread):
    for seed in range(3):
        network = balanced(language, seed, spread)
        assert is_balanced(network.score_MM, language.types, language.depth, 1e-12)
        assert beta(network).largest < 1e-12
        margins = []
        for length in (28, 450):
            found = measure(network, language.sample(jax.random.key(length), 10, length))
            assert found[:2] == (1.0, 1.0)
            margins.append(found.margin)
        assert min(margins) > 1e-4


def test_scores_are_random_and_those_of_spread_zero_make_attention_uniform():
    assert np.ptp(balanced(TWO, 0).score_MM, axis=0).min() > 1
    assert not np.any(balanced(TWO, 0, spread=0.0).score_MM)
    assert not np.array_equal(balanced(TWO, 0).score_MM, balanced(TWO, 1).score_MM)


@pytest.mark.parametrize("language", LANGUAGES)
def test_directions_are_orthonormal_and_orthogonal_to_the_vector_of_ones(language):
    direction_NE = balanced(language, 0).direction_KDE.reshape(-1, language.num_typed)
    np.testing.assert_allclose(direction_NE @ direction_NE.T, np.eye(len(direction_NE)), atol=1e-12)
    np.testing.assert_allclose(direction_NE.sum(axis=1), 0, atol=1e-12)


def test_attention_is_the_causal_softmax_of_the_scores_token_by_token():
    network = balanced(TWO, 0)
    typed_T = typed_row(TWO, 12)
    expected = []
    for t, query in enumerate(typed_T):
        weights = [math.exp(network.score_MM[key, query]) for key in typed_T[: t + 1]]
        parts = [w * network.value_ME[x] for w, x in zip(weights, typed_T[: t + 1], strict=True)]
        expected.append(sum(parts) / sum(weights))
    np.testing.assert_allclose(attend(network, typed_T), expected, atol=1e-14)


def test_depths_are_openings_minus_closings():
    for language in LANGUAGES:
        rows = language.sample(jax.random.key(0), 5, 40)
        typed_BT = np.asarray(language.typed(rows.tokens_BT))
        for tokens_T, typed_T in zip(np.asarray(rows.tokens_BT), typed_BT, strict=True):
            steps_T = np.select([tokens_T == 0, tokens_T <= language.types], [0, 1], -1)
            np.testing.assert_array_equal(depths(language, typed_T), np.cumsum(steps_T))


def test_noise_violates_balance_and_costs_more_accuracy_the_longer_the_row():
    points = noise_curve(TWO, noises=(0.0, 0.01, 0.2), seeds=3, lengths=(28, 450), rows=5)
    assert json.loads(json.dumps(points)) == points
    assert {(point["noise"], point["seed"]) for point in points} == set(
        itertools.product((0.0, 0.01, 0.2), range(3))
    )
    mean = {
        noise: np.mean(
            [
                (
                    p["violation"]["mean"], p["accuracy"]["28"]["closings"],
                    p["accuracy"]["450"]["closings"],
                )
                for p in points if p["noise"] == noise
            ],
            axis=0,
        )
        for noise in (0.0, 0.01, 0.2)
    }  # fmt: skip
    assert mean[0.0][0] < 1e-12 < 1e-3 < mean[0.01][0] < mean[0.2][0]
    assert tuple(mean[0.0][1:]) == (1.0, 1.0)
    assert mean[0.01][1] > 0.99 > mean[0.01][2] > mean[0.2][2]
    assert mean[0.2][2] < mean[0.2][1] - 0.1
    assert mean[0.2][2] > 0.4  # chance, with two types


def test_openings_are_read_from_themselves():
    noisy = disturbed(balanced(TWO, 0), 2.0, 0)
    found = measure(noisy, TWO.sample(jax.random.key(0), 10, 200))
    rows = TWO.sample(jax.random.key(0), 10, 200)
    is_open = np.asarray(rows.top_BT) >= 0
    asked = is_open & np.asarray(TWO.is_closing(rows.tokens_BT))
    share = asked.sum() / is_open.sum()
    assert found.closings < 0.9
    assert found.tokens == pytest.approx(1 - share * (1 - found.closings))


def test_rows_without_a_closing_that_leaves_a_bracket_open_are_refused():
    with pytest.raises(ConfigError, match="make them longer"):
        measure(balanced(TWO, 0), TWO.sample(jax.random.key(0), 3, 2))


@pytest.mark.parametrize("language", [Dyck(2, 2), Dyck(2, 4), Dyck(3, 3)])
@pytest.mark.parametrize("noise", [0.0, 0.05, 1.0])
def test_the_inequality_of_theorem_2_holds_where_outputs_stay_apart(language, noise):
    for seed, length in itertools.product(range(3), (8 * language.depth, 450, 10**5)):
        found = approximate_balance(disturbed(balanced(language, seed), noise, seed), length)
        assert found.largest <= found.bound
        assert found.bound == 16 * language.depth * (4 / found.separation + 1) / length


def test_balanced_outputs_stay_as_far_apart_at_every_length_and_noisy_ones_do_not():
    network = balanced(TWO, 0)
    near, far = approximate_balance(network, 32), approximate_balance(network, 10**6)
    assert far.separation == pytest.approx(near.separation, rel=1e-6)
    assert far.bound == pytest.approx(near.bound * 32 / 10**6, rel=1e-6)
    noisy = disturbed(network, 0.1, 0)
    near, far = approximate_balance(noisy, 32), approximate_balance(noisy, 10**6)
    assert far.separation < near.separation / 1000


@pytest.mark.parametrize("seed", [0, 5])  # smallest without nested openings, and with some
def test_the_separation_is_that_of_the_two_prefixes_of_the_proof(seed):
    language, length = Dyck(2, 3), 24
    network = disturbed(balanced(language, seed), 0.1, seed)
    opening, closing = openings(2, 3), closings(2, 3)
    distances = []
    for query_depth, j, i, d in itertools.product(range(1, 3), range(2), range(2), range(3)):
        pairs = length // 2 - d - query_depth - 2
        common = [0, *opening[i, :d], *([opening[i, d], closing[i, d]] * pairs)]
        common += list(closing[i, :d][::-1])
        last = [opening[j, query_depth], closing[j, query_depth]]
        # The smallest outputs without the common part, then with it: nearest and rival.
        sizes = {}
        for types in itertools.product(range(2), repeat=query_depth):
            prefix = [opening[t, s] for s, t in enumerate(types)]
            sizes[types] = np.linalg.norm(unnormalised(network, [0, *prefix, *last]))
        nearest = min(sizes, key=sizes.get)
        rival = min((t for t in sizes if t[-1] != nearest[-1]), key=sizes.get)
        outputs = []
        for types in (nearest, rival):
            prefix = [opening[t, s] for s, t in enumerate(types)]
            row = np.array([*common, *prefix, *last])
            assert len(row) - 1 <= length
            output = attend(network, row)[-1]
            output = output - output.mean()
            outputs.append(output / np.linalg.norm(output))
        distances.append(np.linalg.norm(outputs[0] - outputs[1]))
    found = approximate_balance(network, length)
    assert found.separation == pytest.approx(min(distances), rel=1e-9)


def unnormalised(network, typed):
    output = sum(np.exp(network.score_MM[x, typed[-1]]) * network.value_ME[x] for x in typed)
    return output - output.mean()


def test_theorem_2_is_refused_below_the_lengths_it_is_about():
    with pytest.raises(ConfigError, match=r"lengths from 8 x depth = 32, got 31"):
        approximate_balance(balanced(TWO, 0), 31)


def test_every_closing_that_leaves_a_bracket_open_is_a_query():
    network = balanced(TWO, 0)
    found = [query.depth for query in queries_of(network.score_MM, network.value_ME, 2, 4)]
    assert found == [1, 1, 2, 2, 3, 3]
