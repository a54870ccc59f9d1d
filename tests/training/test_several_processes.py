"""A job of several processes is one run: the same losses, and checkpoints that any number reads."""

import json
from pathlib import Path
import shutil
import signal
import subprocess
import time

from etils import epath
from flax import nnx
import jax
import numpy as np
import pytest

from icl_jax.config import ConfigError, MeshConfig
from icl_jax.sharding import MESH_AXES, make_mesh
from icl_jax.training.checkpoint import load_model
from icl_jax.training.train import train
from icl_jax.workers.job import join_job
from tests.a_job import end_job, start_job
from tests.training import masked
from tests.training.killed import get_config
from tests.training.test_train import assert_close

STEPS, HALF, LONG, DEVICES = 16, 8, 64, 8


def config():
    found = get_config()
    found.training.steps = STEPS
    return found


def start_run(workdir: Path, processes: int, *flags: str) -> list[subprocess.Popen]:
    """The command in so many processes, all devices among them."""
    command = [
        "-m", "icl_jax.main", "--config=tests/training/killed.py",
        f"--config.training.steps={STEPS}", f"--workdir={workdir}", *flags,
    ]  # fmt: skip
    return start_job(command, processes, DEVICES // processes)


def run_job(workdir: Path, processes: int, *flags: str) -> None:
    for code, _, errors in end_job(start_run(workdir, processes, *flags)):
        assert code == 0, errors[-2000:]


def cache_programs(monkeypatch) -> None:
    """Lets the processes of a job keep their programs where the tests keep theirs."""
    for name in ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"):
        monkeypatch.setenv(name.upper(), str(getattr(jax.config, name)))


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
def test_a_tensor_axis_over_two_processes_trains_as_one_process_does(tmp_path, monkeypatch):
    """Both hosts need the same rows."""
    cache_programs(monkeypatch)
    found, steps = get_config(), 3
    found.training.steps = steps
    train(found, epath.Path(tmp_path / "alone"))
    command = [
        "-m", "icl_jax.main", "--config=tests/training/killed.py",
        f"--config.training.steps={steps}", f"--workdir={tmp_path / 'job'}",
        "--config.mesh.data=1", "--config.mesh.fsdp=1", "--config.mesh.tensor=2",
    ]  # fmt: skip
    for code, _, errors in end_job(start_job(command, 2, 1)):
        assert code == 0, errors[-2000:]
    assert len(losses(tmp_path / "job")) == steps
    assert losses(tmp_path / "job") == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)


@pytest.mark.parametrize("mesh", [(2, 1, 2), (2, 2, 1)])
def test_masks_and_dropout_do_not_depend_on_the_order_of_devices_over_hosts(
    tmp_path, monkeypatch, mesh
):
    """A host holds a part of every tensor, or rows with those of the other between them."""
    cache_programs(monkeypatch)
    found = masked.get_config()
    found.mesh = MeshConfig(*mesh)
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[:4])
    train(found, epath.Path(tmp_path / "alone"))
    command = [
        "-m", "tests.training.permuted", "--config=tests/training/masked.py",
        f"--workdir={tmp_path / 'job'}",
        *(f"--config.mesh.{axis}={size}" for axis, size in zip(MESH_AXES, mesh, strict=True)),
    ]  # fmt: skip
    for code, _, errors in end_job(start_job(command, 2, 2)):
        assert code == 0, errors[-2000:]
    assert len(losses(tmp_path / "job")) == found.training.steps
    assert losses(tmp_path / "job") == pytest.approx(losses(tmp_path / "alone"), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_train_as_one_and_one_continues_for_them(alone, processes, tmp_path):
    workdir, state = alone
    run_job(tmp_path / "job", processes)
    assert losses(tmp_path / "job") == pytest.approx(losses(workdir), rel=1e-5)
    half = go_back(tmp_path / "job", tmp_path / "half")
    with jax.numpy_dtype_promotion("standard"):
        assert_close(train(config(), epath.Path(half)).params, state.params, rtol=1e-5)


@pytest.mark.slow
def test_several_processes_continue_for_one(alone, tmp_path):
    workdir, _ = alone
    half = go_back(workdir, tmp_path / "half")
    run_job(half, 2)
    assert losses(half) == pytest.approx(losses(workdir), rel=1e-5)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed")
    run_job(workdir, 2, f"--config.training.steps={LONG}")
    return workdir


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_job_which_continues_to_the_same_bits(
    undisturbed, killed, tmp_path
):
    long = f"--config.training.steps={LONG}"
    job = start_run(tmp_path, 2, long)
    while not (tmp_path / "checkpoints" / str(HALF)).exists():
        assert all(process.poll() is None for process in job)
        time.sleep(0.05)
    job[killed].kill()
    _, errors = job[1 - killed].communicate(timeout=60)  # a minute, no more
    job[killed].communicate()
    assert job[1 - killed].returncode != 0
    assert "start all processes again with the same command" in errors
    assert not (tmp_path / "checkpoints" / str(LONG)).exists()
    run_job(tmp_path, 2, long)
    assert losses(tmp_path) == losses(undisturbed)
    mesh = make_mesh(MeshConfig())
    read = [nnx.state(load_model(str(folder), mesh)) for folder in (tmp_path, undisturbed)]
    jax.tree.map(np.testing.assert_array_equal, *read)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_one_process_stops_and_saves_all(undisturbed, number, tmp_path):
    long = f"--config.training.steps={LONG}"
    job = start_run(tmp_path, 2, long)
    while not (tmp_path / "checkpoints" / str(HALF)).exists():
        assert all(process.poll() is None for process in job)
        time.sleep(0.05)
    job[1].send_signal(number)
    told = [process.communicate(timeout=60)[0] for process in job]
    assert [process.returncode for process in job] == [143, 143]
    assert "stopped by a signal; rerun the command to continue" in told[0]
    assert not (tmp_path / "checkpoints" / str(LONG)).exists()
    run_job(tmp_path, 2, long)
    assert losses(tmp_path) == losses(undisturbed)


@pytest.mark.slow
def test_an_error_in_one_process_ends_the_job(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()  # which only the first process writes
    job = start_run(tmp_path, 2)
    errors = [process.communicate(timeout=60)[1] for process in job]
    assert all(process.returncode != 0 for process in job)
    assert "IsADirectoryError" in errors[0]
    assert "start all processes again with the same command" in errors[1]


@pytest.mark.parametrize(
    "job, message",
    [
        (("host:1", 2, None), "go together, --process_id is missing; on a TPU slice"),
        (("host", 2, 0), "must be HOST:PORT of process 0, got 'host'"),
        (("host:1", 2, 2), r"from 0 to 1 \(--num_processes - 1\), got 2"),
    ],
)
def test_a_job_that_cannot_be_is_reported(job, message):
    with pytest.raises(ConfigError, match=message):
        join_job(*job)
