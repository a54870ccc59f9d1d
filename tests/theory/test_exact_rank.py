"""The network as a polynomial: its exact rank is the numerical one, and the bound that we state."""

import math

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sympy import QQ
from sympy.polys.rings import ring

from icl_jax.theory import bounds
from icl_jax.theory.exact_rank import degrees, exact_separation_rank, in_context_polynomial
from icl_jax.theory.representations import balance, gradient_step, in_context, sequential
from icl_jax.theory.separation_rank import grid_matrix, numerical_rank
from tests.theory.small import FIRST, SECOND, network

LARGEST = pytest.param(2, 3, 1, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "depth, width, heads", [(1, 2, 1), (1, 3, 3), (2, 2, 1), (2, 2, 2), LARGEST]
)
def test_the_numerical_rank_is_the_exact_one(depth, width, heads):
    with jax.enable_x64(True):
        model = network("whole", num_layers=depth, embed_dim=width, num_heads=heads)
        polynomial = in_context_polynomial(model, FIRST, SECOND)
        rows, columns = np.random.default_rng(0).normal(size=(2, 80, width))
        found = numerical_rank(grid_matrix(in_context(model, FIRST, SECOND), rows, columns))
    exact = exact_separation_rank(polynomial)
    assert degrees(polynomial) == {3**depth}
    assert found.rank == exact
    assert found.gap > 1e6
    assert math.log(exact) <= bounds.in_context_exact_upper(depth, width) + 1e-9
    if width // heads > 1:  # heads of one number each fall short of it
        assert math.log(exact) == pytest.approx(bounds.in_context_exact_upper(depth, width))


def test_the_polynomial_has_the_values_of_the_network():
    with jax.enable_x64(True):
        model = network("whole", embed_dim=3, embedding_rank=2)
        polynomial = in_context_polynomial(model, FIRST, SECOND, entry=2)
        a, b = np.random.default_rng(0).integers(-4, 5, (2, 3))
        got = in_context(model, FIRST, SECOND, entry=2)(
            jnp.asarray(a, float), jnp.asarray(b, float)
        )
    point = list(zip(polynomial.ring.gens, map(int, [*a, *b])))
    assert float(got) == pytest.approx(float(polynomial.evaluate(point)), rel=1e-12)


@pytest.mark.parametrize("depth, width", [(1, 2), (2, 2)])
def test_after_a_step_the_output_is_a_polynomial_in_b_and_its_coefficients_have_the_rank(
    depth, width
):
    """One polynomial for each a, by the weights that a gave; every power of b can be told apart."""
    points = np.random.default_rng(0).normal(size=(2, 24, width))
    with jax.enable_x64(True):
        model = balance(network(num_layers=depth, embed_dim=width), FIRST)
        found = numerical_rank(grid_matrix(sequential(model, FIRST, SECOND, 0.1), *points))
        graphdef, _ = nnx.split(model)
        coefficients = []
        for a in points[0][:14]:
            stepped = nnx.merge(graphdef, gradient_step(model, FIRST, 0.1, jnp.asarray(a)))
            polynomial = in_context_polynomial(stepped, [], SECOND)
            assert degrees(polynomial) == {3**depth}
            coefficients.append(dict(polynomial.terms()))
    powers = sorted(set().union(*coefficients))
    matrix = np.array([[float(row.get(power, 0)) for power in powers] for row in coefficients])
    assert found.rank == numerical_rank(matrix).rank == len(powers)
    assert math.log(len(powers)) == pytest.approx(bounds.sequential_exact_upper(depth, width))


def test_the_rank_of_a_polynomial_is_that_of_its_coefficients():
    _, a1, a2, b1, b2 = ring("a1,a2,b1,b2", QQ)
    assert exact_separation_rank((a1 + a2) * (b1 + 3 * b2) ** 2) == 1
    assert exact_separation_rank((a1 * b1 + a2 * b2) ** 2) == 3
    assert exact_separation_rank(a1 - a1) == 0


def test_networks_that_are_not_the_analysed_one_are_sent_away():
    with jax.enable_x64(True), pytest.raises(ValueError, match="plain analysed network"):
        in_context_polynomial(network(residual=True), FIRST, SECOND)
