"""Draws have the probabilities that temperature, top-k and top-p say."""

import jax
import numpy as np
import pytest
import scipy.stats

from icl_jax.evaluation.generation import sampling as module
from icl_jax.evaluation.generation.sampling import Sampling, choose, keep_highest, make_draws

pytestmark = pytest.mark.delicate

LOGITS = np.random.default_rng(3).permutation(np.linspace(-1, 1, 11)).astype(np.float32)
ROWS = 4000

choose_compiled = jax.jit(choose)


def expected_probabilities(sampling):
    scores = np.asarray(LOGITS, np.float64) / sampling.temperature
    order = np.argsort(-scores)
    kept = order[: sampling.top_k or None]
    shares = np.exp(scores[kept]) / np.exp(scores[kept]).sum()
    kept = kept[: np.searchsorted(np.cumsum(shares), sampling.top_p) + 1]
    probabilities = np.zeros(len(scores))
    probabilities[kept] = np.exp(scores[kept]) / np.exp(scores[kept]).sum()
    return probabilities


@pytest.mark.parametrize("sampling", [
    Sampling(), Sampling(temperature=0.6, seed=1), Sampling(top_p=0.7, seed=2),
    Sampling(temperature=1.7, top_k=8, top_p=0.8, seed=3),
])  # fmt: skip
def test_draws_have_the_exact_probabilities(sampling):
    draws = make_draws(sampling, np.arange(ROWS))
    tokens = choose_compiled(np.tile(LOGITS, (ROWS, 1)), draws, np.int32(5))
    counts = np.bincount(tokens, minlength=len(LOGITS))
    expected = expected_probabilities(sampling) * ROWS
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    filtered = sampling.top_k > 0 or sampling.top_p < 1
    assert (1 < possible.sum() < len(LOGITS)) == filtered
    assert expected[possible].min() > 5  # or chi-square would not hold
    assert scipy.stats.chisquare(counts[possible], expected[possible]).pvalue > 1e-3


def test_tokens_of_all_blocks_are_drawn(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 3)  # 11 tokens: the last block is not full
    draws = make_draws(Sampling(seed=4), np.arange(ROWS))
    tokens = jax.jit(lambda rows: choose(rows, draws, np.int32(0)))(np.tile(LOGITS, (ROWS, 1)))
    counts = np.bincount(tokens, minlength=len(LOGITS))
    expected = expected_probabilities(Sampling()) * ROWS
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-3


def test_draws_of_different_steps_are_independent():
    draws = make_draws(Sampling(), np.arange(ROWS))
    rows = np.tile(LOGITS, (ROWS, 1))
    one, other = (choose_compiled(rows, draws, np.int32(step)) for step in (0, 1))
    shares = expected_probabilities(Sampling())
    assert abs(np.mean(one == other) - np.sum(shares**2)) < 0.03


def test_the_highest_scores_are_found_and_those_level_with_the_last_stay():
    scores = np.array([[3.0, -1.0, 0.0, -0.5, 3.0, -np.inf, 2.0], [0, 0, 0, 0, 0, 0, 0]], "float32")
    keep = jax.jit(lambda count: keep_highest(scores, np.ones_like(scores), count))
    assert np.isfinite(keep(4)).tolist() == [[1, 0, 1, 0, 1, 0, 1], [1] * 7]
    assert np.isfinite(keep(6))[0].sum() == 6
    np.testing.assert_array_equal(keep(99), scores)
