"""How much a function of two sets of variables mixes them: its separation rank, on a grid.

The separation rank (Levine et al. 2022, eq. 6) is the smallest number of products g(A) g'(B) that
sum to y(A, B). On a grid, y is a matrix with a row for each point of A and a column for each of B.
Its rank never exceeds the separation rank (Levine et al. 2020, claim 1), and reaches it if there
are enough points in general position. `epsilon_rank.py` has the rank up to an error,
`exact_rank.py` the separation rank itself, for tiny networks.
"""

from collections.abc import Callable, Sequence
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_ROWS_AT_ONCE = 32


class NumericalRank(NamedTuple):
    """How many singular values are above the tolerance, and how clearly."""

    rank: int
    gap: float  # the last singular value that counts over the first that does not; inf: all count
    tolerance: float  # of the equilibrated matrix
    singular_values: np.ndarray  # of the equilibrated matrix, largest first


def grid_matrix(function: Callable, rows, columns) -> np.ndarray:
    """function(row, column) for every pair, in float64.

    `rows` and `columns` are arrays of points, or trees of them. What depends only on the row, such
    as a gradient step on the first sentence, is computed once per row.
    """
    with jax.enable_x64(True):

        @jax.jit
        def evaluate(rows, columns):
            def one_row(row):
                return jax.vmap(lambda column: function(row, column))(columns)

            return jax.lax.map(one_row, rows, batch_size=_ROWS_AT_ONCE)

        rows, columns = jax.tree.map(_as_float64, (rows, columns))
        return np.asarray(evaluate(rows, columns), np.float64)


def grid_tensor(function: Callable, templates, order: int) -> np.ndarray:
    """function(x_1, ..., x_order) for all x_i among the templates, with an axis for each variable.

    The function takes one array (order, ...); Levine et al. 2020, B.1.2.
    """
    with jax.enable_x64(True):
        templates = _as_float64(templates)
        places = np.array(list(itertools.product(range(len(templates)), repeat=order)))
        values = jax.jit(lambda points: jax.lax.map(function, points, batch_size=1024))(
            templates[places]
        )
        return np.asarray(values, np.float64).reshape((len(templates),) * order)


def matricise(tensor: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    """The tensor as a matrix: the axes `rows` against all others, both in ascending order."""
    rows = sorted(rows)
    if not rows or len(set(rows)) != len(rows) or not set(rows) < set(range(tensor.ndim)):
        raise ValueError(
            f"rows must be some, not all, of the axes 0 to {tensor.ndim - 1}, got {rows}"
        )
    columns = [axis for axis in range(tensor.ndim) if axis not in rows]
    count = int(np.prod([tensor.shape[axis] for axis in rows]))
    return tensor.transpose(*rows, *columns).reshape(count, -1)


def numerical_rank(matrix: np.ndarray) -> NumericalRank:
    """The rank of a float64 matrix whose entries are exact up to rounding.

    Rows and columns are first scaled to similar size (`equilibrate`), which keeps the rank.
    A singular value counts if it is above 4 max(m, n) 2^-52 of the largest, which is how much
    errors of 4 units in the last place of every entry can add up to. A `gap` near 1 means that the
    values fall smoothly through the tolerance: the rank is then only what float64 can resolve.
    """
    matrix = check_matrix(matrix)
    values = np.linalg.svd(equilibrate(matrix), compute_uv=False)
    tolerance = 4 * max(matrix.shape) * np.finfo(np.float64).eps * values[0]
    rank = int((values > tolerance).sum())
    rest = values[rank] if rank < len(values) else 0.0
    gap = float(values[rank - 1] / rest) if rank and rest > 0 else np.inf
    return NumericalRank(rank, gap, float(tolerance), values)


def equilibrate(matrix: np.ndarray, sweeps: int = 50) -> np.ndarray:
    """Scales rows and columns by positive numbers so that the sums of absolute values are alike.

    Neither rank nor relative errors of entries change (Sinkhorn's scaling of |matrix|).
    """
    sizes = np.abs(matrix)
    scales = [np.ones((1, sizes.shape[1])), np.ones((sizes.shape[0], 1))]
    for measure in (np.max, *[np.mean] * sweeps):  # the largest first: entries may lie far apart
        for axis in (0, 1):
            found = measure(sizes * scales[1 - axis], axis, keepdims=True) * scales[axis]
            scales[axis] = scales[axis] / np.where(found > 0, found, 1.0)
    return matrix * scales[1] * scales[0]  # two roundings of an entry, however many sweeps


def check_matrix(matrix: np.ndarray) -> np.ndarray:
    """The matrix as float64; stops if it has no meaningful rank."""
    matrix = np.asarray(matrix, np.float64)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"expected a matrix with rows and columns, got {matrix.shape}")
    if not np.isfinite(matrix).all():
        wrong = tuple(int(place) for place in np.argwhere(~np.isfinite(matrix))[0])
        raise ValueError(
            f"the matrix must be finite, got {matrix[wrong]} at {wrong}; a network of depth L is a "
            "polynomial of degree 3^L: take smaller templates or weights"
        )
    return matrix


def _as_float64(points) -> jax.Array:
    points = np.asarray(points)
    return jnp.asarray(points if np.issubdtype(points.dtype, np.integer) else points.astype(float))
