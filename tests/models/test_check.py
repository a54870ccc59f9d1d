"""The check stage passes on a right model, and notices a wrong one."""

import json

from etils import epath
import jax.numpy as jnp
import pytest

from icl_jax.config import (
    ExperimentConfig,
    GPTConfig,
    LinearAttentionConfig,
    MeshConfig,
    RobertaConfig,
    StageError,
)
from icl_jax.models import attention
from icl_jax.models.check import check

SMALL = {"vocab_size": 32, "context_length": 16, "num_layers": 1, "embed_dim": 8, "num_heads": 2}
MODELS = [
    GPTConfig(**SMALL),
    RobertaConfig(**SMALL, dtype="bfloat16", mlm_head=False),
    LinearAttentionConfig(**SMALL, embedding="convolution", input_dim=3, tie_head=False),
]


def experiment(model):
    mesh = MeshConfig(data=2, fsdp=2, tensor=2)
    return ExperimentConfig(batch_size=4, sequence_length=16, model=model, mesh=mesh)


@pytest.mark.parametrize(
    "model",
    [MODELS[0], pytest.param(MODELS[1], marks=pytest.mark.slow), MODELS[2]],
    ids=lambda model: type(model).__name__,
)
def test_right_models_pass_and_leave_a_report(model, tmp_path, capsys):
    results = check(experiment(model), epath.Path(tmp_path / "run"))
    written = json.loads((tmp_path / "run" / "check.json").read_text())
    assert written["results"] == results
    assert written["config"]["model"]["num_layers"] == 1
    assert results["moved_outside"] == 0 < results["moved_inside_changed_group"]
    assert "all checks passed" in capsys.readouterr().out


def test_a_model_whose_groups_leak_is_noticed(tmp_path, monkeypatch):
    def leaking(query, key, causal):
        return jnp.ones((1, query.index_T.size, key.index_T.size), bool)

    monkeypatch.setattr(attention, "visible", leaking)
    model = GPTConfig(**(SMALL | {"vocab_size": 33}))  # nothing compiled before
    with pytest.raises(StageError, match="must affect that group only"):
        check(experiment(model), epath.Path(tmp_path))
    assert not (tmp_path / "check.json").exists()
