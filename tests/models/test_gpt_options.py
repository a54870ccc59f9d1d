"""GPT without norms, with deeper feed-forward layers, at other positions, and what its heads see.

Compared with a forward pass written out in NumPy, and with `transformers` where it has the same.
"""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.config import ConfigError, GPTConfig, MeshConfig
from icl_jax.config.tree import from_dict, to_dict
from icl_jax.models import abstract, create, huggingface
from icl_jax.models.attention import locate
from icl_jax.sharding import make_mesh, state_shardings
from tests.models.small import leaves, make_model

SMALL = {"vocab_size": 13, "context_length": 17, "num_layers": 2, "embed_dim": 6, "num_heads": 3}
SMALL |= {"activation": "relu", "mlp_dim": 11}
TOKENS = np.random.default_rng(0).integers(0, 13, (2, 7))
GROUP = np.array([[1, 1, 1, 2, 2, 0, 3], [4] * 7])


def as_arrays(model):
    """The parameters as nested dicts of float64."""
    plain = nnx.to_pure_dict(nnx.state(model))
    return jax.tree.map(lambda x: np.asarray(x, np.float64), plain)


def numpy_logits(model, tokens, positions=None):
    """GPT as its equations have it, a row and a head at a time."""
    return numpy_forward(model, tokens, positions)[0]


def numpy_forward(model, tokens, positions=None):
    """Its logits, and its attention weights (layers, batch, heads, queries, keys)."""
    config, p = model.config, as_arrays(model)
    positions = np.arange(tokens.shape[1]) if positions is None else positions
    logits, weights = zip(*(_numpy_row(config, p, row, positions) for row in tokens), strict=True)
    return np.stack(logits), np.stack(weights, axis=1)


