"""The command that writes a run's model as a Hugging Face folder."""

import shutil

import numpy as np
import pytest

from icl_jax.config import GPTConfig
from icl_jax.models import create
from icl_jax.training import export
from icl_jax.training.model_at import model_at
from tests.evaluation import small
from tests.training.small import experiment

SIZES = {"vocab_size": 11, "context_length": 8, "num_layers": 1, "embed_dim": 4, "num_heads": 1}


@pytest.fixture
def flags(tmp_path):
    return [f"--run={tmp_path / 'run'}", f"--to={tmp_path / 'to'}"]


def test_a_run_that_is_not_there_is_reported(tmp_path, flags):
    with pytest.raises(SystemExit, match=f"error: there is no folder {tmp_path / 'run'}"):
        export.main(flags)
    (tmp_path / "run").mkdir()
    with pytest.raises(SystemExit, match="there is no finished checkpoint in"):
        export.main(flags)


def test_what_the_format_cannot_hold_is_reported_in_one_line(tmp_path, flags, monkeypatch):
    config = GPTConfig(**SIZES, position="rotary")
    load = lambda run, mesh, ema: create(config, 0, mesh)  # noqa: E731
    monkeypatch.setattr(export.checkpoint, "load_model", load)
    with pytest.raises(SystemExit, match=r"cannot hold position=rotary .*; train with"):
        export.main(flags)
    assert not (tmp_path / "to").exists()


def test_the_tokenizer_comes_with_the_model(tmp_path, flags, capsys):
    transformers = pytest.importorskip("transformers")
    config = experiment("design:contiguous", model=GPTConfig(**small.SIZES), mesh=(-1, 1, 1))
    run = small.run_folder(tmp_path / "run", config)
    export.main(flags)
    assert "step 2 written to" in (told := capsys.readouterr().out) and "its tokenizer" in told
    ours = model_at(str(run))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "to")
    for text in ("Who was born in Kersk?", " Zebras & 42 µm", ""):
        assert theirs.encode(text, add_special_tokens=False) == ours.tokenizer.encode(text).tolist()
    assert theirs.eos_token_id == ours.tokenizer.end_of_text_id
    assert theirs.decode([ours.tokenizer.separator_id]) == "<|separator|>"

    exported = model_at(str(tmp_path / "to"))  # and needs no other tokenizer
    assert exported.tokenizer.fingerprint == ours.tokenizer.fingerprint
    tokens, mesh = ours.tokenizer.encode("Ada lives by the river.")[None], small.mesh_of()
    np.testing.assert_array_equal(ours.load(mesh)(tokens), exported.load(mesh)(tokens))


def test_a_run_without_a_design_is_written_without_a_tokenizer(tmp_path, flags, capsys):
    config = experiment(model=GPTConfig(**SIZES), mesh=(-1, 1, 1))
    small.run_folder(tmp_path / "run", config)
    shutil.rmtree(tmp_path / "run" / "design")
    export.main(flags)
    assert "without a tokenizer" in capsys.readouterr().out
    assert not (tmp_path / "to" / "tokenizer.json").exists()
