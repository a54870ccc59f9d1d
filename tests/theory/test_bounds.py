"""The bounds are the papers' formulas, hold where ranks are measured, and never overflow."""

import itertools
import math

import jax
import numpy as np
import pytest

from icl_jax.theory import bounds
from icl_jax.theory.epsilon_rank import epsilon_rank
from icl_jax.theory.representations import balance, in_context, over_partition, sequential
from icl_jax.theory.separation_rank import grid_matrix, numerical_rank
from tests.theory.small import FIRST, SECOND, network, raw_network

ROUNDING = 1e-9


@pytest.mark.parametrize("kinds, size", [(1, 0), (3, 5), (378, 59049), (5000, 1), (97, 3**96)])
def test_multiset_coefficients_are_those_of_whole_numbers(kinds, size):
    exact = math.comb(kinds + size - 1, kinds - 1)
    assert bounds.log_multiset(kinds, size) == pytest.approx(math.log(exact), rel=1e-11)


def test_the_formulas_are_those_of_the_papers():
    """Whole-number arithmetic at depth 3, width 4, 2 heads: C = 13."""
    comb = math.comb
    by_hand = {
        "theorem 1": (bounds.self_attention_upper(3, 2, 2), (2 * 3) ** 13),
        "theorem 2": (bounds.degree_upper(3, 4), 4 * 14 * comb(29, 3) * (26 / 4 + 1) ** 4),
        "theorem 4": (bounds.residual_degree_upper(3, 4), 4 * 14**2 * comb(29, 3) * 7.5**4),
        # S_1 = K, S_2 = K (2 K)^3, S_3 = K (3 S_2)^3, with K = 5 * 4^4 / 2
        "theorem 3": (
            bounds.residual_self_attention_upper(3, 4, 2, 5),
            4 * 640 * (3 * 640 * (2 * 640) ** 3) ** 3,
        ),
        "W21 theorem 1": (
            bounds.embedding_rank_upper(3, 4, 2, position_rank=1),
            comb(29, 2) * comb(30, 3) * 28**3,
        ),
        "binomial": (bounds.in_context_exact_upper(3, 4), comb(4 + 13, 4)),
        "degree in b": (bounds.sequential_exact_upper(3, 4), comb(27 + 3, 3)),
        "L20 lower": (bounds.self_attention_lower(4, 8, 2), comb(3 + 9 - 1, 9)),
        "L22 theorem 2": (bounds.in_context_lower(4, 8, 2), comb(11, 9) ** 0.25 / (2 * 2)),
        "its epsilon": (bounds.lower_epsilon(4, 8, 2), 1 / (4 * comb(11, 9) ** 2)),
        "W21 lower, convolution": (bounds.convolution_lower(4, 12, 8, 2), comb(11, 9)),
        "W21 lower, vocabulary": (bounds.vocabulary_lower(4, 9, 12, 2), comb(11, 9)),
    }
    for name, (got, expected) in by_hand.items():
        assert got == pytest.approx(math.log(expected), rel=1e-12), name


def test_theorem_1_is_the_constant_at_the_end_of_appendix_b():
    depth, width, length, rate, epsilon, ratio = 4, 3, 2, 0.5, 0.3, 1.01
    degree, words = 3**depth, width * length
    share = (words / (math.e * (2 * words + degree))) ** (2 * words)
    share *= ratio ** -((depth + 2) * (degree + 1)) * epsilon / (1 - epsilon)
    expected = 2 * degree / (width - 1) ** 2 * (25 * math.sqrt(rate) / (width - 1)) ** (width - 1)
    expected *= 2 ** (3 * length) * (math.e * (2 * width + degree)) ** (4 * width)
    expected /= (1 + share) ** 2 * width ** (2 * width)
    got = bounds.sequential_upper(depth, width, 1, length, rate, epsilon, ratio)
    assert got == pytest.approx(math.log(expected), rel=1e-12)


def test_theorem_1_names_which_of_its_conditions_is_broken():
    sizes = {"width": 8, "heads": 2, "epsilon": 0.1}
    with pytest.raises(ValueError, match=r"3\^depth must be above 1760: a depth of 7, got 4"):
        bounds.sequential_upper(depth=4, sentence_length=3, learning_rate=0.01 / 1.09, **sizes)
    with pytest.raises(ValueError, match="shorter than the width 8, got 8"):
        bounds.sequential_upper(depth=9, sentence_length=8, learning_rate=0.1, **sizes)
    with pytest.raises(ValueError, match=r"above 0, at most 1, got 2"):
        bounds.sequential_upper(depth=9, sentence_length=3, learning_rate=2, **sizes)
    with pytest.raises(ValueError, match="above 243: a depth of 6, got 5"):
        bounds.sequential_upper(5, 9, 3, 2, 0.5, 0.1)
    assert not bounds.sequential_conditions(9, 8, 2, 3, 0.1)


