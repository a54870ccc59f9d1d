"""What is read of the attention: the same on every path, for encoders too, and free if unused."""

import re

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.config import ConfigError, GPTConfig, RobertaConfig
from icl_jax.models import create, huggingface
from tests.models.small import make_model

SMALL = {"vocab_size": 13, "context_length": 80, "num_layers": 2, "embed_dim": 6, "num_heads": 3}
TOKENS = np.random.default_rng(0).integers(0, 13, (2, 7))
GROUP = np.array([[1, 1, 1, 2, 2, 0, 3], [4] * 7])


def entropy(weights_BHTS):
    """The mean entropy of a layer's rows of weights; those that are 0 have no logarithm."""
    safe_BHTS = jnp.where(weights_BHTS > 0, weights_BHTS, 1.0)
    return -jnp.mean(jnp.sum(weights_BHTS * jnp.log(safe_BHTS), axis=-1))


@pytest.mark.parametrize("options", [{}, {"scan_layers": True}, {"remat": "full"}])
def test_readings_are_of_every_layer_beside_the_usual_logits(options):
    model = create(GPTConfig(**SMALL, init_stddev=0.7, **options), seed=3)
    logits, readings = model(TOKENS, GROUP, read_attention=entropy)
    np.testing.assert_allclose(logits, model(TOKENS, GROUP), atol=1e-5)
    weights = np.asarray(model.attention_weights(TOKENS, GROUP), np.float64)
    by_hand = [-np.mean((w * np.log(np.where(w > 0, w, 1))).sum(-1)) for w in weights]
    np.testing.assert_allclose(readings, by_hand, rtol=1e-5)
    assert abs(by_hand[0] - by_hand[1]) > 1e-4
    hidden, again = model.hidden(TOKENS, GROUP, read_attention=entropy)
    np.testing.assert_allclose(hidden, model.hidden(TOKENS, GROUP), atol=1e-5)
    np.testing.assert_allclose(again, readings, rtol=1e-6)


def test_long_rows_are_read_whole_though_they_are_computed_in_blocks():
    model = make_model(GPTConfig(**SMALL))
    tokens = np.random.default_rng(1).integers(0, 13, (2, 70))
    logits, weights = model(tokens, read_attention=all_of)
    assert weights.shape == (2, 2, 3, 70, 70)
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(logits, model(tokens), atol=1e-5)


def all_of(weights_BHTS):
    return weights_BHTS


def test_dropout_acts_behind_the_weights_that_are_read():
    model = make_model(GPTConfig(**SMALL, attention_dropout=0.5))
    key = jax.random.key(0)
    dropped, weights = model(TOKENS, read_attention=all_of, dropout_key=key)
    np.testing.assert_allclose(weights[0].sum(-1), 1.0, atol=1e-5)
    assert np.abs(dropped - model(TOKENS)).max() > 1e-3


def test_a_regulariser_of_the_attention_has_a_gradient():
    model = create(GPTConfig(**SMALL, init_stddev=0.7), seed=1)
    graphdef, params = nnx.split(model)

    @jax.jit
    def total(params):
        return jnp.sum(nnx.merge(graphdef, params)(TOKENS, read_attention=entropy)[1])

    grads = nnx.to_pure_dict(jax.grad(total)(params))
    query = grads["blocks"][0]["attention"]["query"]["kernel"]
    assert np.abs(query).max() > 1e-4
    place = np.unravel_index(np.argmax(np.abs(query)), query.shape)

    def shifted(by):
        moved = nnx.clone(model)
        kernel = moved.blocks[0].attention.query.kernel
        kernel[...] = kernel[...].at[place].add(by)
        return float(total(nnx.state(moved)))

    slope = (shifted(1e-2) - shifted(-1e-2)) / 2e-2
    np.testing.assert_allclose(query[place], slope, rtol=0.05)


def test_what_is_not_used_costs_nothing_the_compiled_program_is_the_same():
    graphdef, params = nnx.split(make_model(GPTConfig(**SMALL)))

    def step(read):
        def loss(params):
            model = nnx.merge(graphdef, params)
            logits = model(TOKENS, GROUP, **read)
            return jnp.sum((logits[0] if read else logits) ** 2)

        text = jax.jit(jax.grad(loss)).lower(params).compile().as_text()
        lines = re.sub(r", metadata=\{[^}]*\}|, stack_frame_id=\d+", "", text).splitlines()
        return [re.sub(r"[\w.-]+", _word, line) for line in lines if " = " in line]

    def _word(found):  # instructions are numbered as they were made
        return re.sub(r"[.\d]+$", "", found[0]) if not found[0][0].isdigit() else found[0]

    assert sorted(step({})) == sorted(step({"read_attention": entropy}))


def test_the_kernel_that_never_forms_the_weights_is_refused():
    model = make_model(GPTConfig(**SMALL, attention="splash", attention_dropout=0.0, head_dim=64))
    with pytest.raises(ConfigError, match=r"never forms the softmax weights.*attention='plain'"):
        model(np.zeros((1, 64), int), read_attention=entropy)


def test_an_encoder_is_read_as_transformers_does(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch (extra hf)")
    transformers = pytest.importorskip("transformers", reason="needs transformers (extra hf)")
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=53, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=40, max_position_embeddings=40, attn_implementation="eager",
        initializer_range=0.3,
    )  # fmt: skip
    theirs = transformers.RobertaForMaskedLM(config).eval()
    theirs.save_pretrained(tmp_path)
    tokens = np.random.default_rng(2).integers(3, 53, (2, 9))
    with torch.no_grad():
        out = theirs(torch.as_tensor(tokens), output_attentions=True)
    logits, weights = huggingface.load(tmp_path)(tokens, read_attention=all_of)
    np.testing.assert_allclose(weights, [w.numpy() for w in out.attentions], atol=1e-5)
    np.testing.assert_allclose(logits, out.logits.numpy(), atol=2e-4)


def test_weights_start_with_the_spread_of_the_config():
    for kind in (GPTConfig, RobertaConfig):
        wide = create(kind(**SMALL | {"embed_dim": 60}, init_stddev=0.3), seed=0)
        kernel = wide.blocks[0].attention.query.kernel[...]
        assert float(jnp.std(kernel)) == pytest.approx(0.3, rel=0.1)
        assert float(jnp.std(wide.blocks[0].mlp.up.kernel[...])) == pytest.approx(0.3, rel=0.1)
    with pytest.raises(ConfigError, match="init_stddev must be"):
        make_model(GPTConfig(**SMALL, init_stddev=0.0))
