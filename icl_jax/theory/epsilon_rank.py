"""Certified lower and upper bounds of the rank of a matrix up to a relative error of its entries.

The epsilon-rank of M is the least rank of a matrix M~ with |M~ - M| <= epsilon |M| in every entry
(Levine et al. 2022, eq. 7). Finding it is hard, but bounding it is not:
- from below: such an M~ differs from M by at most epsilon || |M| || in spectral norm, so by Weyl's
  inequality it keeps every singular value of M above that. (Lemma 10 is this argument for symmetric
  matrices and an additive error; its own proof shows only that k vectors are not mapped to 0.)
- from above: an M~ of low rank is exhibited, and each of its entries checked.
Multiplying rows and columns by positive numbers does not change the epsilon-rank, so both bounds
are computed for the equilibrated M, where they are closest.

For a grid matrix of y, the lower bound also holds for the epsilon-separation rank of y (lemma 13);
the upper bound holds on the grid, not between its points.
"""

from typing import NamedTuple

import numpy as np

from icl_jax.theory.separation_rank import check_matrix, equilibrate

LEAST_EPSILON = 1e-11
_ITERATIONS = 12  # more improve the bound by a rank or two


class EpsilonRank(NamedTuple):
    """lower <= epsilon-rank of the matrix <= upper."""

    lower: int
    upper: int


def epsilon_rank(matrix: np.ndarray, epsilon: float) -> EpsilonRank:
    """Bounds of the epsilon-rank for relative errors, with LEAST_EPSILON <= epsilon < 1."""
    if not LEAST_EPSILON <= epsilon < 1:
        raise ValueError(
            f"epsilon must be from {LEAST_EPSILON:g}, above rounding errors, to below 1, got "
            f"{epsilon}"
        )
    matrix = check_matrix(matrix)
    scaled = equilibrate(matrix)
    least = int(matrix.any())  # no error below 1 turns an entry into 0
    lower = max(least, relative_lower(matrix, epsilon), relative_lower(scaled, epsilon))
    return EpsilonRank(lower, _least_rank_found(scaled, epsilon, lower))


def relative_lower(matrix: np.ndarray, epsilon: float) -> int:
    """How many singular values survive any relative change of the entries by epsilon."""
    moved = epsilon * np.linalg.norm(np.abs(matrix), 2)
    return int((np.linalg.svd(matrix, compute_uv=False) > moved).sum())


def additive_lower(matrix: np.ndarray, epsilon: float) -> int:
    """The same for an additive error of each entry: || E || <= epsilon sqrt(m n); lemma 10."""
    moved = epsilon * np.sqrt(matrix.size)
    return int((np.linalg.svd(check_matrix(matrix), compute_uv=False) > moved).sum())


def eigenvalues_above(matrix: np.ndarray) -> tuple[int, float]:
    """Lemma 11: eigenvalues above 1/n of a symmetric M with unit diagonal, and (n-1) / ||M||_F.

    The first is never below the second.
    """
    size = len(matrix)
    if not np.allclose(matrix, matrix.T) or not np.allclose(np.diag(matrix), 1):
        raise ValueError("lemma 11 is about symmetric matrices with ones on the diagonal")
    count = int((np.linalg.eigvalsh(matrix) > 1 / size).sum())
    return count, (size - 1) / float(np.linalg.norm(matrix))


def low_rank_within(matrix: np.ndarray, epsilon: float, rank: int) -> np.ndarray | None:
    """A matrix of this rank with every entry within epsilon, or None if none was found.

    Alternates between the nearest matrix of the rank and the nearest within the error.
    """
    size = epsilon * np.abs(matrix)
    within = matrix
    for _ in range(_ITERATIONS):
        u, s, vt = np.linalg.svd(within, full_matrices=False)
        low = (u[:, :rank] * s[:rank]) @ vt[:rank]
        if np.all(np.abs(low - matrix) <= size):
            return low
        within = np.clip(low, matrix - size, matrix + size)
    return None


def _least_rank_found(matrix: np.ndarray, epsilon: float, lower: int) -> int:
    """Bisects between a lower bound and the full rank, which always succeeds."""
    if lower == 0:
        return 0
    not_found, found = lower - 1, min(matrix.shape)
    while found - not_found > 1:
        middle = (not_found + found) // 2
        if low_rank_within(matrix, epsilon, middle) is None:
            not_found = middle
        else:
            found = middle
    return found