def test_a_smaller_learning_rate_lowers_the_sequential_bound_by_its_power():
    sizes = (24, 64, 4, 16)
    high, low = (bounds.sequential_upper(*sizes, rate, 0.01) for rate in (1e-2, 1e-4))
    assert high - low == pytest.approx(0.5 * 63 * math.log(100), rel=1e-9)


def test_in_the_explicit_bound_the_learning_rate_costs_a_quarter_of_the_stated_deficit():
    rate, width = 1e-4, 64

    def bound(depth, rate):
        return bounds.sequential_upper(depth, width, 4, 16, rate, 0.01)

    layer = bound(31, 1.0) - bound(30, 1.0)
    layers = (bound(30, 1.0) - bound(30, rate)) / layer
    assert layers == pytest.approx(bounds.depth_deficit(rate) / 4, rel=0.05)


def test_the_depth_deficit_is_about_six_layers_at_usual_learning_rates():
    assert bounds.depth_deficit(1e-6) == pytest.approx(6.2877, abs=1e-4)
    assert bounds.depth_deficit(1e-4) == pytest.approx(4.1918, abs=1e-4)
    assert bounds.depth_deficit(1) == 0
    with pytest.raises(ValueError, match="above 0 and at most 1, got 0"):
        bounds.depth_deficit(0)


def test_the_count_of_terms_is_below_the_constant_of_theorem_1_wherever_that_holds():
    """So at no size does theorem 1's explicit form say more than the degree in b does."""
    for depth in range(2, 40, 3):
        for width in (2, 3, 8, 64, 768):
            for rate in (1.0, 1e-2, 1e-6):
                if not bounds.sequential_conditions(depth, width, 1, 1, rate):
                    explicit = bounds.sequential_upper(depth, width, 1, 1, rate, 0.5)
                    assert bounds.sequential_exact_upper(depth, width) < explicit


