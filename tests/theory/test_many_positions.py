"""With many positions a side, the bounds by degree do not hold: a network that breaks them.

Its layers add up U = sum_j u_j u_j^T, a symmetric matrix of d (d + 1) / 2 numbers, where L20's
theorem 2 and W21's theorem 1 count d: they group the powers of each coordinate over all positions,
but a product of two sums over positions has more to it than these powers.
"""

import math

import numpy as np
import pytest

from icl_jax.theory import bounds
from icl_jax.theory.separation_rank import numerical_rank


def layer(x, heads):
    """Wies et al. 2021, eq. 5, with any number and size of heads."""
    return sum(((x @ q) @ (x @ k).T) @ (x @ v) @ o for q, k, v, o in heads)


def network(u, size, depth):
    """(<U_P, U_Q>)^(3^(L-2)) of positions u_j with || U_P || = || U_Q || = 1; width 2 d + 1."""
    count, one = len(u), 2 * size
    x = np.hstack([u, np.zeros((count, size)), np.ones((count, 1))])

    def pick(*places):
        matrix = np.zeros((2 * size + 1, size))
        for n, place in enumerate(places):
            matrix[place, n] = 1
        return matrix

    every, beside = pick(*range(size)), pick(*range(size, 2 * size))
    keep = [(pick(n), pick(one), pick(one), pick(n).T / count) for n in (*range(size), one)]
    x = layer(x, [*keep, (every, every, every, beside.T)])  # (u_i, U u_i, 1)
    half_trace = [(pick(one), pick(n), pick(size + n), pick(0).T / 2) for n in range(size)]
    minus_one = (pick(one), pick(one), pick(one), -pick(0).T / count)
    x = layer(x, [*half_trace, minus_one])  # tr(U^2) / 2 - 1 = <U_P, U_Q>
    for _ in range(depth - 2):
        x = layer(x, [(pick(0), pick(0), pick(0), pick(0).T / count)])
    return x[0, 0]


@pytest.mark.parametrize("size, depth", [(2, 3), (2, 4)])
def test_the_rank_is_that_of_polynomials_in_all_entries_of_a_symmetric_matrix(size, depth):
    power, numbers = 3 ** (depth - 2), size * (size + 1) // 2
    rank = math.comb(numbers + power - 1, power)
    sides = np.random.default_rng(0).normal(size=(2, rank + 8, size, size))
    gram = np.einsum("snij,snik->snjk", sides, sides)
    norms = np.linalg.norm(gram, axis=(2, 3), keepdims=True)
    sides, gram = sides / np.sqrt(norms), gram / norms
    matrix = np.array(
        [[network(np.vstack([p, q]), size, depth) for q in sides[1]] for p in sides[0]]
    )
    expected = np.einsum("njk,mjk->nm", *gram) ** power
    np.testing.assert_allclose(matrix, expected, atol=1e-12)
    assert numerical_rank(matrix).rank == rank


def test_that_rank_is_above_both_bounds_for_a_network_of_40_positions():
    """Width 41, depth 10, 20 positions a side."""
    size, depth = 20, 10
    width, numbers = 2 * size + 1, size * (size + 1) // 2
    reached = bounds.log_multiset(numbers, 3 ** (depth - 2))
    assert reached > bounds.embedding_rank_upper(depth, width, width, None, 0)
    assert reached > bounds.degree_upper(depth, width)