def _numpy_row(config, p, tokens, positions):
    def norm(x, params):
        if config.norm == "none":
            return x
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * params["scale"] + params["bias"]

    x, seen = p["token_embedding"]["rows"][tokens], []
    if config.position == "learned":
        x = x + p["positions"]["table"]["rows"][positions]
    elif config.position == "linear":
        x = x + np.outer(positions / config.context_length, p["positions"]["direction"])
    elif config.position == "sinusoidal":
        entries = np.arange(config.embed_dim)
        angles = positions[:, None] * 10_000.0 ** (-(entries - entries % 2) / config.embed_dim)
        x = x + np.where(entries % 2, np.cos(angles), np.sin(angles))
    for n in range(config.num_layers):
        block = p["blocks"][n]
        h, out = norm(x, block.get("attention_norm")), 0.0
        for head in range(config.num_heads):
            q, k, v = (
                h @ block["attention"][name]["kernel"][:, head]
                + block["attention"][name]["bias"][head]
                for name in ("query", "key", "value")
            )
            scores = np.where(np.tri(len(x)), q @ k.T / np.sqrt(q.shape[1]), -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            seen.append(weights / weights.sum(-1, keepdims=True))
            out = out + seen[-1] @ v @ block["attention"]["out"]["kernel"][head]
        x = x + out + block["attention"]["out"]["bias"]
        h, mlp = norm(x, block.get("mlp_norm")), block["mlp"]
        hidden = [mlp["up"]] + [mlp["middle"][i] for i in range(config.mlp_layers - 1)]
        for layer in hidden:
            h = np.maximum(h @ layer["kernel"] + layer["bias"], 0)
        if config.gated:
            gate = norm(x, block.get("mlp_norm")) @ mlp["gate"]["kernel"] + mlp["gate"]["bias"]
            h = h * gate
        x = x + h @ mlp["down"]["kernel"] + mlp["down"]["bias"]
    shape = (config.num_layers, config.num_heads, len(x), len(x))
    return norm(x, p.get("final_norm")) @ p["token_embedding"]["rows"].T, np.reshape(seen, shape)


def assert_close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


EQUATIONS = [
    {"norm": "none"},
    {"mlp_layers": 2, "position": "sinusoidal"},
    {"norm": "none", "mlp_layers": 3, "position": "none"},
    {"position": "linear", "mlp_layers": 2, "num_layers": 1},
    {"gated": True, "mlp_layers": 2},
]


def name_of(options):
    return " ".join(f"{name}={value}" for name, value in options.items())


@pytest.mark.parametrize("options", EQUATIONS, ids=name_of)
def test_logits_and_attention_weights_are_those_of_the_equations(options):
    model = make_model(GPTConfig(**(SMALL | options)))
    logits, weights = numpy_forward(model, TOKENS)
    assert_close(model(TOKENS), logits)
    np.testing.assert_allclose(model.attention_weights(TOKENS), weights, atol=1e-5)


@pytest.mark.parametrize("options", EQUATIONS[2:4], ids=name_of)
def test_scanned_layers_compute_the_same_from_the_same_seed(options):
    config = GPTConfig(**(SMALL | options))
    unrolled, scanned = (
        create(dataclasses.replace(config, scan_layers=scan), seed=3) for scan in (False, True)
    )
    np.testing.assert_allclose(scanned(TOKENS, GROUP), unrolled(TOKENS, GROUP), atol=1e-6)


def test_without_norms_there_is_nothing_to_norm_with():
    def names(**options):
        flat = nnx.to_flat_state(abstract(GPTConfig(**SMALL, **options))[1])
        return {".".join(map(str, path)): variable.shape for path, variable in flat}

    plain, bare = names(), names(norm="none")
    assert plain.keys() - bare.keys() == {name for name in plain if "norm" in name}
    deep = names(mlp_layers=3)
    added = {name: shape for name, shape in deep.items() if name not in plain}
    assert {shape for name, shape in added.items() if "kernel" in name} == {(11, 11)}
    assert len(added) == 2 * 2 * 2  # layers, hidden layers more, kernel and bias


def test_hidden_states_without_norms_grow_with_the_weights():
    """A norm would give the same states whatever the scale of the embedding."""
    options = {"position": "none", "num_layers": 1}
    bare, normed = (make_model(GPTConfig(**SMALL | options, norm=n)) for n in ("none", "layer"))
    for model, grows in ((bare, True), (normed, False)):
        before = np.abs(model.hidden(TOKENS)).max()
        rows = model.token_embedding.rows
        rows[...] = rows[...] * 1000
        assert (np.abs(model.hidden(TOKENS)).max() > 100 * before) == grows


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_a_mesh_gives_the_logits_of_one_device(scan):
    options = {"norm": "none", "mlp_layers": 3, "position": "linear"}
    sizes = {"vocab_size": 16, "embed_dim": 8, "num_heads": 2, "mlp_dim": 12}
    alone = make_model(GPTConfig(**(SMALL | sizes | options), scan_layers=scan))
    graphdef, params = nnx.split(alone)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    model = nnx.merge(graphdef, jax.device_put(params, state_shardings(params, mesh)))
    tokens, group = TOKENS[[0, 1, 0, 1]], GROUP[[0, 1, 1, 0]]
    assert_close(model(tokens, group), alone(tokens, group))
    assert_close(model(tokens, offset=5), alone(tokens, offset=5))
    weights = model.attention_weights(tokens, group)
    np.testing.assert_allclose(weights, alone.attention_weights(tokens, group), atol=1e-5)
    middle = (model.blocks if scan else model.blocks[0]).mlp.middle[0].kernel[...]
    assert middle.sharding.shard_shape(middle.shape)[-2:] == (12, 6)


def test_linear_positions_move_along_one_direction():
    model = make_model(GPTConfig(**SMALL, position="linear"))
    direction = np.asarray(model.positions.direction[...])
    added = model.positions(jnp.zeros((1, 17, 6)), locate(17, None))[0]
    np.testing.assert_allclose(added, np.outer(np.arange(17) / 17, direction), atol=1e-6)
    model.positions.direction[...] = jnp.zeros(6)
    without = make_model(GPTConfig(**SMALL, position="none"))
    nnx.update(without, _without_positions(model))
    np.testing.assert_array_equal(model(TOKENS), without(TOKENS))


def _without_positions(model):
    flat = [(path, value) for path, value in nnx.to_flat_state(nnx.state(model))
            if path[0] != "positions"]  # fmt: skip
    return nnx.from_flat_state(flat)


def test_linear_positions_have_no_last_one():
    model = make_model(GPTConfig(**(SMALL | {"context_length": 5}), position="linear"))
    assert_close(model(TOKENS), numpy_logits(model, TOKENS))
    assert_close(model(TOKENS, offset=100), numpy_logits(model, TOKENS, 100 + np.arange(7)))


# The position of the first token.


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "linear"])
def test_from_an_offset_on_tokens_stand_where_they_stand_in_a_longer_row(position):
    model = make_model(GPTConfig(**SMALL, position=position))
    x = jnp.zeros((1, 12, 6))
    tail = model.positions(x, locate(12, None))[:, 5:]
    np.testing.assert_array_equal(model.positions(x[:, 5:], locate(7, None, offset=5)), tail)
    got = model(TOKENS, offset=5)
    assert_close(got, numpy_logits(model, TOKENS, 5 + np.arange(7)))
    assert np.abs(got - model(TOKENS)).max() > 1e-3
    np.testing.assert_array_equal(model(TOKENS, offset=0), model(TOKENS))
    np.testing.assert_allclose(model.logits(model.hidden(TOKENS, offset=5)), got, atol=1e-5)


