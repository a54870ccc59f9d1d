"""The chunked loss is the plain cross-entropy, on every mesh, and never holds all logits."""

import contextlib
import re

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
import numpy as np
import optax
import pytest

from icl_jax.config import GPTConfig, LinearAttentionConfig, MeshConfig, RobertaConfig
from icl_jax.models import losses
from icl_jax.models.layers import vocabulary_logits
from icl_jax.models.losses import vocabulary_loss
from icl_jax.sharding import make_mesh, spec
from tests.models.small import make_model

pytestmark = pytest.mark.delicate

BATCH, TIME, EMBED, VOCAB = 8, 13, 6, 23
MESHES = [None, (8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 4), (1, 1, 8)]


def draw(batch=BATCH, time=TIME, embed=EMBED, vocab=VOCAB, share=0.3):
    """x, rows, bias; targets, weights of which only a `share` is not 0."""
    rng = np.random.default_rng(0)
    operands = [
        rng.normal(size=shape).astype("float32")
        for shape in ((batch, time, embed), (vocab, embed), (vocab,))
    ]
    weights = np.where(rng.random((batch, time)) < share, rng.uniform(0.5, 2, (batch, time)), 0)
    weights[0] = 0  # a row without any
    return operands, rng.integers(0, vocab, (batch, time)), weights.astype("float32")


def plain(operands, targets, weights):
    """3 times the loss, and its gradients, in float64."""

    def loss(x, rows, bias):
        logits = x @ rows.T + bias
        return 3 * jnp.sum(
            weights * optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        )

    with jax.enable_x64(True):
        operands = [jnp.asarray(a, "float64") for a in operands]
        weights = jnp.asarray(weights, "float64")
        return jax.value_and_grad(loss, (0, 1, 2))(*operands)


def chunked(operands, targets, weights, **options):
    """The same by `vocabulary_loss`."""
    options = {"dtype": "float32", **options}

    @jax.jit
    def value_and_grad(operands, targets, weights):
        loss = lambda *operands: 3.0 * vocabulary_loss(*operands, targets, weights, **options)  # noqa: E731
        return jax.value_and_grad(loss, (0, 1, 2))(*operands)

    return value_and_grad, (operands, targets, weights)


def assert_close(got, expected, rtol=1e-5):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_value_and_gradients_are_those_of_the_plain_loss_on_every_mesh(sizes, sparse):
    inputs = draw()
    function, arguments = chunked(*inputs, sparse=sparse)
    with jax.set_mesh(make_mesh(MeshConfig(*sizes))) if sizes else contextlib.nullcontext():
        got = function(*arguments)
    assert_close(got, plain(*inputs))


