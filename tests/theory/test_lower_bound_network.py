"""The network of theorem 2 exists: its grid matrix is the power of a Gram matrix, by entry."""

import math

import jax
import numpy as np
import pytest
from scipy.special import gammaln

from icl_jax.theory import bounds
from icl_jax.theory.epsilon_rank import additive_lower, eigenvalues_above
from icl_jax.theory.lower_bound_network import (
    lower_bound_network,
    pair_count,
    spread_rows,
    templates,
)
from icl_jax.theory.representations import in_context
from icl_jax.theory.separation_rank import grid_matrix
from tests.theory.small import network_config


@pytest.mark.parametrize(
    "depth, width, heads, length",
    [(2, 5, 1, 1), (3, 6, 2, 2), (4, 8, 4, 3), (3, 9, 3, 2), (5, 7, 1, 2)],
)
def test_the_matrix_is_the_power_and_its_epsilon_rank_is_above_the_bound(
    depth, width, heads, length
):
    config = network_config(num_layers=depth, embed_dim=width, num_heads=heads)
    pairs, power = pair_count(config), 3 ** (depth - 2)
    count = math.comb(pairs + power - 1, power)
    rows = spread_rows(count, pairs, power)
    with jax.enable_x64(True):
        model = lower_bound_network(config, length)
        words = list(range(length))
        matrix = grid_matrix(in_context(model, words, words), *templates(rows, width))
    np.testing.assert_allclose(matrix, (rows @ rows.T) ** power, atol=1e-13)
    # Lemmas 10, 11 and 13: epsilon <= 1 / (4 n^2) changes entries within [-1, 1] by less than 2
    # epsilon.
    above, least = eigenvalues_above(matrix)
    assert above >= least
    kept = additive_lower(matrix, 2 / (4 * count**2))
    assert kept >= above
    assert kept > math.exp(bounds.in_context_lower(depth, width, heads))
    if depth == 5:
        assert bounds.in_context_lower(depth, width, heads) > 0  # 1.1, and 212 are kept
        assert kept > 200


def test_the_weights_are_real_and_as_small_as_the_theorem_needs():
    config = network_config(num_layers=3, embed_dim=8, num_heads=2)
    with jax.enable_x64(True):
        values = [np.asarray(leaf) for leaf in jax.tree.leaves(lower_bound_network(config, 2))]
    assert all(np.isrealobj(value) and abs(value).max() <= 1 for value in values if value.size)


@pytest.mark.parametrize("pairs", [1, 2, 3, 5, 20, 150])
@pytest.mark.parametrize("power", [1, 3, 27, 3**8])
def test_random_rows_have_the_norm_of_lemma_15_at_every_size(pairs, power):
    """E <u, v>^(2 lambda) on the sphere, exactly, where the paper proves it for lambda >= d > 5."""
    log_mean = gammaln(pairs / 2) + gammaln(power + 0.5) - gammaln(0.5) - gammaln(power + pairs / 2)
    assert log_mean <= math.log(pairs + 1) - 0.5 * bounds.log_multiset(pairs, power) + 1e-9


def test_sizes_without_such_a_network_are_reported():
    with jax.enable_x64(True):
        with pytest.raises(ValueError, match="at least 2, got 1"):
            lower_bound_network(network_config(num_layers=1, embed_dim=5), 1)
        with pytest.raises(ValueError, match="width of at least 3, got 2"):
            lower_bound_network(network_config(num_layers=2, embed_dim=2), 1)
        with pytest.raises(ValueError, match="7 coordinates must pass the heads, got 1 heads of 4"):
            lower_bound_network(network_config(embed_dim=7, head_dim=4), 1)
        with pytest.raises(ValueError, match="no residual"):
            lower_bound_network(network_config(embed_dim=5, residual=True), 1)
    with pytest.raises(ValueError, match="lemma 15's norm"):
        spread_rows(400, 1, 3)
