"""Grids, matrices of them, and a numerical rank that says how sure it is."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.theory.representations import over_partition
from icl_jax.theory.separation_rank import (
    equilibrate,
    grid_matrix,
    grid_tensor,
    matricise,
    numerical_rank,
)
from tests.theory.small import raw_network

pytestmark = pytest.mark.delicate


def test_the_rank_of_a_polynomial_kernel_is_its_number_of_monomials():
    """<a, b>^3 in 4 variables: multiset(4, 3) = 20."""
    rows, columns = np.random.default_rng(0).normal(size=(2, 60, 4))
    found = numerical_rank(grid_matrix(lambda a, b: (a @ b) ** 3, rows, columns))
    assert found.rank == math.comb(6, 3)
    assert found.gap > 1e6


def test_a_sum_of_products_has_as_many_terms_as_its_rank():
    rows, columns = np.random.default_rng(0).uniform(-1, 1, (2, 30, 2))

    def three_terms(a, b):
        return jnp.sin(a[0]) * b[1] + jnp.exp(a[1]) * b[0] ** 2 + a[0] * a[1]

    assert numerical_rank(grid_matrix(three_terms, rows, columns)).rank == 3


@pytest.mark.parametrize("rank", [1, 7, 40])
def test_the_tolerance_finds_the_rank_through_rounding_and_scales(rank):
    """Rows and columns that differ by a factor of 1e12, entries rounded in the last digit."""
    rng = np.random.default_rng(rank)
    left, right = rng.normal(size=(2, 60, rank))
    scales = 10.0 ** rng.uniform(-6, 6, (2, 60))
    matrix = (left @ right.T) * scales[0][:, None] * scales[1]
    matrix *= 1 + 2.0**-52 * rng.choice([-1, 1], matrix.shape)
    found = numerical_rank(matrix)
    assert found.rank == rank
    assert found.gap > 1e3


def test_a_spectrum_without_a_gap_is_reported_as_such():
    """exp(a b) has every rank: what float64 sees of it ends somewhere, with no gap."""
    rows = np.linspace(-1, 1, 50)[:, None]
    found = numerical_rank(grid_matrix(lambda a, b: jnp.exp(a[0] * b[0]), rows, rows))
    assert 10 < found.rank < 30
    assert found.gap < 1e3


def test_a_matrix_of_a_grid_tensor_is_the_grid_matrix_of_its_partition():
    """Levine et al. 2020, B.1: an index of the tensor for each input, rows are those of I."""
    templates = np.random.default_rng(0).normal(size=(3, 2))
    with jax.enable_x64(True):
        model = raw_network(2, 2)
        tensor = grid_tensor(lambda x: model.hidden(x[None])[0, 0, 0], templates, 4)
        matrix = matricise(tensor, [0, 2])
        pairs = np.stack([templates[[i, j]] for i in range(3) for j in range(3)])
        expected = grid_matrix(over_partition(model, [0, 2]), pairs, pairs)
    assert tensor.shape == (3, 3, 3, 3)
    np.testing.assert_allclose(matrix, expected, rtol=1e-9, atol=1e-12 * abs(expected).max())
    assert matrix[3 * 1 + 2, 3 * 0 + 1] == tensor[1, 0, 2, 1]


def test_equilibrating_makes_rows_and_columns_alike_and_keeps_the_rank():
    matrix = np.diag(10.0 ** np.arange(-5, 5)) @ np.random.default_rng(0).uniform(1, 2, (10, 10))
    scaled = equilibrate(matrix)
    np.testing.assert_allclose(abs(scaled).sum(0), 10, rtol=1e-6)
    np.testing.assert_allclose(abs(scaled).sum(1), 10, rtol=1e-6)
    assert numerical_rank(scaled).rank == numerical_rank(matrix).rank == 10


def test_what_no_rank_can_be_taken_of_is_reported():
    with pytest.raises(ValueError, match=r"must be finite, got nan at \(1, 0\).*smaller templates"):
        numerical_rank(np.array([[1.0, 2.0], [np.nan, 1.0]]))
    with pytest.raises(ValueError, match=r"rows and columns, got \(3,\)"):
        numerical_rank(np.ones(3))
    with pytest.raises(ValueError, match=r"some, not all, of the axes 0 to 1, got \[0, 1\]"):
        matricise(np.ones((2, 2)), [0, 1])
