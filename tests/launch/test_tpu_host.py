"""The script of the hosts, run here with a home of its own: starts, reports, copies, stops."""

import json
from pathlib import Path
import subprocess
import sys
import tarfile
import time

import pytest

from launch import tpu_host
from tests.launch.stand_in_gcloud import NOTHING_RUNS

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "launch" / "tpu_host.py"
MAIN = """
import json, sys, time
json.dump(sys.argv[1:], open("got.json", "w"))
print("train:  43%|####3     | 3/7 [00:01<00:02,  2.00step/s, loss 3.1]", flush=True)
if "--wait" in sys.argv:
    time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Calls the script in a home where icl_jax.main is a small program."""
    for folder in ("icl_jax_env/bin", "icl_jax_source/icl_jax", "icl_jax_runs", "bin", "bucket"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "icl_jax_env/bin/python").symlink_to(sys.executable)
    (tmp_path / "icl_jax_source/icl_jax/main.py").write_text(MAIN)
    (tmp_path / "icl_jax_runs/installed.json").write_text('{"commit": "abc"}')
    copy = "import shutil, sys\nshutil.copy(sys.argv[3], sys.argv[4])\n"
    (tmp_path / "bin/gcloud").write_text(f"#!{sys.executable} -S\n{copy}")
    (tmp_path / "bin/gcloud").chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")

    def call(action: str, *words: str) -> dict:
        command = [sys.executable, "-S", str(SCRIPT), action, "--run=my-tpu", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        return json.loads(done.stdout.removeprefix("icl_jax_host "))

    call.home = tmp_path
    call.start = lambda *args: call("start", f"--logs={tmp_path}/bucket", "--", *args)
    yield call
    call("stop", "--grace=0")


def until_exit(host) -> dict:
    end = time.monotonic() + 60
    while (report := host("report"))["state"] == "running" and time.monotonic() < end:
        time.sleep(0.05)
    return report


def test_a_run_gets_its_arguments_and_reports_exit_step_and_log(host):
    started = host.start("5", "two words", "it's", "--", '"$HOME"')
    assert started["state"] == "running" and started["installed"] == "abc"
    report = until_exit(host)
    assert (report["state"], report["exit"], report["step"]) == ("exited", 5, [3, 7])
    assert not report["stopped"]
    got = json.loads((host.home / "icl_jax_source/got.json").read_text())
    assert got == report["arguments"] == ["5", "two words", "it's", "--", '"$HOME"']
    copies = list((host.home / "bucket").glob("*.log"))
    assert len(copies) == 1 and "3/7" in copies[0].read_text()
    assert report["upload_failed"] is None


def test_a_second_start_leaves_the_run_alone_and_stop_ends_it(host):
    host.start("0", "--wait")
    pid = json.loads((host.home / "icl_jax_runs/my-tpu.run.json").read_text())["pid"]
    assert host.start("1")["arguments"] == ["0", "--wait"]
    assert json.loads((host.home / "icl_jax_runs/my-tpu.run.json").read_text())["pid"] == pid
    stopped = host("stop", "--grace=10")
    assert stopped["state"] == "exited" and stopped["exit"] != 0 and stopped["asked_to_stop"]


def test_a_run_that_saved_on_a_signal_is_no_failure(host):
    host.start("143")
    assert until_exit(host)["stopped"]


def test_a_stop_at_once_ends_the_run_too(host, monkeypatch):
    slow = host.home / "slow"  # a host that is slow to start Python
    slow.mkdir()
    (slow / "tarfile.py").write_text("import time; time.sleep(0.5)")
    monkeypatch.setenv("PYTHONPATH", str(slow))
    host.start("0", "--wait")
    stopped = host("stop", "--grace=10")
    assert (stopped["state"], stopped["exit"]) == ("exited", -15)


def test_a_run_whose_processes_are_gone_has_vanished(host):
    (host.home / "icl_jax_runs/my-tpu.run.json").write_text('{"pid": 1, "arguments": []}')
    assert host("report")["state"] == "vanished"


def test_a_copy_that_fails_is_reported_and_does_not_end_the_run(host):
    (host.home / "bin/gcloud").write_text("#!/bin/sh\necho no access >&2\nexit 1\n")
    host.start("0")
    report = until_exit(host)
    assert report["exit"] == 0 and report["upload_failed"] == "no access"


def test_the_stand_in_reports_as_the_script_does(host):
    assert host("report").keys() - {"host"} == NOTHING_RUNS.keys()


def test_nothing_is_installed_under_a_run(host):
    host.start("0", "--wait")
    command = [sys.executable, str(SCRIPT), "install", "--commit=def"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "my-tpu runs here" in done.stderr


@pytest.fixture
def installed(host, monkeypatch):
    """Installs a source with this lock; what is in the environment, and the words of each call."""
    (host.home / "stand_in").mkdir()
    script = f"import sys; sys.path.insert(0, {str(HERE)!r}); import stand_in_uv as it; it.pip()"
    (host.home / "stand_in/pip.py").write_text(script)
    monkeypatch.setenv("PYTHONPATH", str(host.home / "stand_in"))

    def install(lock: dict, commit: str = "def") -> tuple[dict, list[list[str]]]:
        calls, file = host.home / "installs.jsonl", host.home / "lock.txt"
        calls.unlink(missing_ok=True)
        file.write_text(
            "".join(f"{name}=={pin} \\\n    --hash=sha256:0\n" for name, pin in lock.items())
        )
        with tarfile.open(host.home / "icl_jax_source.tar.gz", "w:gz") as archive:
            archive.add(file, "launch/requirements-tpu.txt" if lock else "README.md")
        assert host("install", f"--commit={commit}")["installed"] == commit
        packages = json.loads((host.home / "icl_jax_env/packages.json").read_text())
        assert packages.pop("icl_jax") == str(host.home / "icl_jax_source")
        return packages, [json.loads(line) for line in calls.read_text().splitlines()]

    return install


def test_a_host_gets_the_versions_of_the_lock_and_no_others(host, installed):
    lock = {"jax": "0.10.2", "numpy": "2.4.6"}
    packages, calls = installed(lock)
    assert packages == lock
    assert host("report")["installed"] == "def"
    assert all("--require-hashes" in words for words in calls if "-r" in words)
    assert [words[-1] for words in calls if words[0] == "pip"] == [tpu_host.UV]


def test_a_second_setup_by_the_same_lock_keeps_the_environment(host, installed):
    lock = {"jax": "0.10.2"}
    installed(lock)
    (host.home / "icl_jax_env/compiled.pyc").touch()
    packages, calls = installed(lock, commit="ghi")
    assert packages == lock and (host.home / "icl_jax_env/compiled.pyc").exists()
    assert [words[:3] for words in calls] == [["uv", "pip", "install"]] * 2
    assert host("report")["installed"] == "ghi"


def test_another_lock_leaves_nothing_of_the_old_one(installed):
    installed({"jax": "0.10.2", "einops": "0.8.2"})
    assert installed({"jax": "0.10.3"})[0] == {"jax": "0.10.3"}


def test_an_environment_that_was_left_half_made_is_made_again(host, installed):
    (host.home / "fail").touch()
    with pytest.raises(subprocess.CalledProcessError) as failed:
        installed({"jax": "0.10.2"})
    assert "the disk is full" in failed.value.stderr
    assert host("report")["installed"] is None
    assert "venv" in [words[1] for words in installed({"jax": "0.10.2"})[1]]


def test_a_commit_without_a_lock_is_not_installed(installed):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        installed({})
    assert "commit def has no launch/requirements-tpu.txt" in failed.value.stderr


def test_the_script_needs_no_more_than_the_python_of_the_images():
    compile(SCRIPT.read_text(), SCRIPT.name, "exec", flags=0, dont_inherit=True, optimize=0)
    imports = [
        line for line in SCRIPT.read_text().splitlines() if line.startswith(("import", "from"))
    ]
    modules = {line.split()[1].partition(".")[0] for line in imports}
    assert modules <= sys.stdlib_module_names
