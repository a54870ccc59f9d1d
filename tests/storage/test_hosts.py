"""Two hosts with a disk each, and a bucket that both see."""

import dataclasses
import json
import os
from pathlib import Path
import pickle
import shlex
import shutil
import socket
import subprocess
import sys
import time

from etils import epath
import jax
import pytest

from icl_jax.config import BranchesConfig, DataConfig, MeshConfig, TrainingConfig
from icl_jax.experiment.stages import run_stages
from icl_jax.files import mirror
from tests.experiment.test_stages import small_experiment
from tests.storage.test_runs import (
    COMMAND,
    ROOT,
    WORK,
    files_below,
    metrics_in,
    objects_below,
    pack_corpus,
)


def can_mount() -> bool:
    """Whether a process may see another disk than its neighbour at the same place."""
    command = ["unshare", "--mount", "true"]
    return bool(shutil.which("unshare")) and not subprocess.run(command, check=False).returncode


pytestmark = pytest.mark.skipif(
    not can_mount(), reason="needs the right to mount (unshare --mount)"
)


def begin(folder: Path, number: int, devices: int, command) -> subprocess.Popen:
    """A command on a host whose disk is its own, which holds the copies of what is in buckets."""
    disk, place = folder / f"disk {number}", folder / "mirror"
    for made in (disk, place):
        made.mkdir(exist_ok=True)
    mount = shlex.join(["mount", "--bind", str(disk), str(place)])
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    xla = " ".join([*flags, f"--xla_force_host_platform_device_count={devices}"])
    return subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"{mount}; exec {shlex.join(command)}"],
        cwd=ROOT, env=os.environ | {"XLA_FLAGS": xla, mirror.PLACE: str(place)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def begin_two(folder: Path, command) -> list[subprocess.Popen]:
    """The command as a job of two such hosts."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    job = (*command, f"--coordinator=127.0.0.1:{port}", "--num_processes=2")
    return [begin(folder, number, 2, [*job, f"--process_id={number}"]) for number in (0, 1)]


def end(*processes: subprocess.Popen) -> str:
    """What the last of them told, when all have ended well."""
    for process in processes:
        told, _ = process.communicate(timeout=600)
        assert process.returncode == 0, told
    return told


def command_for(config, folder: Path) -> list[str]:
    held = folder / "config.pickle"
    held.write_bytes(pickle.dumps(config))
    return [sys.executable, "-m", "icl_jax.main", f"--workdir={WORK}",
            f"--config=tests/experiment/pickled_config.py:{held}"]  # fmt: skip


def test_two_hosts_design_and_train_in_a_bucket_as_one_does_on_a_disk(gcs, tmp_path):
    """All small: another test has the whole command, with its evaluation."""
    config = small_experiment(tmp_path, people=8)
    config.design.examples.arms = ("neighbours_in_context",)
    config = dataclasses.replace(
        config, mesh=MeshConfig(), branches=BranchesConfig(),
        training=TrainingConfig(steps=2, checkpoint_every=2, log_every=1),
        data=DataConfig(sources=("design:neighbours_in_context",), pack=True),
    )  # fmt: skip
    command = [*command_for(config, tmp_path), "--stages=design,train"]
    job = begin_two(tmp_path, command)
    with jax.numpy_dtype_promotion("standard"):  # Optax mixes dtypes
        run_stages(config, epath.Path(tmp_path / "run"), ("design", "train"))
    end(*job)
    assert objects_below(gcs, f"{WORK}/design") == files_below(tmp_path / "run" / "design")
    ours = metrics_in(gcs.content(f"{WORK}/metrics.jsonl").decode())
    assert ours == pytest.approx(metrics_in((tmp_path / "run/metrics.jsonl").read_text()), rel=1e-5)
    assert f"{config.training.steps}/commit_success.txt" in gcs.names(f"{WORK}/checkpoints")


@pytest.mark.slow
def test_two_hosts_with_a_bucket_come_to_what_one_does_with_a_disk(gcs, tmp_path):
    pack_corpus(gcs, tmp_path)
    end(*begin_two(tmp_path, [*COMMAND, f"--workdir={WORK}"]))
    end(begin(tmp_path, 2, 4, [*COMMAND, f"--workdir={tmp_path / 'run'}"]))
    assert objects_below(gcs, f"{WORK}/design") == files_below(tmp_path / "run" / "design")
    ours = metrics_in(gcs.content(f"{WORK}/metrics.jsonl").decode())
    assert ours == pytest.approx(metrics_in((tmp_path / "run/metrics.jsonl").read_text()), rel=1e-5)
    file = "evaluation/30/perplexity/results.json"
    found = [gcs.content(f"{WORK}/{file}"), (tmp_path / "run" / file).read_bytes()]
    ours, theirs = (json.loads(content)["all"]["nats_per_token"] for content in found)
    assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.slow
def test_two_hosts_run_rounds_in_a_bucket_and_others_continue_with_it(gcs, tmp_path):
    """Killed in the second round, when the first one's files are in the bucket alone."""
    config = small_experiment(tmp_path)
    arms = ("regular", "neighbours_in_context")
    config.branches = dataclasses.replace(config.branches, arms=arms)
    command = command_for(dataclasses.replace(config, mesh=MeshConfig(), rounds=2), tmp_path)
    job = begin_two(tmp_path, command)
    while "bucket/mine/rounds/2/design/corpus_vectors/results.json" not in gcs.objects:
        assert all(process.poll() is None for process in job), job[0].communicate()[0]
        time.sleep(0.01)
    for process in job:
        process.kill()
        process.communicate()
    first = {name: kept[1] for name, kept in gcs.objects.items() if "mine/rounds" not in name}
    for number in (0, 1):
        shutil.rmtree(tmp_path / f"disk {number}")
    end(*begin_two(tmp_path, command))
    assert {name: gcs.objects[name][1] for name in first} == first  # round 1 is as it was
    found = json.loads(gcs.content(f"{WORK}/rounds.json"))
    assert [{*each["arms"]} for each in found["rounds"]] == [{*arms}, {*arms, "unchanged"}]
    complete = {name: kept[1] for name, kept in gcs.objects.items()}
    assert "all 2 rounds are complete" in end(begin(tmp_path, 2, 4, command))
    assert {name: kept[1] for name, kept in gcs.objects.items()} == complete
