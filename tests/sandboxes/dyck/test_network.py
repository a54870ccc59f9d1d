from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.models.gpt import GPT
from icl_jax.sandboxes.dyck import Dyck
from icl_jax.sandboxes.dyck.network import FORMS, MinimalFirstLayer, embed, gpt, make_uniform

LANGUAGE = Dyck(2, 3)
WIDTH = 7


def network(form="pairs", seed=0, scale=20.0):
    """With weights large enough that attention is far from uniform."""
    model = MinimalFirstLayer(LANGUAGE, form, WIDTH, rngs=nnx.Rngs(seed))
    state = jax.tree.map(
        lambda x, n: scale * x + 0.1 * jax.random.normal(jax.random.key(n), x.shape),
        nnx.state(model), jax.tree.unflatten(jax.tree.structure(nnx.state(model)), range(10)),
    )  # fmt: skip
    nnx.update(model, state)
    return model


def rows(count=4, length=9):
    return np.asarray(LANGUAGE.sample(jax.random.key(5), count, length).tokens_BT)


def by_hand(model, form, tokens):
    """One row through one query, key and value at a time; float64."""
    part = lambda name: tuple(  # noqa: E731
        np.asarray(x[...], np.float64)
        for x in (getattr(model, name).kernel, getattr(model, name).bias)
    )
    e = embed(form, LANGUAGE).astype(np.float64)[np.asarray(LANGUAGE.typed(tokens[None]))[0]]
    (q, k, v) = (e @ kernel + bias for kernel, bias in map(part, ("query", "key", "value")))
    logits = []
    for t in range(len(tokens)):
        weights = np.exp([q[t] @ k[s] / WIDTH**0.5 for s in range(t + 1)])
        mixed = sum(w * v[s] for s, w in enumerate(weights)) / weights.sum()
        normed = (mixed - mixed.mean()) / np.sqrt(mixed.var() + 1e-5)
        normed = normed * np.asarray(model.norm.scale[...]) + np.asarray(model.norm.bias[...])
        kernel, bias = part("head")
        logits.append(normed @ kernel + bias)
    return np.array(logits)


@pytest.mark.parametrize("form", FORMS)
def test_the_network_is_attention_norm_and_head_over_types_and_depths(form):
    model = network(form)
    tokens_BT = rows()
    logits_BTV = model(tokens_BT)
    for tokens, logits in zip(tokens_BT, logits_BTV):
        np.testing.assert_allclose(logits, by_hand(model, form, tokens), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("form", FORMS)
def test_scores_and_values_that_are_read_off_give_the_logits_again(form):
    model, tokens_BT = network(form), rows()
    score_MM, value_MD = (np.asarray(x, np.float64) for x in model.read_off())
    typed_BT = np.asarray(LANGUAGE.typed(tokens_BT))
    for typed, logits_TV in zip(typed_BT, np.asarray(model(tokens_BT))):
        for t in range(len(typed)):
            weights = np.exp(score_MM[typed[: t + 1], typed[t]])
            mixed = weights @ value_MD[typed[: t + 1]] / weights.sum()
            logits = model.head(model.norm(jnp.asarray(mixed, jnp.float32)))
            np.testing.assert_allclose(logits, logits_TV[t], rtol=1e-3, atol=1e-3)


def test_embeddings_are_those_of_the_equations():
    pairs = embed("pairs", LANGUAGE)
    np.testing.assert_array_equal(pairs, np.eye(13))
    split = embed("types and depths", LANGUAGE)
    assert split.shape == (13, 4 + 3 + 1)
    opening, closing = split[1 + 1 * 3 + 1], split[1 + 6 + 1 * 3 + 1]  # type 1 at depth 2, from 1
    assert np.flatnonzero(opening).tolist() == [1, 5] and np.flatnonzero(closing).tolist() == [3, 5]
    turned = embed("types and angles", LANGUAGE)
    theta = np.arctan(2 / (3 + 2 - 2))
    np.testing.assert_allclose(turned[1 + 1 * 3 + 1, 4:6], [np.cos(theta), np.sin(theta)], 1e-6)
    for table in (pairs, split, turned):
        assert len(np.unique(table.round(6), axis=0)) == 13  # no two tokens are alike
    with pytest.raises(ConfigError, match=r"form must be pairs, .*, got 'one-hot'"):
        embed("one-hot", LANGUAGE)


def test_attention_is_causal_and_sums_to_1_in_both_networks():
    tokens_BT = rows()
    for model in (network(), GPT(gpt(LANGUAGE, "linear", width=WIDTH), rngs=nnx.Rngs(0))):
        weights_LBHTS = np.asarray(model.attention_weights(tokens_BT))
        np.testing.assert_allclose(weights_LBHTS.sum(axis=-1), 1, rtol=1e-5)
        assert (np.triu(weights_LBHTS, 1) == 0).all()


@pytest.mark.parametrize("kind", ["minimal", "gpt"])
def test_uniform_attention_is_uniform_and_no_gradient_changes_it(kind):
    if kind == "minimal":
        model = network()
    else:
        model = GPT(gpt(LANGUAGE, width=WIDTH), rngs=nnx.Rngs(0))
    tokens_BT = rows()
    uniform_TS = np.tril(np.ones((10, 10))) / np.arange(1, 11)[:, None]
    assert np.abs(np.asarray(model.attention_weights(tokens_BT)) - uniform_TS).max() > 1e-6
    make_uniform(model)
    np.testing.assert_allclose(
        model.attention_weights(tokens_BT)[-1, :, 0], np.stack([uniform_TS] * 4), atol=1e-6
    )
    graphdef, params = nnx.split(model)

    def loss(params):
        logits_BTV = nnx.merge(graphdef, params)(tokens_BT)
        return -jnp.mean(jax.nn.log_softmax(logits_BTV)[..., 1])

    gradients = jax.tree_util.tree_leaves_with_path(jax.grad(loss)(params))
    found = {jax.tree_util.keystr(path): np.abs(np.asarray(leaf)).max() for path, leaf in gradients}
    fixed = [name for name in found if "query" in name or "['key']" in name]
    assert len(fixed) == (4 if kind == "minimal" else 8), list(found)
    assert all(found[name] == 0 for name in fixed)
    assert all(found[name] > 0 for name in found if "['value']" in name and "kernel" in name)
    assert any("['value']" in name for name in found)
