"""Both bounds of the epsilon-rank are certified: by perturbing, and by a matrix that is shown."""

import numpy as np
import pytest

from icl_jax.theory.epsilon_rank import (
    additive_lower,
    eigenvalues_above,
    epsilon_rank,
    low_rank_within,
    relative_lower,
)

pytestmark = pytest.mark.delicate


def kernel(count=40, power=3, seed=0):
    rows, columns = np.random.default_rng(seed).uniform(0.5, 1.5, (2, count, 3))
    return (rows @ columns.T) ** power


@pytest.mark.parametrize("epsilon", [0.3, 0.03, 0.003, 1e-5])
def test_the_epsilon_rank_lies_between_1_and_the_rank(epsilon):
    lower, upper = epsilon_rank(kernel(), epsilon)
    assert 1 <= lower <= upper <= 10  # multiset(3, 3)


def test_less_error_needs_more_rank():
    found = [epsilon_rank(kernel(), epsilon) for epsilon in (0.3, 0.03, 0.003, 1e-6)]
    assert [bounds.lower for bounds in found] == sorted(bounds.lower for bounds in found)
    assert found[0].upper < found[-1].lower
    assert found[-1].lower == found[-1].upper == 10


def test_the_upper_bound_is_a_matrix_with_every_entry_within_the_error():
    matrix, epsilon = kernel(), 0.03
    upper = epsilon_rank(matrix, epsilon).upper
    shown = low_rank_within(matrix, epsilon, upper)
    assert np.linalg.matrix_rank(shown) == upper < 10
    assert np.all(abs(shown - matrix) <= epsilon * abs(matrix))
    assert low_rank_within(matrix, 1e-12, 3) is None


@pytest.mark.parametrize("seed", range(5))
def test_no_change_within_the_error_goes_below_the_lower_bound(seed):
    """Also none that is made to: truncation, clipped to the error, again and again."""
    rng, epsilon = np.random.default_rng(seed), 0.1
    matrix = rng.normal(size=(20, 20))
    lower = epsilon_rank(matrix, epsilon).lower
    assert lower > 5
    size = epsilon * abs(matrix)
    changed = matrix + rng.choice([-1, 1], matrix.shape) * size
    for _ in range(200):
        u, s, vt = np.linalg.svd(changed)
        assert s[lower - 1] > 1e-3 * s[0]
        low = (u[:, : lower - 1] * s[: lower - 1]) @ vt[: lower - 1]
        assert np.any(abs(low - matrix) > size)  # rank lower - 1 is not within
        changed = np.clip(low, matrix - size, matrix + size)


def test_scales_of_rows_and_columns_change_nothing():
    """Relative errors do not see them; an unscaled bound would fall to 1."""
    scales = 10.0 ** np.random.default_rng(1).uniform(-4, 4, (2, 40))
    matrix = kernel()
    scaled = matrix * scales[0][:, None] * scales[1]
    assert epsilon_rank(scaled, 0.003) == epsilon_rank(matrix, 0.003)
    assert relative_lower(scaled, 0.003) < epsilon_rank(matrix, 0.003).lower


def test_zero_has_rank_0_and_a_product_rank_1():
    assert epsilon_rank(np.zeros((4, 5)), 0.1) == (0, 0)
    assert epsilon_rank(np.outer([1.0, 2, 3], [1.0, -1, 4]), 1e-6) == (1, 1)


def test_lemma_10_by_weyl_and_lemma_11():
    """Lemma 10: eigenvalue k >= epsilon gives an (epsilon / 2 n)-rank of at least k."""
    rows = np.random.default_rng(0).normal(size=(30, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    matrix = (rows @ rows.T) ** 3
    eigenvalues = np.linalg.eigvalsh(matrix)[::-1]
    for k in (1, 5, 12):
        assert additive_lower(matrix, eigenvalues[k - 1] / (2 * 30)) >= k
    count, bound = eigenvalues_above(matrix)
    assert count == (eigenvalues > 1 / 30).sum() >= bound > 1
    with pytest.raises(ValueError, match="ones on the diagonal"):
        eigenvalues_above(2 * matrix)


def test_an_error_of_nearly_everything_still_leaves_a_rank_of_1():
    matrix = np.random.default_rng(0).normal(size=(60, 60))
    assert relative_lower(matrix, 0.9) == 0
    assert epsilon_rank(matrix, 0.9).lower == 1


@pytest.mark.parametrize("epsilon", [0, 1e-15, 1, -0.1])
def test_an_error_that_is_none_is_reported(epsilon):
    with pytest.raises(ValueError, match="from 1e-11, above rounding errors, to below 1, got"):
        epsilon_rank(kernel(), epsilon)
