"""The analysed network is the equation of the papers, literally."""

from flax import nnx
import numpy as np
import pytest

from icl_jax.config import LinearAttentionConfig
from tests.models.small import make_model

pytestmark = pytest.mark.delicate

SMALL = {"vocab_size": 11, "context_length": 6, "num_layers": 2, "embed_dim": 6, "num_heads": 2}
TOKENS = np.random.default_rng(0).integers(0, 11, (2, 5))


def layers_of_the_equation(model, embedded):
    """Levine et al. 2022, eq. 1, summed term by term in float64."""
    config, y = model.config, np.asarray(embedded, np.float64)
    for block in model.blocks:
        names = ("query", "key", "value", "out")
        q, k, v, o = (np.asarray(getattr(block, name)[...], np.float64) for name in names)
        following = y.copy() if config.residual else np.zeros_like(y)
        for b, i, j in np.ndindex(len(y), y.shape[1], y.shape[1]):
            if config.causal and j > i:
                continue
            for h in range(config.num_heads):
                score = (y[b, i] @ q[:, h]) @ (y[b, j] @ k[:, h])
                following[b, i] += score * (y[b, j] @ v[:, h]) @ o[h]
        y = following
    return y


@pytest.mark.parametrize(
    "changes",
    [{}, {"causal": True}, {"residual": True}, {"head_dim": 5, "num_heads": 3}],
    ids=["plain", "causal", "residual", "free head size"],
)
def test_the_network_is_the_equation(changes):
    model = make_model(LinearAttentionConfig(**(SMALL | changes)))
    matrix = np.asarray(model.embedding.rows[...], np.float64)
    expected = layers_of_the_equation(model, matrix[TOKENS])
    scale = np.abs(expected).max()
    np.testing.assert_allclose(model.hidden(TOKENS), expected, rtol=1e-4, atol=1e-6 * scale)
    logits = expected @ matrix.T
    np.testing.assert_allclose(model(TOKENS), logits, rtol=1e-4, atol=1e-6 * np.abs(logits).max())


def test_a_convolution_embeds_windows_of_raw_vectors():
    """Wies et al. 2021, eq. 2."""
    config = LinearAttentionConfig(
        **SMALL, embedding="convolution", kernel_size=3, input_dim=4, tie_head=False
    )
    model = make_model(config)
    raw = np.random.default_rng(0).normal(size=(2, 15, 4))
    kernel = np.asarray(model.embedding.kernel[...], np.float64)
    embedded = [
        [sum(raw[b, 3 * i + j] @ kernel[j] for j in range(3)) for i in range(5)] for b in range(2)
    ]
    expected = layers_of_the_equation(model, embedded)
    got = model.hidden(raw)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())
    assert model(raw).shape == (2, 5, 11)
    with pytest.raises(ValueError, match=r"multiple of kernel_size 3.*got \(2, 14, 4\)"):
        model(raw[:, :14])


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_the_output_is_a_polynomial_of_degree_3_to_the_depth(num_layers):
    model = make_model(LinearAttentionConfig(**(SMALL | {"num_layers": num_layers})))
    before = model.hidden(TOKENS)
    model.embedding.rows[...] = model.embedding.rows[...] * 1.1
    ratio = np.asarray(model.hidden(TOKENS) / before)
    np.testing.assert_allclose(np.median(ratio), 1.1**3**num_layers, rtol=1e-4)


def test_sentence_association_scales_the_embeddings_of_each_sentence():
    """Levine et al. 2022, eq. 8."""
    model = make_model(LinearAttentionConfig(**SMALL))
    rng = np.random.default_rng(1)
    sentence = np.array([[1, 1, 2, 2, 2], [2, 1, 1, 1, 2]])
    a, b = rng.normal(size=(2, 6))
    embedded = np.asarray(model.embedding.rows[...], np.float64)[TOKENS]
    embedded = embedded * np.where(sentence[..., None] == 1, a, b)
    expected = layers_of_the_equation(model, embedded)
    got = model.hidden(TOKENS, sentence=sentence, association=np.stack([a, b]))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())
    neither = model.hidden(TOKENS, sentence=0 * sentence, association=np.stack([a, b]))
    np.testing.assert_array_equal(neither, model.hidden(TOKENS))
    ones = model.hidden(TOKENS, sentence=sentence, association=np.ones((2, 6)))
    np.testing.assert_array_equal(ones, model.hidden(TOKENS))  # Z_y(1, 1) = y


def test_sentence_association_leaves_positions_alone():
    model = make_model(LinearAttentionConfig(**SMALL, position="learned"))
    sentence, zero = np.ones((2, 5), np.int32), np.zeros((2, 6))
    got = model.hidden(TOKENS, sentence=sentence, association=zero)
    rows = np.asarray(model.positions.table.rows[...], np.float64)[:5]
    expected = layers_of_the_equation(model, np.stack([rows, rows]))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())


def test_wrong_associations_are_refused():
    model, sentence = make_model(LinearAttentionConfig(**SMALL)), np.ones((2, 5), np.int32)
    with pytest.raises(ValueError, match="needs both"):
        model(TOKENS, sentence=sentence)
    with pytest.raises(ValueError, match=r"\(2, 6\): a and b, got \(6,\)"):
        model(TOKENS, sentence=sentence, association=np.ones(6))
    with pytest.raises(ValueError, match=r"sentence marks must be within 0..2, got 3"):
        model(TOKENS, sentence=3 * sentence, association=np.ones((2, 6)))


@pytest.mark.parametrize("embedding", ["vocabulary", "convolution"])
def test_the_embedding_has_the_rank_asked_for(embedding):
    config = LinearAttentionConfig(
        **SMALL, embedding=embedding, embedding_rank=2, input_dim=9, tie_head=False
    )
    model = make_model(config)
    inputs = np.eye(9)[None] if embedding == "convolution" else np.arange(9)[None]
    embedded = model.embedding(inputs.astype(np.float32) if inputs.ndim == 3 else inputs)
    assert np.linalg.matrix_rank(embedded[0], tol=1e-4) == 2


def test_no_parameter_but_those_of_the_equation():
    params = nnx.state(make_model(LinearAttentionConfig(**SMALL)).blocks[0])
    assert set(params) == {"query", "key", "value", "out"}
