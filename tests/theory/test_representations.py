"""In context and sequential are equations 4, 5 and 8, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import log_softmax

from icl_jax.theory.representations import (
    analysed_network,
    balance,
    gradient_step,
    in_context,
    loss_gradient,
    sequential,
)
from tests.theory.small import FIRST, SECOND, network, network_config

pytestmark = pytest.mark.delicate

A, B = np.random.default_rng(0).normal(size=(2, 2))


def layers(x, blocks):
    """Equation 1, term by term."""
    for q, k, v, o in blocks:
        y = np.zeros_like(x)
        for i, j, h in np.ndindex(len(x), len(x), q.shape[1]):
            y[i] += ((x[i] @ q[:, h]) @ (x[j] @ k[:, h])) * (x[j] @ v[:, h]) @ o[h]
        x = y
    return x


def arrays(model):
    names = ("query", "key", "value", "out")
    blocks = [[np.asarray(getattr(block, name)[...]) for name in names] for block in model.blocks]
    return np.asarray(model.embedding.rows[...]), blocks


def loss_of(rows, blocks):
    """L(S_1; a): the input is multiplied by a, the output's vocabulary matrix is not."""
    y = layers(rows[FIRST] * A, blocks)
    likelihood = log_softmax(y[:-1] @ rows.T, axis=1)
    return -likelihood[np.arange(len(FIRST) - 1), FIRST[1:]].sum()


def test_in_context_is_both_sentences_in_one_input_each_with_its_own_factor():
    with jax.enable_x64(True):
        model = network(embed_dim=2, num_layers=2)
        rows, blocks = arrays(model)
        expected = layers(np.concatenate([rows[FIRST] * A, rows[SECOND] * B]), blocks)[-1, 1]
        got = in_context(model, FIRST, SECOND, entry=1)(jnp.asarray(A), jnp.asarray(B))
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_the_gradient_is_that_of_the_language_model_loss_by_differences():
    with jax.enable_x64(True):
        model = network(embed_dim=2, num_layers=1)
        rows, blocks = arrays(model)
        found = loss_gradient(model, FIRST, jnp.asarray(A))
        of_rows = approx_fprime(
            rows.ravel(), lambda flat: loss_of(flat.reshape(rows.shape), blocks), 1e-7
        )
        np.testing.assert_allclose(
            np.ravel(found["embedding"]["rows"][...]), of_rows, rtol=1e-4, atol=1e-6
        )
        value = blocks[0][2]
        of_value = approx_fprime(
            value.ravel(),
            lambda flat: loss_of(rows, [[*blocks[0][:2], flat.reshape(value.shape), blocks[0][3]]]),
            1e-7,
        )
        np.testing.assert_allclose(
            np.ravel(found["blocks"][0]["value"][...]), of_value, rtol=1e-4, atol=1e-6
        )


def test_sequential_reads_the_second_sentence_with_the_weights_after_the_step():
    with jax.enable_x64(True):
        model, a = network(embed_dim=2, num_layers=2), jnp.asarray(A)
        rows, blocks = arrays(model)
        gradient = loss_gradient(model, FIRST, a)
        rows = rows - 0.1 * np.asarray(gradient["embedding"]["rows"][...])
        names = ("query", "key", "value", "out")
        blocks = [
            [
                w - 0.1 * np.asarray(gradient["blocks"][n][name][...])
                for w, name in zip(block, names)
            ]
            for n, block in enumerate(blocks)
        ]
        expected = layers(rows[SECOND] * B, blocks)[-1, 0]
        got = sequential(model, FIRST, SECOND, 0.1)(a, jnp.asarray(B))
        np.testing.assert_allclose(got, expected, rtol=1e-10)


def test_without_a_step_the_first_sentence_is_forgotten():
    with jax.enable_x64(True):
        output = sequential(network(), FIRST, SECOND, 0.0)
        here, there = (output(jnp.asarray(a), jnp.asarray(B)) for a in (A, 3 * A))
        assert here == there


def test_a_clipped_gradient_is_no_longer_than_its_weights():
    with jax.enable_x64(True):
        model, a = balance(network(num_layers=3), FIRST), jnp.asarray(3 * np.ones(2))
        weights = model.embedding.rows[...]

        def moved(clip):
            stepped = gradient_step(model, FIRST, 0.01, a, clip)
            return jnp.linalg.norm(stepped["embedding"]["rows"][...] - weights)

        limit = 0.01 * jnp.linalg.norm(weights)
        assert moved(None) > limit
        np.testing.assert_allclose(moved(1.0), limit, rtol=1e-9)
        np.testing.assert_allclose(moved(1e30), moved(None), rtol=1e-9)


def test_a_balanced_network_has_unit_output_and_the_same_rank_in_context():
    with jax.enable_x64(True):
        plain, balanced = network(num_layers=3), balance(network(num_layers=3), FIRST)
        hidden = balanced.hidden(np.array([FIRST]))
        np.testing.assert_allclose(jnp.sqrt(jnp.mean(hidden**2)), 1, rtol=1e-12)
        ratio = [
            in_context(balanced, FIRST, SECOND)(*p) / in_context(plain, FIRST, SECOND)(*p)
            for p in jnp.asarray(np.random.default_rng(1).normal(size=(3, 2, 2)))
        ]
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-9)  # a factor, no more


def test_positive_weights_make_a_positive_output():
    with jax.enable_x64(True):
        model = network("positive", num_layers=3)
        assert in_context(model, FIRST, SECOND)(jnp.ones(2), jnp.ones(2)) > 0
        drawn = np.unique(network("whole").blocks[0].value[...])
        assert len(drawn) > 2 and set(drawn) <= {-3, -2, -1, 1, 2, 3}


def test_what_cannot_be_measured_is_reported():
    with pytest.raises(ValueError, match="float64, got dtype float32"):
        analysed_network(network_config(dtype="float32"))
    with pytest.raises(ValueError, match="enable_x64"):
        analysed_network(network_config())
    with jax.enable_x64(True):
        with pytest.raises(ValueError, match="one of normal, positive, whole, got odd"):
            network("odd")
        with pytest.raises(ValueError, match="needs at least 2 words to have a next word, got 1"):
            loss_gradient(network(), [1], jnp.ones(2))
