"""Both mechanisms against brute force, and the terms of a score against the model that has them."""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.config import ConfigError, GPTConfig, OptimizerConfig
from icl_jax.models.gpt import GPT
from icl_jax.sandboxes.fit import Recipe, fit
from icl_jax.sandboxes.flip_flop.mechanisms import (
    Terms,
    dilution,
    half_length,
    largest_weight,
    needed_sigma,
    predict_failures,
    read_terms,
    score_range,
)
from icl_jax.training.objectives import Task

IDLE, WRITE, OTHER = range(3)
LINEAR = {
    "vocab_size": 5, "context_length": 11, "num_layers": 1, "embed_dim": 6, "num_heads": 2,
    "mlp_dim": 7, "norm": "none", "position": "linear",
}  # fmt: skip


def made(**fields):
    """A GPT with large random weights, biases too."""
    model = GPT(GPTConfig(**{**LINEAR, **fields}), rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(model)
    rng = np.random.default_rng(1)
    state = jax.tree.map(lambda x: 0.7 * rng.standard_normal(x.shape).astype(np.float32), state)
    return nnx.merge(graphdef, state)


def softmax(scores):
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


# Proposition 4.


def test_no_unit_vectors_get_a_larger_weight_than_the_bound():
    rng = np.random.default_rng(0)
    for length in (2, 17):
        for sigma in (0.3, 2.0):
            found = 0.0
            for _ in range(200):
                matrix = rng.standard_normal((4, 4))
                matrix *= sigma / np.linalg.svd(matrix)[1][0]
                x_TD = rng.standard_normal((length, 4))
                x_TD /= np.linalg.norm(x_TD, axis=1, keepdims=True)
                found = max(found, softmax(x_TD @ matrix @ x_TD[-1]).max())
            assert found <= largest_weight(sigma, length)
            u = np.eye(4)[0]  # keys u and -u, the query u: the bound is reached
            keys = np.concatenate([u[None], -np.tile(u, (length - 1, 1))])
            reached = softmax(keys @ (sigma * np.eye(4)) @ u)[0]
            assert reached == pytest.approx(largest_weight(sigma, length))


def test_the_sigma_that_512_tokens_need():
    needed = [needed_sigma(weight, 512) for weight in (0.5, 0.9, 0.99)]
    np.testing.assert_allclose(needed, [3.12, 4.22, 5.42], atol=0.005)  # the specification
    for sigma, weight in zip(needed, (0.5, 0.9, 0.99), strict=True):
        assert largest_weight(sigma, 512) == pytest.approx(weight)


def test_half_the_weight_is_lost_beyond_the_length_that_the_range_gives():
    spread = 3.3
    longest = int(half_length(spread))
    best = [softmax(np.r_[spread, np.zeros(n - 1)])[0] for n in (longest, longest + 1)]
    assert best[0] >= 0.5 > best[1]


def test_the_range_of_scores_is_read_off_the_weights_of_a_model():
    model = made(num_layers=2, position="none", norm="layer")
    tokens_BT = np.random.default_rng(2).integers(0, 5, (3, 9)).astype(np.int32)
    weights_LBHTS = np.asarray(model.attention_weights(tokens_BT), np.float64)
    found = dilution(model, tokens_BT)
    for layer, head in np.ndindex(2, 2):
        ranges, most = [], []
        for row, place in zip(*np.nonzero(tokens_BT == 1), strict=True):
            own = weights_LBHTS[layer, row, head, place, : place + 1]
            ranges.append(np.log(own.max() / own.min()))
            most.append(own.max())
        assert found.score_range[layer, head] == pytest.approx(np.median(ranges), rel=1e-5)
        assert found.half_length[layer, head] == pytest.approx(1 + np.exp(np.median(ranges)))
        assert found.weight[layer, head] == pytest.approx(np.median(most), rel=1e-5)
    everywhere = dilution(model, tokens_BT, np.ones_like(tokens_BT))
    assert not np.allclose(everywhere.weight, found.weight)


def test_a_weight_that_float32_loses_counts_as_its_smallest():
    weights = np.array([[[[1.0, 0.0], [1.0, 0.0]]]], np.float32)
    np.testing.assert_allclose(score_range(weights), [[[0.0, 87.3]]], atol=0.1)


# Proposition 5.


def example(kappa, first=1):
    """A = 0, b = 1, c = 2 for writes and 0 for idle, C = 1000: that of the specification."""
    return Terms(np.zeros((3, 3)), np.ones(3), np.array([0.0, 2, 2]), kappa, 1000, first)


def random_terms(seed):
    rng = np.random.default_rng(seed)
    unit = float(rng.choice([1, 3, 10, 30]))
    terms = rng.standard_normal((3, 3)), rng.standard_normal(3), rng.standard_normal(3)
    return Terms(*terms, float(rng.normal()), unit, int(rng.integers(0, 2)))


def rows_of(length):
    """One write and two writes."""
    one = np.full(length, IDLE)
    one[0] = WRITE
    two = one.copy()
    two[0], two[-2] = OTHER, WRITE
    return (one, 0), (two, length - 2)


def attends(terms, tokens, right):
    """Whether the score on the right key is the largest, term by term."""
    i, scores = len(tokens) - 1 + terms.first, []
    for n, token in enumerate(tokens):
        j = n + terms.first
        scores.append(
            terms.content_VV[tokens[-1], token]
            + terms.key_place_V[tokens[-1]] * j / terms.unit
            + terms.query_place_V[token] * i / terms.unit
            + terms.kappa * i * j / terms.unit**2
        )
    others = np.delete(scores, right)
    return scores[right] > others.max() + 1e-9


def brute_force(terms, longest):
    """The first lengths at which hard attention fails, every length tried."""
    found = []
    for kind, shortest in ((0, 2), (1, 3)):
        lengths = range(shortest, longest + 1)
        found.append(next((n for n in lengths if not attends(terms, *rows_of(n)[kind])), None))
    return found


def test_the_predicted_length_is_the_first_at_which_some_position_wins():
    predicted, longest = [], 60
    for seed in range(150):
        terms = random_terms(seed)
        found = predict_failures(terms, WRITE, OTHER, IDLE)
        expected = [n if n and n <= longest else None for n in found]
        assert brute_force(terms, longest) == expected, (seed, found)
        predicted += expected
    later = [n for n in predicted if n and n > 4]
    assert len(set(later)) > 10 and None in predicted  # of all kinds


@pytest.mark.parametrize(("kappa", "around"), [(0.1, 10_000), (1.0, 1000)])
def test_examples_fail_near_c_by_kappa_on_the_row_of_the_proof(kappa, around):
    one = predict_failures(example(kappa), WRITE, OTHER, IDLE)
    two = predict_failures(example(-kappa), WRITE, OTHER, IDLE)
    assert one.two_writes is None and two.one_write is None
    both = (0, one.one_write, example(kappa)), (1, two.two_writes, example(-kappa))
    for kind, length, terms in both:
        assert abs(length - around) < 5
        for tried, right in ((length - 1, True), (length, False), (10 * length, False)):
            assert attends_to_last(terms, *rows_of(tried)[kind]) == right


def attends_to_last(terms, tokens, right):
    scores = terms.of_last(tokens)
    return scores[right] > np.delete(scores, right).max() + 1e-9


def test_without_kappa_the_example_never_fails():
    assert predict_failures(example(0.0), WRITE, OTHER, IDLE) == (None, None)
    for length in (2, 3, 1000, 200_000):
        for row in rows_of(length)[: 1 if length == 2 else 2]:
            assert attends_to_last(example(0.0), *row)


@pytest.mark.parametrize(
    "fields", [{}, {"scan_layers": True}, {"head_dim": 4, "embedding_rank": 3}]
)
def test_the_terms_of_a_model_give_its_attention_weights(fields):
    model = made(**fields)
    tokens_T = np.array([0, 4, 2, 3, 2, 2, 0, 3, 1, 1, 4], np.int32)
    weights_HTS = np.asarray(model.attention_weights(tokens_T[None]))[0, 0]
    heads = read_terms(model)
    assert len(heads) == 2
    for head, terms in enumerate(heads):
        assert terms.unit == 11 and abs(terms.kappa) > 0.01
        for t in range(len(tokens_T)):
            own = softmax(terms.of_last(tokens_T[: t + 1]))
            np.testing.assert_allclose(own, weights_HTS[head, t, : t + 1], atol=2e-5)


def test_a_model_fails_where_its_terms_say():
    """The example as weights: the head dimensions are 1, the token's b and c, the position."""
    for kappa, kind in ((4.0, 0), (-4.0, 1)):
        model = made(embed_dim=3, num_heads=1, head_dim=2, context_length=40, vocab_size=3)
        set_parameters(model, kappa)
        (terms,) = read_terms(model)
        np.testing.assert_allclose(terms.query_place_V, [0, 2, 2], atol=1e-5)
        np.testing.assert_allclose([terms.kappa, *terms.key_place_V], [kappa, 1, 1, 1], atol=1e-5)
        length = predict_failures(terms, WRITE, OTHER, IDLE)[kind]
        assert 5 < length < 39
        for n, expected in ((length - 2, True), (length + 2, False)):
            tokens, right = rows_of(n)[kind]
            weights = np.asarray(model.attention_weights(tokens[None].astype(np.int32)))
            assert (weights[0, 0, 0, -1].argmax() == right) == expected


@pytest.mark.slow
def test_a_trained_network_fails_where_its_terms_say():
    length, batch = 24, 32
    config = GPTConfig(
        vocab_size=3, context_length=length, num_layers=1, embed_dim=32, num_heads=1, mlp_dim=64,
        norm="none", position="linear", tie_head=False, init_stddev=0.2,
    )  # fmt: skip

    def draw(key):
        """Every token asks for the latest write up to it."""
        idle_key, write_key = jax.random.split(key)
        idle_BT = jax.random.bernoulli(idle_key, 0.8, (batch, length)).at[:, 0].set(False)
        writes_BT = jax.random.randint(write_key, (batch, length), WRITE, OTHER + 1)
        tokens_BT = jnp.where(idle_BT, IDLE, writes_BT)
        latest_BT = jax.lax.cummax(jnp.where(idle_BT, 0, jnp.arange(length)), axis=1)
        targets_BT = jnp.take_along_axis(tokens_BT, latest_BT, axis=1)
        return Task(tokens_BT, None, targets_BT, jnp.ones((batch, length), jnp.float32)), None

    optimizer = OptimizerConfig(
        learning_rate=3e-3, schedule="linear", warmup=50, b2=0.999, weight_decay=0.0
    )
    fitted = fit(config, draw, Recipe(500, optimizer), range(2))
    assert fitted.losses[:, -1].max() < 0.02
    for seed in range(2):
        model = fitted.model(jax.tree.map(lambda x: x[seed], fitted.params))  # noqa: B023
        (terms,) = read_terms(model)
        for kind, found in enumerate(predict_failures(terms, WRITE, OTHER, IDLE)):
            assert found is None or found > 4
            tried = [(1000, True)] if found is None else [(found - 1, True), (found + 1, False)]
            for n, expected in tried:
                tokens, right = rows_of(n)[kind]
                weights = np.asarray(model.attention_weights(tokens[None].astype(np.int32)))
                assert (weights[0, 0, 0, -1].argmax() == right) == expected


def set_parameters(model, kappa):
    """Embeddings e_0 (all tokens) and e_1 (writes), positions e_2."""
    model.token_embedding.rows[...] = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 0]], np.float32)
    model.positions.direction[...] = np.array([0, 0, 1], np.float32)
    layer = next(iter(model.blocks)).attention
    query, key = np.zeros((2, 3, 1, 2), np.float32)
    query[0, 0] = 1, 0  # the query's token: 1
    query[2, 0] = kappa, 1
    key[2, 0] = 1, 0  # its product with the key's position: b = 1, and kappa
    key[1, 0] = 0, 2  # with the query's position: c = 2 for writes
    layer.query.kernel[...] = query * 2**0.5
    layer.key.kernel[...] = key
    for part in (layer.query, layer.key):
        part.bias[...] = np.zeros((1, 2), np.float32)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm": "layer"}, r"norm='none', position='linear', got num_layers=1, norm='layer'"),
        ({"num_layers": 2}, "got num_layers=2"),
        ({"position": "learned"}, "got num_layers=1, norm='none', position='learned'"),
    ],
)
def test_models_whose_score_is_no_such_sum_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        read_terms(made(**fields))


def test_numbers_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="between 0 and 1"):
        needed_sigma(1.0, 512)
    with pytest.raises(ConfigError, match="as many queries as keys"):
        score_range(np.ones((1, 1, 2, 3)))
    with pytest.raises(ConfigError, match="no token"):
        dilution(made(), np.array([[0, 3, 2, 4]], np.int32))
