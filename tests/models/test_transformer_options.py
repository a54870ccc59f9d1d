"""The fields that the studies vary, and the ways to run a model that must not change it."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.config import GPTConfig, RobertaConfig
from icl_jax.models import abstract, create
from icl_jax.models.kinds import preset
from tests.models.small import leaves, make_model

SMALL = {"vocab_size": 31, "context_length": 11, "num_layers": 2, "embed_dim": 12, "num_heads": 3}
TOKENS = np.random.default_rng(0).integers(0, 31, (2, 11))


def loss_and_gradient(model):
    graphdef, params = nnx.split(model)

    def loss(params):
        logits = nnx.merge(graphdef, params)(TOKENS)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), TOKENS[..., None], -1))

    return jax.jit(jax.value_and_grad(loss))(params)


def parameters(config):
    return {".".join(map(str, path)): x.shape for path, x in nnx.to_flat_state(abstract(config)[1])}


@pytest.mark.parametrize("kind", [GPTConfig, RobertaConfig])
def test_a_factored_embedding_has_rank_r(kind):
    config = kind(**SMALL, embedding_rank=5, position_rank=1)
    shapes = parameters(config)
    assert shapes["token_embedding.rows"] == (31, 5)
    assert shapes["token_embedding.up"] == (5, 12)
    assert shapes["positions.table.up"] == (1, 12)
    model = make_model(config)
    embedded = model.token_embedding(jnp.arange(31))
    assert np.linalg.matrix_rank(embedded, tol=1e-4) == 5
    assert model(TOKENS).shape == (2, 11, 31)


def test_a_factored_tied_head_is_the_transpose_of_the_embedding():
    model = make_model(GPTConfig(**SMALL, embedding_rank=5))
    full = model.token_embedding(jnp.arange(31))
    hidden = model.hidden(TOKENS)
    np.testing.assert_allclose(model(TOKENS), hidden @ full.T, atol=1e-5)


def test_an_untied_head_has_full_rank_and_a_matrix_of_its_own():
    config = GPTConfig(**SMALL, embedding_rank=5, tie_head=False)
    assert parameters(config)["head.rows"] == (31, 12)
    model = make_model(config)
    expected = model.hidden(TOKENS) @ model.head.rows[...].T
    np.testing.assert_allclose(model(TOKENS), expected, atol=1e-5)


@pytest.mark.parametrize("kind", [GPTConfig, RobertaConfig])
def test_heads_are_free_of_the_width(kind):
    config = kind(**(SMALL | {"num_heads": 5}), head_dim=7)
    shapes = parameters(config)
    assert shapes["blocks.0.attention.query.kernel"] == (12, 5, 7)
    assert shapes["blocks.0.attention.out.kernel"] == (5, 7, 12)
    assert make_model(config)(TOKENS).shape == (2, 11, 31)


@pytest.mark.parametrize("kind", [GPTConfig, RobertaConfig])
@pytest.mark.parametrize("position", ["learned", "sinusoidal", "linear", "alibi", "rotary"])
def test_every_positional_encoding_distinguishes_the_order(kind, position):
    model = make_model(kind(**SMALL, position=position))
    tokens = np.array([[5, 6, 7, 8]])
    forward, swapped = model.hidden(tokens), model.hidden(tokens[:, [1, 0, 2, 3]])
    assert np.abs(forward[0, 3] - swapped[0, 3]).max() > 1e-4


def test_without_positions_an_encoder_does_not_know_the_order():
    model = make_model(RobertaConfig(**SMALL, position="none"))
    tokens = np.array([[5, 6, 7, 8]])
    swapped = model.hidden(tokens[:, [1, 0, 2, 3]])
    np.testing.assert_allclose(model.hidden(tokens)[0, 3], swapped[0, 3], atol=1e-5)


def test_linear_positions_are_proportional_to_the_place():
    model = make_model(GPTConfig(**SMALL, position="linear"))
    from icl_jax.models.attention import locate

    added = model.positions(jnp.zeros((1, 5, 12)), locate(5, None))[0]
    np.testing.assert_allclose(added[4], 4 * added[1], rtol=1e-5)
    np.testing.assert_allclose(added[1] * 11, model.positions.direction[...], rtol=1e-5)


@pytest.mark.parametrize("kind", [GPTConfig, pytest.param(RobertaConfig, marks=pytest.mark.slow)])
def test_scanned_and_unrolled_models_start_with_the_same_weights_and_compute_the_same(kind):
    unrolled, scanned = (create(kind(**SMALL, scan_layers=scan), seed=3) for scan in (False, True))
    np.testing.assert_allclose(scanned(TOKENS), unrolled(TOKENS), atol=1e-6)
    for n, block in enumerate(unrolled.blocks):
        stacked = jax.tree.map(lambda x, n=n: x[n], nnx.state(scanned.blocks))
        for one, other in zip(leaves(block), jax.tree.leaves(stacked), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("remat", "scan"),
    [
        ("full", True),
        ("dots", False),
        pytest.param("dots", True, marks=pytest.mark.slow),
        pytest.param("full", False, marks=pytest.mark.slow),
    ],
)
def test_remat_changes_neither_loss_nor_gradient(scan, remat):
    plain = make_model(GPTConfig(**SMALL, scan_layers=scan))
    recomputed = make_model(GPTConfig(**SMALL, scan_layers=scan, remat=remat))
    for one, other in zip(
        jax.tree.leaves(loss_and_gradient(plain)),
        jax.tree.leaves(loss_and_gradient(recomputed)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("remat", "saved"), [("none", False), ("dots", True), ("full", True)])
def test_remat_recomputes(remat, saved):
    graphdef, params = nnx.split(make_model(GPTConfig(**SMALL, remat=remat)))
    program = jax.make_jaxpr(lambda p: nnx.merge(graphdef, p)(TOKENS).sum())(params)
    assert ("checkpoint" in str(program) or "remat" in str(program)) == saved


@pytest.mark.parametrize("kind", [GPTConfig, RobertaConfig])
def test_bfloat16_keeps_parameters_softmax_norms_and_logits_in_float32(kind):
    model = make_model(kind(**SMALL, dtype="bfloat16"))
    assert {leaf.dtype for leaf in leaves(model)} == {jnp.dtype("float32")}
    logits = model(TOKENS)
    assert logits.dtype == jnp.float32
    exact = nnx.merge(
        nnx.graphdef(make_model(kind(**SMALL))), nnx.state(model)
    )(TOKENS)  # fmt: skip
    assert 0 < np.abs(logits - exact).max() < 0.03 * np.abs(exact).max()
    lines = str(jax.make_jaxpr(lambda tokens: model(tokens))(TOKENS)).splitlines()
    products = [line for line in lines if "dot_general" in line]
    assert any("bf16" in line for line in products)
    for line in lines:  # `name:type[shape] = operation ...`
        if " = exp " in line or " = rsqrt " in line:
            assert ":f32[" in line, line


@pytest.mark.parametrize("kind", [GPTConfig, pytest.param(RobertaConfig, marks=pytest.mark.slow)])
def test_dropout_needs_a_key_and_follows_it(kind):
    rates = {"embedding_dropout": 0.0, "attention_dropout": 0.0, "residual_dropout": 0.0}
    keys = jax.random.split(jax.random.key(0), 2)
    plain = make_model(kind(**SMALL, **rates))
    expected = plain.hidden(TOKENS)
    np.testing.assert_array_equal(plain.hidden(TOKENS, dropout_key=keys[0]), expected)
    for name in rates:
        model = make_model(kind(**SMALL, **(rates | {name: 0.5})))
        np.testing.assert_array_equal(model.hidden(TOKENS), expected)
        dropped = model.hidden(TOKENS, dropout_key=keys[0])
        assert np.abs(dropped - expected).max() > 1e-3, name
        np.testing.assert_array_equal(model.hidden(TOKENS, dropout_key=keys[0]), dropped)
        assert np.abs(model.hidden(TOKENS, dropout_key=keys[1]) - dropped).max() > 1e-3


def test_dropout_is_the_same_scanned_and_unrolled():
    key = jax.random.key(0)
    unrolled = create(GPTConfig(**SMALL), seed=3).hidden(TOKENS, dropout_key=key)
    scanned = create(GPTConfig(**SMALL, scan_layers=True), seed=3).hidden(TOKENS, dropout_key=key)
    np.testing.assert_allclose(scanned, unrolled, atol=1e-5)


def test_the_seed_decides_the_weights():
    config = GPTConfig(**SMALL)
    one, same, other = (leaves(create(config, seed=seed)) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(one, same, strict=True))
    assert (one[-1] != other[-1]).any()


@pytest.mark.parametrize(
    ("tokens", "group", "words"),
    [
        (TOKENS + 25, None, r"within 0..30, got \d+ at"),
        (-TOKENS, None, r"within 0..30, got -"),
        (TOKENS.astype(np.float32), None, "integer array"),
        (TOKENS[0], None, "integer array"),
        ([[1, 2]], None, "NumPy or JAX array, got list"),
        (TOKENS[:0], None, "integer array"),
        (TOKENS, np.full((2, 11), 2**32 + 1), "group ids must be 1 to 2147483647"),
        (np.zeros((1, 12), int), None, "rows have 12 tokens, but the model has 11 positions"),
        (TOKENS, np.ones((2, 10), int), r"shape of the tokens \(2, 11\), got \(2, 10\)"),
        (TOKENS, -np.ones((2, 11), int), "or 0 for padding, got -1"),
    ],
)
def test_wrong_inputs_are_refused(tokens, group, words):
    with pytest.raises(ValueError, match=words):
        make_model(GPTConfig(**SMALL))(tokens, group)


@pytest.mark.parametrize("wrong", [-1, 31])
def test_a_wrong_token_gives_nan_where_values_are_not_known(wrong):
    model = make_model(GPTConfig(**SMALL))
    tokens = np.array([[3, wrong, 5]])
    logits = jax.jit(lambda tokens: model(tokens))(tokens)
    assert np.isnan(logits[0, 1:]).all()


def test_wrong_token_types_are_refused():
    model = make_model(RobertaConfig(**SMALL))
    with pytest.raises(ValueError, match=r"token types must be within 0..0, got 1"):
        model(TOKENS, token_types=np.ones_like(TOKENS))


def test_a_model_keeps_its_own_copy_of_the_config():
    config = GPTConfig(**SMALL)
    model = make_model(config)
    config.num_layers = 99
    assert model.config.num_layers == 2
    first = preset("gpt2-base")
    first.num_layers = 1
    assert preset("gpt2-base") == dataclasses.replace(GPTConfig())
