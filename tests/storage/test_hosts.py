"""Two hosts with a disk each, and a bucket that both see."""

import os
import shlex
import shutil
import socket
import subprocess

import pytest

from icl_jax import mirror
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


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs the right to mount (unshare --mount)")
def test_two_hosts_with_a_bucket_design_and_train_as_one_with_a_disk(gcs, tmp_path):
    pack_corpus(gcs, tmp_path)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    place = tmp_path / "mirror"

    def begin(number: int, devices: int, *flags: str) -> subprocess.Popen:
        disk = tmp_path / f"disk {number}"
        for folder in (disk, place):
            folder.mkdir(exist_ok=True)
        mount = shlex.join(["mount", "--bind", str(disk), str(place)])
        xla = f"--xla_force_host_platform_device_count={devices}"
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", f"{mount}; exec {shlex.join([*COMMAND, *flags])}"],
            cwd=ROOT, env=os.environ | {"XLA_FLAGS": xla, mirror.PLACE: str(place)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    job = (f"--workdir={WORK}", f"--coordinator=127.0.0.1:{port}", "--num_processes=2")
    for process in [begin(n, 2, *job, f"--process_id={n}") for n in (0, 1)]:
        told, _ = process.communicate(timeout=600)
        assert process.returncode == 0, told
    alone = begin(2, 4, f"--workdir={tmp_path / 'run'}")
    told, _ = alone.communicate(timeout=600)
    assert alone.returncode == 0, told
    assert objects_below(gcs, f"{WORK}/design") == files_below(tmp_path / "run" / "design")
    ours = metrics_in(gcs.content(f"{WORK}/metrics.jsonl").decode())
    assert ours == pytest.approx(metrics_in((tmp_path / "run/metrics.jsonl").read_text()), rel=1e-5)