@pytest.mark.parametrize("position", ["rotary", "alibi", "none"])
def test_only_distances_count_whatever_the_offset(position):
    model = make_model(GPTConfig(**(SMALL | {"embed_dim": 12}), position=position))
    got = model(TOKENS, GROUP, offset=29)
    np.testing.assert_allclose(got, model(TOKENS, GROUP), atol=1e-4, rtol=1e-4)
    swapped = TOKENS[:, [1, 0, 2, 3, 4, 5, 6]]
    tail = model(swapped, GROUP, offset=29)[1, 2:] - got[1, 2:]
    if position != "none":  # the order is seen, so that this says something
        assert np.abs(tail).max() > 1e-4


def test_each_group_counts_from_the_offset():
    model = make_model(GPTConfig(**SMALL))
    packed = model(TOKENS, GROUP, offset=9)
    for row, start, stop in [(0, 0, 3), (0, 3, 5), (0, 6, 7), (1, 0, 7)]:
        alone = model(TOKENS[row : row + 1, start:stop], offset=9)[0]
        np.testing.assert_allclose(packed[row, start:stop], alone, atol=1e-5)


def test_an_offset_may_be_known_on_the_device_only():
    model = make_model(GPTConfig(**SMALL))
    forward = jax.jit(lambda offset: model(TOKENS, offset=offset))
    np.testing.assert_allclose(forward(3), model(TOKENS, offset=3), atol=1e-5)
    assert np.isfinite(forward(10)).all()
    assert np.isnan(forward(11)[:, -1]).all()  # past the table: not a number instead of wrong


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (11, "rows have 7 tokens from position 11 on, but the model has 17 positions"),
        (-1, "offset must be at least 0, got -1"),
        (np.arange(2), "offset must be one whole number"),
    ],
)
def test_offsets_without_a_position_are_refused(offset, words):
    model = make_model(GPTConfig(**SMALL))
    for call in (model, model.hidden, model.attention_weights):
        with pytest.raises(ValueError, match=words):
            call(TOKENS, offset=offset)
    assert np.isfinite(model(TOKENS, offset=10)).all()


def test_an_offset_counts_for_each_group_and_not_for_the_row():
    model = make_model(GPTConfig(**SMALL))
    tokens, group = np.tile(TOKENS, (1, 3)), np.repeat([[1, 2, 3]], 7, axis=1)
    group = np.tile(group, (len(tokens), 1))
    assert np.isfinite(model(tokens, group, offset=10)).all()
    with pytest.raises(ValueError, match="group 1 has 7 tokens from position 11 on"):
        model(tokens, group, offset=11)


# What the heads see.


@pytest.mark.parametrize("group", [None, GROUP], ids=["rows", "groups"])
@pytest.mark.parametrize("options", [{}, {"position": "alibi", "norm": "none"}], ids=name_of)
def test_attention_weights_sum_to_1_inside_the_group_and_the_past(options, group):
    model = make_model(GPTConfig(**SMALL, **options))
    weights = np.asarray(model.attention_weights(TOKENS, group))
    assert weights.shape == (2, 2, 3, 7, 7) and weights.dtype == np.float32
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    ids = np.ones_like(TOKENS) if group is None else group
    seen = (ids[:, :, None] == ids[:, None, :]) & (ids[:, :, None] > 0) | np.eye(7, dtype=bool)
    seen &= np.tri(7, dtype=bool)
    np.testing.assert_array_equal(weights > 0, np.broadcast_to(seen[:, None], weights.shape))


