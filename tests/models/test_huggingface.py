"""Folders that cannot be right are refused, by name, before anything is read; nothing is lost."""

import json
import os
from pathlib import Path
import subprocess
import sys
import textwrap

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from icl_jax.config import ConfigError, GPTConfig, LinearAttentionConfig, RobertaConfig
from icl_jax.models import huggingface
from icl_jax.models.huggingface import FolderError
from tests.models.small import leaves, make_model

GPT = GPTConfig(vocab_size=13, context_length=7, num_layers=2, embed_dim=6, num_heads=3)
ROBERTA = RobertaConfig(vocab_size=13, context_length=7, num_layers=2, embed_dim=6, num_heads=3)


@pytest.fixture
def folder(tmp_path) -> Path:
    huggingface.save(make_model(GPT), tmp_path / "model")
    return tmp_path / "model"


def edit_tensors(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
@pytest.mark.parametrize(
    "config",
    [
        GPT,
        GPTConfig(vocab_size=13, num_layers=3, embed_dim=6, num_heads=2, mlp_dim=5, tie_head=False),
        ROBERTA,
        RobertaConfig(vocab_size=13, num_layers=1, embed_dim=6, num_heads=1, mlm_head=False,
                      pooler=True),
        RobertaConfig(vocab_size=13, num_layers=1, embed_dim=6, num_heads=1, tie_head=False,
                      position_offset=0, pad_token_id=0, token_types=2, norm_epsilon=1e-12),
    ],
)  # fmt: skip
def test_export_then_import_is_bit_exact(config, scan, tmp_path):
    model = make_model(config)
    huggingface.save(model, tmp_path / "one", max_file_bytes=700 if scan else 2 * 10**9)
    again = huggingface.load(tmp_path / "one", scan_layers=scan)
    huggingface.save(again, tmp_path / "two")
    third = huggingface.load(tmp_path / "two")
    for one, other in zip(leaves(model), leaves(third), strict=True):
        np.testing.assert_array_equal(one, other)
    tokens = np.arange(12).reshape(2, 6)
    np.testing.assert_array_equal(model.hidden(tokens), third.hidden(tokens))


def test_a_missing_tensor_is_named(folder):
    edit_tensors(folder, lambda tensors: tensors.pop("transformer.h.1.mlp.c_fc.bias"))
    with pytest.raises(FolderError, match=r"missing h.1.mlp.c_fc.bias: expected shape \(24,\)"):
        huggingface.load(folder)


def test_a_missing_untied_head_is_named(folder):
    edit_config(folder, tie_word_embeddings=False)
    with pytest.raises(FolderError, match=r"missing lm_head.weight: expected shape \(13, 6\)"):
        huggingface.load(folder)
    edit_config(folder, architectures=["GPT2Model"])  # stored without a head
    assert huggingface.load(folder).config.tie_head


def test_a_surplus_tensor_is_named(folder):
    edit_tensors(folder, lambda tensors: tensors.update(score=np.zeros((2, 6), np.float32)))
    with pytest.raises(FolderError, match=r"unexpected score of shape \(2, 6\)"):
        huggingface.load(folder)


def test_a_tensor_of_the_wrong_shape_is_named_with_expected_and_got(folder):
    wrong = {"transformer.wpe.weight": np.zeros((9, 6), np.float32)}
    edit_tensors(folder, lambda tensors: tensors.update(wrong))
    with pytest.raises(FolderError, match=r"wpe.weight .* expected \(7, 6\), got \(9, 6\)"):
        huggingface.load(folder)


def test_a_tied_head_that_differs_from_the_embedding_is_named(folder):
    def edit(tensors):
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + 1

    edit_tensors(folder, edit)
    with pytest.raises(FolderError, match=r"lm_head.weight differs from wte.weight.*tie_word_emb"):
        huggingface.load(folder)
    edit_config(folder, tie_word_embeddings=False)
    assert huggingface.load(folder).head is not None


def test_only_what_keeps_the_function_can_be_overridden(folder):
    assert huggingface.load(folder, dtype="bfloat16", remat="full").config.dtype == "bfloat16"
    with pytest.raises(ValueError, match=r"load can override dtype, scan_layers.*got num_heads"):
        huggingface.load(folder, num_heads=2)


def test_saving_elsewhere_than_in_a_local_folder_is_refused():
    with pytest.raises(FolderError, match="expected a local folder"):
        huggingface.save(make_model(GPT), "gs://bucket/model")


def test_parameters_of_any_dtype_are_written_as_float32(tmp_path):
    graphdef, params = nnx.split(make_model(GPT))
    half = nnx.merge(graphdef, jax.tree.map(lambda x: np.asarray(x, jnp.bfloat16), params))
    huggingface.save(half, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {np.dtype(np.float32)}


def test_every_wrong_tensor_is_in_one_message(folder):
    def edit(tensors):
        tensors.pop("transformer.ln_f.bias")
        tensors["transformer.extra"] = np.zeros(3, np.float32)

    edit_tensors(folder, edit)
    with pytest.raises(FolderError, match=r"(?s)missing ln_f.bias.*unexpected extra"):
        huggingface.load(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_are_refused_with_the_reason_and_the_way_out(folder, name):
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(FolderError) as caught:
        huggingface.load(folder)
    for words in (name, "can run any code", "save_pretrained"):
        assert words in str(caught.value)


@pytest.mark.parametrize("kind", ["llama", "distilbert", None])
def test_other_model_types_are_refused_by_name(folder, kind):
    edit_config(folder, model_type=kind)
    with pytest.raises(FolderError, match=f"'{kind}' is not supported; expected one of gpt2"):
        huggingface.load(folder)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ({"activation_function": "tanh"}, "activation 'tanh' is not supported"),
        ({"n_head": 4}, "embed_dim 6 is not a multiple of num_heads 4"),
        ({"n_layer": "two"}, "num_layers must be int, got 'two'"),
    ],
)
def test_settings_that_would_give_another_function_are_refused(folder, fields, words):
    edit_config(folder, **fields)
    with pytest.raises(FolderError, match=words):
        huggingface.load(folder)


def test_a_missing_field_of_the_config_is_named(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["n_embd"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FolderError, match="must have the field 'n_embd'"):
        huggingface.load(folder)


def test_damaged_folders_are_named(folder, tmp_path):
    with pytest.raises(FolderError, match="nowhere is not a folder"):
        huggingface.load(tmp_path / "nowhere")
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(FolderError, match=r"model.safetensors is not a readable safetensors file"):
        huggingface.load(folder)
    weights.unlink()
    with pytest.raises(FolderError, match=r"has no model.safetensors; is the download complete"):
        huggingface.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(FolderError, match=r"config.json is not valid JSON"):
        huggingface.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FolderError, match=r"has no config.json"):
        huggingface.load(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ConfigError, match=f"{name} is a named pipe"):
        huggingface.load(folder)


def test_a_missing_shard_is_named(tmp_path):
    huggingface.save(make_model(GPT), tmp_path, max_file_bytes=1000)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    shards[1].unlink()
    with pytest.raises(FolderError, match=f"has no {shards[1].name}"):
        huggingface.load(tmp_path)


def test_a_model_is_never_written_over_another(folder):
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(FolderError, match="already holds a model"):
        huggingface.save(make_model(GPT, seed=1), folder)
    assert (folder / "model.safetensors").read_bytes() == before


def test_a_broken_off_export_is_never_read(tmp_path, monkeypatch):
    monkeypatch.setattr(
        huggingface, "write_json", lambda *_: (_ for _ in ()).throw(OSError("full"))
    )
    with pytest.raises(OSError, match="full"):
        huggingface.save(make_model(GPT), tmp_path)
    with pytest.raises(FolderError, match=r"has no config.json"):
        huggingface.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position": "rotary"}, "position=rotary"),
        ({"embedding_rank": 2}, "embedding_rank=2"),
        ({"head_dim": 5}, "3 x 5"),
    ],
)
def test_what_their_format_cannot_hold_is_refused(changes, words, tmp_path):
    config = GPTConfig(vocab_size=13, num_layers=1, embed_dim=6, num_heads=3, **changes)
    with pytest.raises(ValueError, match=words):
        huggingface.save(make_model(config), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_analysed_network_has_no_folder(tmp_path):
    with pytest.raises(ValueError, match="LinearAttentionConfig"):
        huggingface.save(make_model(LinearAttentionConfig(num_layers=1)), tmp_path / "out")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_loading_never_holds_two_copies(tmp_path):
    """200 MB of weights: the memory taken on top of them stays below half of that."""
    code = """
        import sys, threading, time
        from icl_jax.config import GPTConfig, MeshConfig
        from icl_jax.models import create, huggingface
        from icl_jax.sharding import make_mesh

        def memory():
            lines = open("/proc/self/status").read().splitlines()
            return 1024 * next(int(l.split()[1]) for l in lines if l.startswith("RssAnon"))

        peak, done = 0, False
        def watch():
            global peak
            while not done:
                peak = max(peak, memory())
                time.sleep(0.002)

        mesh = make_mesh(MeshConfig(data=1, fsdp=2, tensor=1))
        huggingface.load(sys.argv[1] + "/small", mesh=mesh)  # everything imported and warm
        before = memory()
        thread = threading.Thread(target=watch)
        thread.start()
        model = huggingface.load(sys.argv[1] + "/large", mesh=mesh, scan_layers=True)
        done = True
        thread.join()
        print((peak - before) / 2**20)
    """
    small = {"context_length": 8, "num_heads": 4}
    for name, sizes in {"small": (64, 1, 64), "large": (20_000, 8, 640)}.items():
        vocab_size, num_layers, embed_dim = sizes
        config = GPTConfig(
            vocab_size=vocab_size, num_layers=num_layers, embed_dim=embed_dim, **small
        )
        model = make_model(config)
        huggingface.save(model, tmp_path / name)
    size = sum(leaf.nbytes for leaf in leaves(model)) / 2**20
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stderr
    taken = float(run.stdout)
    assert size > 190
    assert 0.9 * size < taken < 1.5 * size, f"{taken:.0f} MB taken for {size:.0f} MB of weights"