@pytest.mark.parametrize(
    "shape",
    [
        (3, 7, 4, 11),
        pytest.param((2, 1, 3, 5), marks=pytest.mark.slow),
        pytest.param((8, 5, 8, 24), marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize("share", [1.0, 0.0], ids=["every token", "no token"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_any_shape_and_any_number_of_weighted_tokens(shape, share, sparse):
    inputs = draw(*shape, share=share)
    function, arguments = chunked(*inputs, sparse=sparse)
    with jax.set_mesh(make_mesh(MeshConfig(2, 2, 2))):  # divides some of the sizes and not others
        got = function(*arguments)
    assert_close(got, plain(*inputs))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_small_chunk_changes_nothing(sparse, monkeypatch):
    monkeypatch.setattr(losses, "CHUNK_BYTES", 4 * BATCH * VOCAB * 3)  # 3 of 13 columns
    jax.clear_caches()
    inputs = draw(share=0.9)
    function, arguments = chunked(*inputs, sparse=sparse)
    assert_close(function(*arguments), plain(*inputs))
    jax.clear_caches()


def test_without_gradients_the_value_is_the_same():
    (x, rows, _), targets, weights = draw()
    expected, _ = plain((x, rows, np.zeros(VOCAB)), targets, weights)
    for sparse in (False, True):
        got = vocabulary_loss(x, rows, None, targets, weights, dtype="float32", sparse=sparse)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(3 * got, expected, rtol=1e-5)


def test_targets_of_tokens_without_weight_do_not_matter_and_others_must_exist():
    operands, targets, weights = draw()
    expected = vocabulary_loss(*operands, targets, weights, dtype="float32")
    ignored = np.where(weights == 0, -100, targets)
    assert expected == vocabulary_loss(*operands, ignored, weights, dtype="float32")
    for wrong in (-1, VOCAB):
        outside = np.where(weights == weights.max(), wrong, targets)
        assert jnp.isnan(vocabulary_loss(*operands, outside, weights, dtype="float32"))


def test_bfloat16_products_are_summed_in_float32():
    inputs = draw(share=1.0)
    operands, targets, weights = inputs
    rounded = [np.asarray(jnp.asarray(a, "bfloat16"), "float32") for a in operands[:2]]
    function, arguments = chunked((*rounded, operands[2]), targets, weights, dtype="bfloat16")
    value, gradients = function(*arguments)
    expected_value, expected = plain((*rounded, operands[2]), targets, weights)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    assert [g.dtype for g in gradients] == ["float32"] * 3
    assert_close(gradients, expected, rtol=2e-2)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("sizes", [None, (2, 2, 2)], ids=str)
def test_no_array_has_the_logits_of_all_tokens(sizes, sparse):
    """Nor does any device hold those of all its own tokens."""
    function, arguments = chunked(*draw(), sparse=sparse)
    with jax.set_mesh(make_mesh(MeshConfig(*sizes))) if sizes else contextlib.nullcontext():
        text = function.lower(*arguments).compile().as_text()
    shapes = {tuple(map(int, dims.split(","))) for dims in re.findall(r"\[([\d,]+)\]", text)}
    tokens, parts = BATCH * TIME, 4 if sizes else 1
    with_vocabulary = [np.prod(s) for s in shapes if VOCAB in s]
    assert with_vocabulary  # the text is read correctly
    assert max(with_vocabulary) <= 0.6 * tokens * VOCAB / parts


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_the_gradient_of_the_rows_is_reduced_once_not_in_every_chunk(sparse):
    mesh = make_mesh(MeshConfig(4, 2, 1))
    axes = [("batch", None, None), ("vocab", "embed"), ("vocab",)]
    (x, rows, bias), *tokens = draw()
    places = [NamedSharding(mesh, spec(a, b.shape, mesh)) for a, b in zip(axes, (x, rows, bias))]
    operands = jax.device_put([x, rows, bias], places)
    tokens = jax.device_put(tokens, NamedSharding(mesh, spec(axes[0][:2], x.shape[:2], mesh)))
    function, arguments = chunked(operands, *tokens, sparse=sparse)
    with jax.set_mesh(mesh):
        text = function.lower(*arguments).compile().as_text()
    bodies = re.findall(r"body=%?([\w.\-]+)", text)
    assert bodies
    for name in bodies:
        body = re.search(rf"^%?{re.escape(name)} .*?^}}", text, re.S | re.M).group()
        assert not re.search(r"(all-reduce|reduce-scatter|all-gather|all-to-all)", body)


@pytest.mark.parametrize("config", [
    GPTConfig(vocab_size=11, context_length=7, num_layers=1, embed_dim=6, num_heads=2),
    GPTConfig(vocab_size=11, context_length=7, num_layers=1, embed_dim=6, num_heads=2,
              embedding_rank=3),
    GPTConfig(vocab_size=11, context_length=7, num_layers=1, embed_dim=6, num_heads=2,
              tie_head=False),
    RobertaConfig(vocab_size=11, context_length=7, num_layers=1, embed_dim=6, num_heads=2),
    LinearAttentionConfig(vocab_size=11, context_length=7, num_layers=1, embed_dim=6, num_heads=2),
], ids=["gpt", "factored", "untied", "roberta", "analysed"])  # fmt: skip
def test_a_model_gives_the_parts_of_its_logits(config):
    model = make_model(config)
    hidden = jax.random.normal(jax.random.key(0), (2, 5, 6))
    x, rows, bias = model.vocabulary(hidden)
    logits = model.logits(hidden)
    np.testing.assert_array_equal(logits, vocabulary_logits(x, rows, bias, "float32"))
    np.testing.assert_allclose(logits, x @ rows.T + (0 if bias is None else bias), atol=1e-5)
    assert (bias is not None) == isinstance(config, RobertaConfig)
