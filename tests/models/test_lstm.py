"""The LSTM is PyTorch's, and keeps the contracts of the other models: groups, meshes, dropout."""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.config import ConfigError, GPTConfig, LSTMConfig, MeshConfig
from icl_jax.config.tree import from_dict, to_dict, validate
from icl_jax.models import LSTM, create, huggingface
from icl_jax.models.inputs import position_limit
from icl_jax.models.summary import parameter_table
from icl_jax.sharding import make_mesh
from tests.models.small import leaves, make_model

SMALL = {"vocab_size": 13, "embed_dim": 5, "hidden_dim": 7}
TWO = LSTMConfig(**SMALL, num_layers=2)
TOKENS = np.random.default_rng(0).integers(0, 13, (3, 11))


def torch_peer(torch, model):
    """torch.nn.LSTM with the weights of our model; hidden states and logits of tokens."""
    config = model.config
    peer = torch.nn.LSTM(config.embed_dim, config.hidden_dim, config.num_layers, batch_first=True)
    zeros = torch.zeros(4 * config.hidden_dim)
    for n, layer in enumerate(model.layers):
        flat = [np.asarray(w[...]) for w in (layer.kernel, layer.recurrent, layer.bias)]
        kernel, recurrent = (torch.tensor(w.reshape(len(w), -1).T.copy()) for w in flat[:2])
        state = {"weight_ih": kernel, "weight_hh": recurrent, "bias_ih": zeros,
                 "bias_hh": torch.tensor(flat[2].reshape(-1))}  # fmt: skip
        for name, value in state.items():
            getattr(peer, f"{name}_l{n}").data = value
    return peer


def embedded(torch, model, tokens):
    return torch.tensor(np.asarray(model.token_embedding.rows[...])[tokens])


@pytest.mark.parametrize("num_layers", [1, 2])
def test_states_and_logits_equal_those_of_torch(num_layers):
    torch = pytest.importorskip("torch", reason="needs torch (extra hf)")
    model = make_model(LSTMConfig(**SMALL, num_layers=num_layers))
    with torch.no_grad():
        states = torch_peer(torch, model)(embedded(torch, model, TOKENS))[0].numpy()
    np.testing.assert_allclose(model.hidden(TOKENS), states, atol=1e-5)
    expected = states @ np.asarray(model.head.rows[...]).T
    np.testing.assert_allclose(model(TOKENS), expected, atol=1e-5)
    assert model(TOKENS).dtype == np.float32


def test_gradients_equal_those_of_torch():
    torch = pytest.importorskip("torch", reason="needs torch (extra hf)")
    model = make_model(TWO)
    peer = torch_peer(torch, model)
    peer(embedded(torch, model, TOKENS))[0].square().sum().backward()
    graphdef, params = nnx.split(model)
    gradient = jax.jit(
        jax.grad(lambda p: jnp.sum(jnp.square(nnx.merge(graphdef, p).hidden(TOKENS))))
    )(params)
    for n in range(2):
        for ours, theirs in (("kernel", "weight_ih"), ("recurrent", "weight_hh")):
            expected = getattr(peer, f"{theirs}_l{n}").grad.numpy().T
            got = gradient["layers"][n][ours][...].reshape(expected.shape)
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


def test_a_state_depends_on_all_earlier_tokens_and_on_no_later_one():
    model = make_model(TWO)
    before = np.asarray(model.hidden(TOKENS))
    for place in range(11):
        changed = TOKENS.copy()
        changed[1, place] = (changed[1, place] + 1) % 13
        moved = (np.asarray(model.hidden(changed)) != before).any(axis=-1)
        assert moved[1].tolist() == [False] * place + [True] * (11 - place)
        assert not moved[[0, 2]].any()


def test_each_group_starts_from_zero():
    model = make_model(TWO)
    group = np.array([[1] * 5 + [2] * 6, [3] + [4] * 8 + [5] * 2, [7] * 11])
    packed = model(TOKENS, group)
    for row, start, stop in [(0, 0, 5), (0, 5, 11), (1, 0, 1), (1, 1, 9), (1, 9, 11), (2, 0, 11)]:
        alone = model(TOKENS[row : row + 1, start:stop])[0]
        np.testing.assert_allclose(packed[row, start:stop], alone, atol=1e-6)


def test_padding_changes_nothing_wherever_it_stands():
    model = make_model(TWO)
    row = TOKENS[:1]
    for before, after in [(0, 4), (4, 0), (3, 2)]:
        padded = np.pad(row, ((0, 0), (before, after)), constant_values=6)
        group = np.pad(np.ones_like(row), ((0, 0), (before, after)))
        got = model(padded, group)[0, before : before + 11]
        np.testing.assert_allclose(got, model(row)[0], atol=1e-6)
        one = model(np.array([[6]]))[0, 0]  # nor does a padding token see another one
        for place in np.flatnonzero(group[0] == 0):
            np.testing.assert_allclose(model(padded, group)[0, place], one, atol=1e-6)


