"""A job of several processes is one run: the same losses, and checkpoints that any number reads."""

import json
import os
from pathlib import Path
import shutil
import socket
import subprocess
import sys

from etils import epath
import jax
import pytest

from icl_jax.config import ConfigError
from icl_jax.distributed import join_job
from icl_jax.training.train import train
from tests.training.killed import get_config
from tests.training.test_train import assert_close

ROOT = Path(__file__).parents[2]
STEPS, HALF, DEVICES = 16, 8, 8
PATIENCE = 240  # seconds


def config():
    found = get_config()
    found.training.steps = STEPS
    return found


def run_job(workdir: Path, processes: int) -> None:
    """The command in so many processes, all devices among them."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    flags = os.environ["XLA_FLAGS"].replace(f"count={DEVICES}", f"count={DEVICES // processes}")
    command = [
        sys.executable, "-m", "icl_jax.main", "--config=tests/training/killed.py",
        f"--config.training.steps={STEPS}", f"--workdir={workdir}",
        f"--coordinator=127.0.0.1:{port}", f"--num_processes={processes}",
    ]  # fmt: skip
    job = [
        subprocess.Popen(
            [*command, f"--process_id={number}"], cwd=ROOT, env=os.environ | {"XLA_FLAGS": flags},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(processes)
    ]  # fmt: skip
    for process in job:
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors[-2000:]


def losses(workdir: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (workdir / "metrics.jsonl").open()]


def go_back(workdir: Path, to: Path) -> Path:
    """A copy of the run as it was at half its steps."""
    shutil.copytree(workdir, to)
    shutil.rmtree(to / "checkpoints" / str(STEPS))
    return to


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process with all devices: the run's folder and its last state."""
    workdir = tmp_path_factory.mktemp("alone")
    with jax.numpy_dtype_promotion("standard"):
        return workdir, train(config(), epath.Path(workdir))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_train_as_one_does_and_one_goes_on_for_them(alone, processes, tmp_path):
    workdir, state = alone
    run_job(tmp_path / "job", processes)
    assert losses(tmp_path / "job") == pytest.approx(losses(workdir), rel=1e-5)
    half = go_back(tmp_path / "job", tmp_path / "half")
    with jax.numpy_dtype_promotion("standard"):
        assert_close(train(config(), epath.Path(half)).params, state.params, rtol=1e-5)


@pytest.mark.slow
def test_several_processes_go_on_for_one(alone, tmp_path):
    workdir, _ = alone
    half = go_back(workdir, tmp_path / "half")
    run_job(half, 2)
    assert losses(half) == pytest.approx(losses(workdir), rel=1e-5)


@pytest.mark.parametrize(
    "job, message",
    [
        (("host:1", 2, None), "go together, --process_id is missing; on a TPU slice"),
        (("host", 2, 0), "must be HOST:PORT of process 0, got 'host'"),
        (("host:1", 2, 2), r"from 0 to 1 \(--num_processes - 1\), got 2"),
    ],
)
def test_a_job_that_cannot_be_is_told(job, message):
    with pytest.raises(ConfigError, match=message):
        join_job(*job)
