"""What the metrics count, and how their file is taken up again."""

import json
import subprocess
import sys

from etils import epath
from flax import nnx
import numpy as np
import pytest

from icl_jax.config import ExperimentConfig, StageError, TrainingConfig
from icl_jax.models import abstract
from icl_jax.models.kinds import preset
from icl_jax.tpu.chips import chip_of_kind
from icl_jax.training.goodput import Goodput
from icl_jax.training.hardware import measured_gemm_flops
from icl_jax.training.metrics import MetricsLog, flops_per_token
from tests.training.small import experiment


def test_flops_are_six_per_weight_of_a_product_and_twelve_per_pair():
    config = ExperimentConfig(model=preset("gpt2-base"), sequence_length=256)
    flat = nnx.to_flat_state(abstract(config.model)[1])
    weights = sum(v.size for path, v in flat if path[-1] == "kernel")
    weights += next(v.size for path, v in flat if path[0] == "token_embedding")  # the tied head
    assert flops_per_token(config) == 6 * weights + 12 * 12 * 256 * 768


def test_masked_training_counts_the_head_for_predicted_tokens_only():
    model = preset("roberta-base")
    both = [
        flops_per_token(ExperimentConfig(model=model, training=TrainingConfig(objective=objective)))
        for objective in ("next_token", "masked_token")
    ]
    assert both[0] - both[1] == pytest.approx(0.85 * 6 * 50265 * 768)


def test_a_cpu_is_measured():
    assert 1e9 < measured_gemm_flops(size=256, rounds=2) < 1e14
    assert chip_of_kind("TPU v5 lite").flops == 197e12


def test_steps_that_will_be_done_again_and_half_a_line_are_dropped(tmp_path):
    lines = [json.dumps({"step": n, "loss": 1.0}) for n in (1, 2, 3, 4)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 5, "lo')
    workdir = epath.Path(tmp_path)
    with MetricsLog(experiment(), workdir, 2, 9, Goodput(workdir)):
        pass
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == lines[:2]


def test_the_last_step_is_written_though_it_is_between_two(tmp_path):
    workdir, names = epath.Path(tmp_path), ("loss", "learning_rate", "grad_norm", "tokens")
    with MetricsLog(experiment(log_every=2), workdir, 0, 5, Goodput(workdir)) as log:
        for step in range(1, 6):
            log.push(step, {name: np.float32(1) for name in names}, 0.0)
            log.flush()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4, 5]


class StepLoss:
    """A number of a step that runs, or ran."""

    def __init__(self, ready: bool):
        self.is_ready = lambda: ready

    def item(self) -> float:
        return 1.0


@pytest.mark.parametrize("ready, waited", [(True, 2.0), (False, 0.0)])
def test_a_wait_behind_a_running_step_costs_nothing(tmp_path, ready, waited):
    goodput = Goodput(epath.Path(tmp_path))
    names = ("loss", "learning_rate", "grad_norm", "tokens")
    with MetricsLog(experiment(), epath.Path(tmp_path), 0, 9, goodput) as log:
        log.push(1, dict.fromkeys(names, StepLoss(ready)), 0.0)
        log.push(2, dict.fromkeys(names, StepLoss(ready)), 2.0)
    assert goodput.numbers()["seconds_input_wait"] == waited


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_a_loss_or_a_gradient_that_is_not_finite_is_named_with_its_step(tmp_path, name):
    workdir = epath.Path(tmp_path)
    metrics = {key: np.float32(1) for key in ("loss", "learning_rate", "grad_norm", "tokens")}
    with MetricsLog(experiment(), workdir, 0, 9, Goodput(workdir)) as log:
        log.push(1, metrics, 0.0)
        log.flush()
        log.push(2, metrics | {name: np.float32(np.inf)}, 0.0)
        with pytest.raises(StageError, match=f"{name} is inf at step 2"):
            log.flush()


def test_event_files_are_written_without_pytorch(tmp_path):
    code = (
        "import sys; from icl_jax.training.metrics import open_board\n"
        "open_board(sys.argv[1], 1).add_scalar('train/loss', 1.0, 1)\n"
        "assert not {'torch', 'google.cloud.storage'} & {*sys.modules}, 'imported'"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert list(tmp_path.glob("events*"))
