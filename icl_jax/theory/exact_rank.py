"""The separation rank itself, without a tolerance: SymPy expands the network into a polynomial.

Products of powers are linearly independent, so the separation rank of a polynomial in (a, b) is the
rank of its coefficient matrix, with a row for each product of powers of a and a column for each of
b. For tiny networks with rational weights, all of this is exact arithmetic.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from sympy import QQ
from sympy.polys.matrices import DomainMatrix
from sympy.polys.rings import PolyElement, ring

from icl_jax.models.linear_attention import LinearAttention


def in_context_polynomial(
    model: LinearAttention, first: Sequence[int], second: Sequence[int], entry: int = 0
) -> PolyElement:
    """`representations.in_context` as a polynomial in a_1 ... a_d, b_1 ... b_d.

    The floating-point weights are read as exact fractions: draw them as small whole numbers
    (`analysed_network(weights="whole")`), or the coefficients get long.
    """
    config = model.config
    plain = not (config.causal or config.residual or config.scan_layers)
    if not plain or config.position != "none" or config.embedding != "vocabulary":
        raise ValueError(
            "the exact rank needs the plain analysed network with a vocabulary: no mask, residual, "
            "positions or scan"
        )
    width = config.embed_dim
    names = [f"{side}{n}" for side in "ab" for n in range(1, width + 1)]
    _, *variables = ring(names, QQ)
    rows = _rational(model.embedding.rows[...])
    if model.embedding.up is not None:
        rows = rows @ _rational(model.embedding.up[...])
    sides = np.array(variables, object).reshape(2, width)
    x_TD = np.stack(
        [rows[token] * side for side, tokens in zip(sides, (first, second)) for token in tokens]
    )
    for block in model.blocks:
        names = ("query", "key", "value", "out")
        x_TD = _layer(x_TD, *(_rational(getattr(block, name)[...]) for name in names))
    return x_TD[-1, entry]


def exact_separation_rank(polynomial: PolyElement) -> int:
    """The separation rank between the first half of the variables and the second."""
    half = len(polynomial.ring.gens) // 2
    terms = [(powers[:half], powers[half:], value) for powers, value in polynomial.terms()]
    rows = {powers: n for n, powers in enumerate(sorted({term[0] for term in terms}))}
    columns = {powers: n for n, powers in enumerate(sorted({term[1] for term in terms}))}
    entries: dict[int, dict[int, object]] = {}
    for of_a, of_b, value in terms:
        entries.setdefault(rows[of_a], {})[columns[of_b]] = value
    return DomainMatrix(entries, (len(rows), len(columns)), QQ).rank() if terms else 0


def degrees(polynomial: PolyElement) -> set[int]:
    """The total degrees that occur."""
    return {sum(powers) for powers in polynomial.itermonoms()}


def _layer(x_TD, query_DHK, key_DHK, value_DHK, out_HKD):
    """Levine et al. 2022, eq. 1: a head is W_O (sum_j v_j k_j^T) q_i."""
    total = 0
    for head in range(query_DHK.shape[1]):
        keys, values = x_TD @ key_DHK[:, head], x_TD @ value_DHK[:, head]
        total = total + (x_TD @ query_DHK[:, head]) @ (keys.T @ values) @ out_HKD[head]
    return total


def _rational(weights) -> np.ndarray:
    """An array of exact fractions."""
    flat = [QQ(*Fraction(float(value)).as_integer_ratio()) for value in np.ravel(weights)]
    return np.array(flat, object).reshape(np.shape(weights))
