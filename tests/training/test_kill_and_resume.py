"""Whatever kills a run, the same command ends with the weights of a run that was never killed."""

import json
from pathlib import Path
import signal
import subprocess
import sys
import time

from etils import epath
import jax
import numpy as np
import pytest

from icl_jax.training import checkpoint
from icl_jax.training.train import train
from tests.training.killed import get_config
from tests.training.test_train import assert_close, assert_equal

ROOT = Path(__file__).parents[2]
PATIENCE = 120  # seconds until something that must happen counts as not happening


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    with jax.numpy_dtype_promotion("standard"):
        return train(get_config(), epath.Path(tmp_path_factory.mktemp("undisturbed")))


class Run:
    """The command in a process of its own, with the devices and compiler settings of the tests."""

    def __init__(self, workdir: Path, *flags: str, program=("-m", "icl_jax.main")):
        self.workdir = workdir
        command = [sys.executable, *program, "--config=tests/training/killed.py"]
        self.process = subprocess.Popen(
            [*command, f"--workdir={workdir}", *flags], cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait_for(self, happened) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert self.process.poll() is None, self.process.communicate()[1][-2000:]
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.0005)

    def kill(self, number=signal.SIGKILL) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def step(self) -> int:
        """The last step in the metrics."""
        path = self.workdir / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return json.loads(lines[-1])["step"] if lines and lines[-1].endswith("}") else 0

    def writing(self) -> bool:
        """A checkpoint is being written, and it is not the first."""
        return self.step() > 30 and any(
            (self.workdir / "checkpoints").glob("*.orbax-checkpoint-tmp")
        )


def finish(workdir, *flags):
    run = Run(workdir, *flags)
    out, err = run.process.communicate(timeout=PATIENCE)
    assert run.process.returncode == 0, err[-2000:]
    return out


def final_params(workdir, state):
    _, step = checkpoint.find(str(workdir))
    assert step == 80
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    return checkpoint.restore_from(str(workdir), like)


# Before a finished checkpoint gets its name the process leaves a sign, and waits to be killed.
WAIT = """
import pathlib, runpy, sys, time

def wait(event, arguments):
    if event == "os.rename" and pathlib.Path(str(arguments[1])).name == "8":
        pathlib.Path(SIGN).touch()
        time.sleep(PATIENCE)

sys.addaudithook(wait)
runpy.run_module("icl_jax.main", run_name="__main__", alter_sys=True)
"""


def test_a_run_killed_amid_a_checkpoint_continues_to_the_last_bit(tmp_path):
    few = ("--config.training.steps=12", "--config.training.checkpoint_every=4")
    workdir, sign = tmp_path / "killed", tmp_path / "sign"
    code = WAIT.replace("SIGN", repr(str(sign))).replace("PATIENCE", str(PATIENCE))
    config = get_config()
    config.training.steps, config.training.checkpoint_every = 12, 4
    undisturbed = train(config, epath.Path(tmp_path / "undisturbed"))  # first: it compiles for both
    run = Run(workdir, *few, program=("-c", code))
    run.wait_for(sign.exists)
    assert run.kill() == -signal.SIGKILL
    assert checkpoint.finished_steps(epath.Path(workdir / "checkpoints")) == [4]
    assert list((workdir / "checkpoints").glob("8.orbax-checkpoint-tmp*"))
    assert_equal(train(config, epath.Path(workdir)), undisturbed)
    assert metrics_in(workdir) == metrics_in(tmp_path / "undisturbed")
    assert [step for step, _ in metrics_in(workdir)] == list(range(1, 13))


def metrics_in(workdir: Path) -> list[tuple[int, float]]:
    lines = map(json.loads, (workdir / "metrics.jsonl").open())
    return [(line["step"], line["loss"]) for line in lines]


@pytest.mark.slow
def test_a_killed_run_ends_with_the_weights_of_an_undisturbed_one(undisturbed, tmp_path):
    run = Run(tmp_path)
    run.wait_for(run.writing)
    assert run.kill() == -signal.SIGKILL
    unfinished = list((tmp_path / "checkpoints").glob("*.orbax-checkpoint-tmp"))
    assert unfinished, "the checkpoint was finished before the signal came"
    finish_alike(undisturbed, tmp_path)


@pytest.mark.slow
def test_a_run_stopped_twice_ends_with_the_weights_of_an_undisturbed_one(undisturbed, tmp_path):
    run = Run(tmp_path)
    run.wait_for(lambda: run.step() > 3)  # before the first checkpoint
    assert run.kill() == -signal.SIGKILL

    run = Run(tmp_path)
    run.wait_for(lambda: run.step() > 50)
    assert run.kill(signal.SIGTERM) == 143  # it saves what it has
    assert "stopped by a signal; rerun the command to continue" in run.process.communicate()[0]
    assert run.step() >= 51 and (tmp_path / "checkpoints" / str(run.step())).is_dir()
    finish_alike(undisturbed, tmp_path)


def finish_alike(undisturbed, tmp_path):
    finish(tmp_path)
    assert_equal(final_params(tmp_path, undisturbed), undisturbed)
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()]
    assert steps == list(range(1, 81))


@pytest.mark.slow
def test_a_run_killed_between_two_checkpoints_continues_on_another_mesh(undisturbed, tmp_path):
    run = Run(tmp_path)
    run.wait_for(lambda: run.step() > 25)
    assert run.kill() == -signal.SIGKILL
    finish(tmp_path, "--config.mesh.data=8", "--config.mesh.fsdp=1", "--config.mesh.tensor=1")
    assert_close(final_params(tmp_path, undisturbed).params, undisturbed.params, rtol=1e-5)
    assert np.isfinite(
        json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["loss"]
    )