@pytest.mark.parametrize("sizes", [(8, 1, 1), (1, 8, 1), (2, 2, 2)])
def test_a_mesh_gives_the_weights_and_the_logits_of_one_device(sizes):
    config = LSTMConfig(vocab_size=40, embed_dim=8, hidden_dim=16, num_layers=2)
    mesh, tokens = make_mesh(MeshConfig(*sizes)), np.arange(56).reshape(8, 7) % 40
    group = np.repeat([[1, 2, 0]], [3, 3, 1], axis=1).repeat(8, axis=0)
    alone, model = create(config, seed=3), create(config, seed=3, mesh=mesh)
    for one, other in zip(leaves(model), leaves(alone), strict=True):
        np.testing.assert_array_equal(one, other)
    got = model(tokens, group)
    np.testing.assert_allclose(got, alone(tokens, group), atol=1e-5)
    assert got.sharding.shard_shape(got.shape)[0] == 8 // (sizes[0] * sizes[1])
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves(model))
    whole = sum(leaf.nbytes for leaf in leaves(model))
    assert held == whole if sizes[0] == 8 else held < 0.8 * whole


def test_dropout_needs_a_key_and_follows_it():
    keys = jax.random.split(jax.random.key(0), 2)
    plain = make_model(TWO)
    expected = np.asarray(plain.hidden(TOKENS))
    np.testing.assert_array_equal(plain.hidden(TOKENS, dropout_key=keys[0]), expected)
    model = make_model(LSTMConfig(**SMALL, num_layers=2, residual_dropout=0.5))
    np.testing.assert_array_equal(model.hidden(TOKENS), expected)
    dropped = np.asarray(model.hidden(TOKENS, dropout_key=keys[0]))
    assert 0.35 < np.mean(dropped == 0) < 0.65
    assert np.abs(dropped - 2 * expected)[dropped != 0].max() > 1e-3  # the first layer's too
    np.testing.assert_array_equal(model.hidden(TOKENS, dropout_key=keys[0]), dropped)
    assert (model.hidden(TOKENS, dropout_key=keys[1]) != dropped).any()


def test_bfloat16_keeps_states_and_logits_close_and_parameters_in_float32():
    half, exact = make_model(LSTMConfig(**SMALL, dtype="bfloat16")), make_model(LSTMConfig(**SMALL))
    assert {leaf.dtype for leaf in leaves(half)} == {np.dtype(np.float32)}
    assert half(TOKENS).dtype == np.float32
    difference = np.abs(half(TOKENS) - exact(TOKENS)).max()
    assert 0 < difference < 0.03 * np.abs(exact(TOKENS)).max()


def test_initial_weights_are_torchs():
    torch = pytest.importorskip("torch", reason="needs torch (extra hf)")
    config = LSTMConfig(vocab_size=211, embed_dim=64, hidden_dim=128)
    ours, theirs = create(config, seed=1).layers[0], torch.nn.LSTM(64, 128)
    for mine, name in ((ours.kernel, "weight_ih_l0"), (ours.recurrent, "weight_hh_l0")):
        expected = getattr(theirs, name).detach().numpy()
        np.testing.assert_allclose(mine[...].std(), expected.std(), rtol=0.03)
        np.testing.assert_allclose(np.abs(mine[...]).max(), np.abs(expected).max(), rtol=0.03)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"hidden_dim": -3}, "hidden_dim must be at least 1, got -3"),
        ({"residual_dropout": 1.0}, "residual_dropout must be from 0 to 1 but below, got 1.0"),
        ({"dtype": "float64"}, "dtype must be one of float32, bfloat16"),
        ({"embed_dim": 2.5}, "embed_dim must be int, got 2.5"),
    ],
)
def test_wrong_configs_are_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        create(LSTMConfig(**(SMALL | fields)))


@pytest.mark.parametrize(
    ("tokens", "group", "words"),
    [
        (TOKENS + 9, None, r"within 0..12, got \d+ at"),
        (TOKENS - 13, None, r"within 0..12, got -"),
        (TOKENS[0], None, "integer array"),
        (TOKENS.astype(np.float32), None, "integer array"),
        (TOKENS, np.ones((3, 10), int), r"shape of the tokens \(3, 11\), got \(3, 10\)"),
        (TOKENS, -np.ones((3, 11), int), "or 0 for padding, got -1"),
    ],
)
def test_wrong_inputs_are_refused(tokens, group, words):
    with pytest.raises(ValueError, match=words):
        make_model(TWO)(tokens, group)


def test_rows_of_any_length_are_taken():
    assert position_limit(TWO) is None
    assert make_model(TWO)(np.zeros((1, 97), int)).shape == (1, 97, 13)


def test_a_config_is_read_back_as_it_was_written():
    config = LSTMConfig(**SMALL, num_layers=3, residual_dropout=0.1, dtype="bfloat16")
    again = from_dict(to_dict(config))
    assert type(again) is LSTMConfig and again == config and again != GPTConfig()
    validate(again)
    assert isinstance(create(again), LSTM)


def test_the_parameter_table_counts_its_weights():
    total = parameter_table(TWO, make_mesh(MeshConfig(8, 1, 1))).splitlines()[-1]
    # Embedding, head, and per layer (inputs + hidden + 1) x 4 gates.
    assert f" {13 * 5 + 13 * 7 + 4 * 7 * (5 + 7 + 1) + 4 * 7 * (7 + 7 + 1):,} " in total


def test_hugging_face_has_no_folder_for_it(tmp_path):
    with pytest.raises(ValueError, match="no model for a LSTMConfig"):
        huggingface.save(make_model(TWO), tmp_path / "out")
    assert not (tmp_path / "out").exists()