def test_nothing_overflows_at_the_size_of_gpt_3():
    sizes = (96, 12288, 96)
    found = [
        bounds.in_context_upper(*sizes),
        bounds.in_context_lower(*sizes),
        bounds.sequential_upper(*sizes, 1024, 1e-4, 0.01, weight_ratio=1e6),
        bounds.residual_self_attention_upper(*sizes, 2048),
        bounds.residual_degree_upper(96, 12288),
        bounds.self_attention_upper(96, 96, 128),
        bounds.self_attention_lower(*sizes),
        bounds.vocabulary_lower(96, 12288, 4096, 96),
        bounds.convolution_lower(96, 12288, 4096, 96),
        bounds.sequential_exact_upper(96, 12288),
        bounds.lower_epsilon(*sizes),
        bounds.embedding_rank_upper(96, 12288, 12288, 50257),
    ]
    assert all(math.isfinite(bound) for bound in found)
    assert bounds.in_context_lower(*sizes) < bounds.in_context_exact_upper(96, 12288)
    assert bounds.in_context_exact_upper(96, 12288) < bounds.in_context_upper(*sizes)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: bounds.in_context_lower(1, 8, 2), "at least 2, got 1"),
        (lambda: bounds.in_context_lower(3, 8, 7), r"at least 2 above 7 \(the heads.*got 8"),
        (lambda: bounds.vocabulary_lower(3, 9, 5, 3), r"at least 2 above 4 \(the heads.*got 5"),
        (lambda: bounds.embedding_rank_upper(3, 4, 2, vocab=0), "vocab must be.* from 1, got 0"),
        (lambda: bounds.in_context_upper(3, 8, 3), "heads must divide the width, got 3"),
        (lambda: bounds.degree_upper(0, 8), "depth must be a whole number from 1, got 0"),
        (lambda: bounds.degree_upper(3, 2.5), "width must be a whole number from 1, got 2.5"),
        (lambda: bounds.embedding_rank_upper(3, 4, 2, position_rank=-1), "or more, got -1"),
    ],
)
def test_sizes_that_no_bound_is_of_are_reported(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def measured(function, rows, columns):
    """log of the numerical rank; it must not fill the grid, which would hide a larger one."""
    found = numerical_rank(grid_matrix(function, rows, columns))
    assert 0 < found.rank < min(len(rows), len(columns))
    return math.log(found.rank)


def points(count, *shape, seed=0):
    return np.random.default_rng(seed).normal(size=(2, count, *shape))


@pytest.mark.parametrize(
    "depth, width, heads", [(1, 2, 1), (1, 6, 3), (2, 2, 1), (2, 4, 2), (2, 3, 1)]
)
@pytest.mark.parametrize("length", [1, 3])
def test_ranks_in_context_lie_between_their_bounds(depth, width, heads, length):
    with jax.enable_x64(True):
        model = network(num_layers=depth, embed_dim=width, num_heads=heads)
        function = in_context(model, FIRST[:length], SECOND[:length])
        rank = measured(function, *points(100, width))
    assert rank == pytest.approx(
        bounds.in_context_exact_upper(depth, width)
    )  # all of them reach it
    assert rank <= bounds.in_context_upper(depth, width, heads)
    if depth > 1 and width - heads > 1:
        assert rank >= bounds.self_attention_lower(depth, width, heads) - ROUNDING
        assert rank >= bounds.in_context_lower(depth, width, heads)


@pytest.mark.parametrize("depth, width", [(1, 2), (1, 4), (2, 2)])
@pytest.mark.parametrize("heads, rate", [(1, 1.0), (2, 1e-2)])
def test_ranks_after_a_step_are_below_the_number_of_powers_of_b(depth, width, heads, rate):
    with jax.enable_x64(True):
        model = network(num_layers=depth, embed_dim=width, num_heads=heads)
        rank = measured(sequential(model, FIRST, SECOND, rate), *points(48, width))
    assert rank <= bounds.sequential_exact_upper(depth, width) + ROUNDING


def test_an_epsilon_rank_after_a_step_is_below_theorem_1():
    """The smallest sizes that its conditions allow: width 3, 2 words, depth 4, eta 1."""
    sizes, epsilon = {"depth": 4, "width": 3, "heads": 1, "sentence_length": 2}, 0.1
    with jax.enable_x64(True):
        model = balance(network("positive", num_layers=4, embed_dim=3), FIRST[:2])
        function = sequential(model, FIRST[:2], SECOND[:2], 1.0, clip=1.0)
        matrix = grid_matrix(function, *np.random.default_rng(0).uniform(0.5, 1.5, (2, 40, 3)))
    lower = epsilon_rank(matrix, epsilon).lower
    assert lower > 1
    assert math.log(lower) <= bounds.sequential_upper(**sizes, learning_rate=1.0, epsilon=epsilon)
    assert bounds.sequential_conditions(3, 3, 1, 2, 1.0)  # one layer less, and it does not hold


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("depth, width, heads, length", [(1, 4, 2, 2), (2, 2, 1, 2), (2, 2, 1, 4)])
def test_ranks_between_halves_of_the_input_are_below_l20s_bounds(
    depth, width, heads, length, residual
):
    with jax.enable_x64(True):
        model = raw_network(width, depth, heads=heads, residual=residual)
        function = over_partition(model, range(length // 2))
        rank = measured(function, *points(120, length // 2, width))
    if residual:
        assert rank <= bounds.residual_self_attention_upper(depth, width, heads, length)
        assert rank <= bounds.residual_degree_upper(depth, width)
    else:
        assert rank <= bounds.self_attention_upper(depth, heads, width // heads)
        assert rank <= bounds.degree_upper(depth, width)


@pytest.mark.parametrize("width, rank", [(5, None), (7, None), (7, 5)])
def test_ranks_between_inputs_are_above_the_lower_bounds_of_l20_and_w21(width, rank):
    """Depth 3: multisets of 3 out of 2 or 3 pairs. More than the grid has is more than enough."""
    with jax.enable_x64(True):
        model = raw_network(width, 3, rank)
        matrix = grid_matrix(over_partition(model, [0]), *points(24, 1, width))
    found, used = math.log(numerical_rank(matrix).rank), rank or width
    lower = bounds.convolution_lower(3, width, used, 1)
    assert lower == bounds.self_attention_lower(3, used, 1) >= math.log(4)
    assert found >= lower


def test_words_of_a_small_vocabulary_have_a_rank_between_w21s_bounds():
    """3 words at 3 positions a side, every sequence of them: ids are the points of the grid."""
    words = np.array(list(itertools.product(range(3), repeat=3)))
    with jax.enable_x64(True):
        model = network(vocab_size=3, embed_dim=4, num_layers=2)
        found = numerical_rank(grid_matrix(over_partition(model, [0, 2, 4]), words, words)).rank
    assert math.log(found) >= bounds.vocabulary_lower(2, 4, 4, 1)
    assert math.log(found) <= bounds.embedding_rank_upper(2, 4, 4, vocab=3, position_rank=0)
    assert 1 < found < len(words)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_an_embedding_of_low_rank_caps_the_rank_whatever_the_width(rank):
    """Wies et al. 2021: between two vectors, width 3, and 5 raw numbers a position."""
    depth, width = 2, 3
    with jax.enable_x64(True):
        model = raw_network(width, depth, rank, input_dim=5)
        found = measured(over_partition(model, [0]), *points(60, 1, 5))
    used = min(rank, width)
    assert found == pytest.approx(bounds.in_context_exact_upper(depth, used))
    assert found <= bounds.embedding_rank_upper(depth, width, rank, 5, position_rank=0)
    if used > 2:
        assert found >= bounds.convolution_lower(depth, width, used, 1) - ROUNDING
