"""Starts one command as a job of several processes on this machine."""

import os
from pathlib import Path
import socket
import subprocess
import sys

ROOT = Path(__file__).parents[1]
PATIENCE = 240  # seconds


def start_job(command: list[str], processes: int, devices: int) -> list[subprocess.Popen]:
    """`python COMMAND` in so many processes, with so many devices in each."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    flags.append(f"--xla_force_host_platform_device_count={devices}")
    environment = os.environ | {"XLA_FLAGS": " ".join(flags), "PYTHONPATH": str(ROOT)}
    job = [f"--coordinator=127.0.0.1:{port}", f"--num_processes={processes}"]
    return [
        subprocess.Popen(
            [sys.executable, *command, *job, f"--process_id={number}"], cwd=ROOT, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(processes)
    ]  # fmt: skip


def end_job(job: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each process."""
    told = [process.communicate(timeout=PATIENCE) for process in job]
    return [(process.returncode, *text) for process, text in zip(job, told, strict=True)]
