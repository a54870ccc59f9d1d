"""The command line: overrides reach the stages, and a wrong one stops the run in one line."""

import json
import os
from pathlib import Path
import subprocess
import sys

import pytest

ROOT = Path(__file__).parents[1]
TINY = "--config=configs/tiny.py"


def run(*args, module="icl_jax.main"):
    """As a user runs it: with no devices emulated."""
    command = [sys.executable, "-m", module, *map(str, args)]
    kept = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    env = os.environ | {"XLA_FLAGS": " ".join(kept)}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)


def test_help_names_the_flags():
    shown = run("--help").stdout
    assert all(flag in shown for flag in ("--config", "--workdir", "--stages"))


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (
            "--config.model.num_layer=3",
            "--config.model.num_layer: config.model has no field 'num_layer'; "
            "did you mean 'num_layers'?",
        ),
        ("--config.model.num_layers=abc", "--config.model.num_layers must be int, got 'abc'"),
        (
            "--config.model.scan_layers=maybe",
            "--config.model.scan_layers must be bool, got 'maybe'",
        ),
        ("--config.nope.x=1", "--config.nope.x: config has no field 'nope'; available: seed,"),
        ("--config.model=3", "--config.model has fields of its own"),
        ("--config.batch_size=0", "batch_size must be at least 1, got 0"),
        (
            "--config.model.head_dim=None",
            "--config.model.head_dim must be int, got 'None'; None can",
        ),
        ("--config=configs/none.py", "config file 'configs/none.py' does not exist"),
        ("--stages=bake", "unknown stage 'bake' in --stages; available: check, design, train"),
        ("--workdirs=x", "Unknown command line flag 'workdirs'. Did you mean: workdir ?"),
        ("stray", "unexpected argument 'stray'"),
    ],
)
def test_a_wrong_flag_stops_the_run_in_one_readable_line(tmp_path, flag, message):
    stopped = run(TINY, f"--workdir={tmp_path}/run", flag)
    assert stopped.returncode != 0
    assert stopped.stderr.startswith("error: " + message)
    assert stopped.stderr.count("\n") == 1, stopped.stderr
    assert not (tmp_path / "run").exists()


def test_an_unknown_field_is_blamed_before_a_value():
    stopped = run(
        TINY, "--workdir=x", "--config.model.scan_layers", "--config.seed=a", "--config.b=1"
    )
    assert stopped.stderr.startswith("error: --config.b: config has no field 'b'")


@pytest.mark.parametrize(("args", "missing"), [([], "--config=FILE"), ([TINY], "--workdir=DIR")])
def test_a_missing_flag_is_asked_for(args, missing):
    stopped = run(*args)
    assert stopped.returncode != 0
    assert missing in stopped.stderr and stopped.stderr.count("\n") == 1


def test_overrides_reach_the_stage_and_emulated_devices_make_the_mesh(tmp_path):
    args = ["--devices=2", TINY, f"--workdir={tmp_path}/run", "--stages=check"]
    args += ["--config.mesh.fsdp=2", "--config.model.num_layers=1", "--config.sequence_length=16"]
    finished = run(*args, module="launch.local")
    assert finished.returncode == 0, finished.stderr
    assert "all checks passed" in finished.stdout
    written = json.loads((tmp_path / "run" / "check.json").read_text())
    assert written["config"]["model"]["num_layers"] == 1
    assert written["results"]["mesh"] == {"data": 1, "fsdp": 2, "tensor": 1}


def test_a_mesh_that_the_devices_do_not_make_is_refused(tmp_path):
    stopped = run(TINY, f"--workdir={tmp_path}/run", "--config.mesh.fsdp=3", "--devices=8",
                  module="launch.local")  # fmt: skip
    assert stopped.returncode != 0
    assert "needs 6 devices, but there are 8" in stopped.stderr