@pytest.mark.parametrize("position", ["learned", "alibi", "rotary"])
def test_attention_weights_are_those_that_mix_the_values(position):
    """In the last layer, they give the hidden states: without an MLP, norm and stream."""
    config = GPTConfig(**(SMALL | {"embed_dim": 12}), norm="none", position=position)
    model = make_model(config)
    last = model.blocks[1]
    for dense in (last.mlp.down, model.blocks[0].mlp.down, model.blocks[0].attention.out):
        dense.kernel[...], dense.bias[...] = dense.kernel[...] * 0, dense.bias[...] * 0
    place = locate(7, jnp.asarray(GROUP, jnp.int32))
    x = model.positions(model.token_embedding(jnp.asarray(TOKENS)), place)
    v = np.einsum("btd,dhk->bhtk", x, last.attention.value.kernel[...])
    v = v + np.asarray(last.attention.value.bias[...])[None, :, None]
    mixed = np.einsum("bhts,bhsk->bthk", model.attention_weights(TOKENS, GROUP)[1], v)
    out = np.einsum("bthk,hkd->btd", mixed, last.attention.out.kernel[...])
    expected = x + out + np.asarray(last.attention.out.bias[...])
    np.testing.assert_allclose(model.hidden(TOKENS, GROUP), expected, atol=1e-5)


def test_attention_weights_are_the_same_scanned_and_unrolled():
    unrolled, scanned = (
        create(GPTConfig(**SMALL, scan_layers=scan), seed=3) for scan in (False, True)
    )
    expected = unrolled.attention_weights(TOKENS, GROUP, offset=2)
    got = scanned.attention_weights(TOKENS, GROUP, offset=2)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert np.abs(expected[0] - expected[1]).max() > 1e-4  # layers differ


def test_attention_weights_equal_those_of_transformers(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch (extra hf)")
    transformers = pytest.importorskip("transformers", reason="needs transformers (extra hf)")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=53, n_embd=21, n_layer=2, n_head=3, n_positions=17, bos_token_id=None,
        eos_token_id=None, attn_implementation="eager", initializer_range=0.3,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        out = theirs(torch.as_tensor(TOKENS), output_attentions=True)
    expected = np.stack([layer.numpy() for layer in out.attentions])
    for scan in (False, True):
        ours = huggingface.load(tmp_path, scan_layers=scan)
        np.testing.assert_allclose(ours.attention_weights(TOKENS), expected, atol=1e-5)


def test_attention_weights_are_taken_without_dropout():
    rates = {"attention_dropout": 0.5, "residual_dropout": 0.5, "embedding_dropout": 0.5}
    dropped, plain = (make_model(GPTConfig(**SMALL, **r)) for r in (rates, {}))
    np.testing.assert_array_equal(
        dropped.attention_weights(TOKENS), plain.attention_weights(TOKENS)
    )


# Configs and folders.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"norm": "batch"}, "norm must be one of layer, none, got 'batch'"),
        ({"mlp_layers": 0}, "mlp_layers must be at least 1, got 0"),
        ({"position": "quadratic"}, "position must be one of learned, sinusoidal, linear"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        create(GPTConfig(**SMALL | options))


def test_configs_written_before_these_options_read_as_gpt2():
    written = to_dict(GPTConfig(**SMALL))
    assert from_dict(written | {"norm": "none"}).norm == "none"
    for name in ("norm", "mlp_layers", "gated"):
        written.pop(name)
    assert from_dict(written) == GPTConfig(**SMALL)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"norm": "none"}, r"norm=none \(theirs: layer\)"),
        ({"mlp_layers": 2}, r"mlp_layers=2 \(theirs: 1\)"),
        ({"position": "linear"}, r"position=linear \(theirs: learned\)"),
        ({"norm": "none", "mlp_layers": 3}, "norm=none .*; mlp_layers=3"),
    ],
)
def test_what_hugging_faces_gpt2_cannot_hold_is_refused_by_name(options, words, tmp_path):
    with pytest.raises(ValueError, match=f"Hugging Face's format cannot hold {words}"):
        huggingface.save(make_model(GPTConfig(**SMALL | options)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_gpt2_is_still_the_model_of_its_folder(tmp_path):
    model = make_model(GPTConfig(**SMALL))
    huggingface.save(model, tmp_path)
    again = huggingface.load(tmp_path)
    assert (again.config.norm, again.config.mlp_layers) == ("layer", 1)
    for one, other in zip(leaves(model), leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
