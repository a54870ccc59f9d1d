"""The README's first command shows what it says, whatever the seed."""

import json
from pathlib import Path
import runpy

from etils import epath
import pytest

from icl_jax.config.tree import validate
from icl_jax.experiment.stages import default_stages, run_stages

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.py"
CONTROLS = ("regular", "random_in_context", "neighbours_in_batch", "random_in_batch")


def quickstart(**fields):
    config = runpy.run_path(str(CONFIG))["get_config"]()
    for name, value in fields.items():
        setattr(config, name, value)
    return config


def test_it_is_a_plain_experiment_with_every_control():
    config = quickstart()
    validate(config)
    assert default_stages(config) == ["design", "train", "evaluate"]
    assert {*CONTROLS, "neighbours_in_context"} == {*config.branches.arms}
    assert 0.1 <= config.branches.steps / config.training.steps <= 0.15


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_neighbours_in_context_answer_what_no_control_does(tmp_path, seed):
    config = quickstart(seed=seed)
    run_stages(config, epath.Path(tmp_path), default_stages(config))
    told = json.loads((tmp_path / "comparison.json").read_text())
    assert told["neighbours_in_context"]["correct"] >= 5 * max(1, told["regular"]["correct"])
    for arm in CONTROLS:
        assert told[arm]["exact_match"] < told["neighbours_in_context"]["exact_match"]
        assert told[arm]["p_exact_match"] < 0.01
