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

import pytest

from icl_jax import mirror
from icl_jax.config import MeshConfig
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


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_mount(), reason="needs the right to mount (unshare --mount)"),
]


def begin(folder: Path, number: int, devices: int, command) -> subprocess.Popen:
    """A command on a host whose disk is its own, which holds the copies of what is in buckets."""
    disk, place = folder / f"disk {number}", folder / "mirror"
    for made in (disk, place):
        made.mkdir(exist_ok=True)
    mount = shlex.join(["mount", "--bind", str(disk), str(place)])
    xla = f"--xla_force_host_platform_device_count={devices}"
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


def test_two_hosts_run_rounds_in_a_bucket_and_others_go_on_with_it(gcs, tmp_path):
    """Killed in the second round, when the first one's files are in the bucket alone."""
    config = small_experiment(tmp_path)
    arms = ("regular", "neighbours_in_context")
    config.branches = dataclasses.replace(config.branches, arms=arms)
    held = tmp_path / "config.pickle"
    held.write_bytes(pickle.dumps(dataclasses.replace(config, mesh=MeshConfig(), rounds=2)))
    command = [sys.executable, "-m", "icl_jax.main", f"--workdir={WORK}",
               f"--config=tests/experiment/pickled_config.py:{held}"]  # fmt: skip
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
