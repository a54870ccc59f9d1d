"""The command that writes a run's model as a Hugging Face folder."""

import pytest

from icl_jax.config import GPTConfig
from icl_jax.models import create
from icl_jax.training import export

SIZES = {"vocab_size": 11, "context_length": 8, "num_layers": 1, "embed_dim": 4, "num_heads": 1}


@pytest.fixture
def flags(tmp_path):
    return [f"--run={tmp_path / 'run'}", f"--to={tmp_path / 'to'}"]


def test_a_run_that_is_not_there_is_told(tmp_path, flags):
    with pytest.raises(SystemExit, match=f"error: there is no folder {tmp_path / 'run'}"):
        export.main(flags)
    (tmp_path / "run").mkdir()
    with pytest.raises(SystemExit, match="there is no finished checkpoint in"):
        export.main(flags)


def test_what_the_format_cannot_hold_is_told_in_one_line(tmp_path, flags, monkeypatch):
    config = GPTConfig(**SIZES, position="rotary")
    load = lambda run, mesh, ema: create(config, 0, mesh)  # noqa: E731
    monkeypatch.setattr(export.checkpoint, "load_model", load)
    with pytest.raises(SystemExit, match=r"cannot hold position=rotary .*; train with"):
        export.main(flags)
    assert not (tmp_path / "to").exists()
