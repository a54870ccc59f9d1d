"""Slices are created, set up and deleted by the right commands; what is wrong is reported."""

import ast
import os
from pathlib import Path
import shlex
import shutil
import sys
import time

import pytest

from launch import tpu_slice, tpu_vm
from launch.tpu_gcloud import Cloud
from launch.tpu_slice import LaunchError, Slice

LAUNCH = Path(__file__).parents[2] / "launch"
RUN = ("--", "--config=configs/tiny.py", "--workdir=gs://bucket/run")


@pytest.mark.parametrize("command", list(tpu_vm.COMMANDS))
def test_a_dry_run_prints_commands_and_calls_nothing(tpu, google, command):
    code, printed = tpu(command, "--dry-run", *(RUN if command == "run" else ()))
    assert code == 0 and google.calls == []
    lines = [shlex.split(line) for line in printed.splitlines() if not line.startswith("#")]
    assert lines and {words[0] for words in lines} <= {"gcloud", "git"}


def test_what_a_dry_run_of_create_prints_is_what_create_calls(tpu, google):
    _, printed = tpu("create", "--dry-run", "--spot", "--project=my-project")
    tpu("create", "--spot", "--project=my-project")
    assert [shlex.split(line)[1:] for line in printed.splitlines()] == google.calls[:2]


def test_a_slice_is_created_at_once_and_waited_for(tpu, google):
    code, printed = tpu("create", "--spot")
    assert code == 0 and "my-tpu is READY: 2 host(s)" in printed
    first = google.calls[0]
    assert first[:5] == ["compute", "tpus", "tpu-vm", "create", "my-tpu"]
    assert {"--zone=us-west4-a", "--accelerator-type=v5litepod-8", "--spot"} <= set(first)
    assert {"--version=v2-alpha-tpuv5-lite", "--labels=created-by=icl-jax"} <= set(first)
    assert "CREATING" in printed


def test_a_queued_slice_is_asked_for_and_each_state_is_reported(tpu, google):
    code, printed = tpu("create", "--queued")
    assert code == 0
    first = google.calls[0]
    assert first[:5] == ["compute", "tpus", "queued-resources", "create", "my-tpu"]
    assert {"--node-id=my-tpu", "--runtime-version=v2-alpha-tpuv5-lite"} <= set(first)
    places = [printed.index(state) for state in ("ACCEPTED", "WAITING", "PROVISIONING", "READY")]
    assert places == sorted(places)


def test_a_request_that_failed_ends_with_its_reason(tpu, google):
    reason = {"failedData": {"error": {"message": "no such runtime version"}}}
    google.change(queue=["ACCEPTED", "FAILED"], queue_data=reason)
    code, printed = tpu("create", "--queued")
    assert code == 1 and "FAILED: no such runtime version" in printed


def test_waiting_ends_at_the_timeout(tpu, google):
    google.change(queue=["ACCEPTED"])
    code, printed = tpu("create", "--queued", "--timeout=0.05")
    assert code == 1 and "was ACCEPTED after --timeout" in printed


def test_a_zone_without_capacity_advises_to_queue(tpu, google):
    google.change(stockouts=1)
    code, printed = tpu("create")
    assert code == 1 and "us-west4-a has no v5litepod-8 free right now" in printed
    assert "--queued" in printed and "no more capacity" in printed and "Traceback" not in printed


def test_passing_faults_are_tried_again(tpu, google):
    google.have()
    google.change(busy=2)
    code, printed = tpu("status")
    assert code == 0 and "READY" in printed
    describes = [call for call in google.calls if call[2:4] == ["tpu-vm", "describe"]]
    assert describes[0] == describes[1] == describes[2]


def test_a_fault_that_stays_is_reported_in_gclouds_words(tpu, google):
    google.change(busy=99)
    code, printed = tpu("setup")
    assert code == 1 and "HttpError 503" in printed and "Traceback" not in printed


@pytest.mark.parametrize(
    "flag",
    ["--name=a; rm -rf /", "--name=$(id)", "--name=A", "--name=a-", "--name=" + "a" * 64,
     "--zone=us-west4-a&", "--zone=`id`", "--type=v5litepod-16|x", "--type=v9-8", "--type=v4",
     "--project=x y", "--runtime=a b"],
)  # fmt: skip
def test_what_google_would_not_take_is_refused_before_anything_runs(tpu, google, flag):
    code, printed = tpu("create", flag)
    assert code == 1 and google.calls == []
    assert printed.startswith(f"error: {flag.partition('=')[0]} must be")
    assert flag.partition("=")[2] in printed


@pytest.mark.parametrize(
    "workdir", ["runs/here", "gs://bucket", "gs://bucket/a b", "gs://bucket/$(id)", "gs://B/run"]
)
def test_a_workdir_that_hosts_cannot_share_is_refused(tpu, google, workdir):
    code, printed = tpu("run", "--", "--config=configs/tiny.py", f"--workdir={workdir}")
    assert code == 1 and google.calls == [] and "--workdir must be a folder of a bucket" in printed


@pytest.mark.parametrize(
    ("kind", "devices", "image"),
    [("v5litepod-16", 16, "v2-alpha-tpuv5-lite"), ("v4-8", 4, "tpu-ubuntu2204-base"),
     ("v3-8", 8, "tpu-ubuntu2204-base"), ("v5p-16", 8, "v2-alpha-tpuv5"),
     ("v6e-1", 1, "v2-alpha-tpuv6e")],
)  # fmt: skip
def test_a_type_says_its_devices_and_its_image(kind, devices, image):
    assert (Slice("a", "us-west4-a", kind).devices, Slice("a", "b", kind).image) == (devices, image)


def test_v5e_is_known_under_its_other_name():
    with pytest.raises(LaunchError, match="called v5litepod"):
        Slice("a", "us-west4-a", "v5e-16").check()


def test_setup_sends_the_last_commit_and_checks_all_hosts(tpu, google):
    google.have()
    code, printed = tpu("setup")
    assert code == 0 and "2 host(s) see 8 devices" in printed
    assert google.verbs == ["scp", "install", "devices"]
    scp = next(call for call in google.calls if call[3] == "scp")
    assert scp[4].endswith("icl_jax_source.tar.gz") and scp[5].endswith("launch/tpu_host.py")
    assert scp[6] == "my-tpu:" and "--worker=all" in scp
    assert google.remote[-1][0] == tpu_slice.HOST_PYTHON


@pytest.mark.parametrize("devices", [[4, 4], [8, 4], [8]])
def test_setup_reports_where_hosts_do_not_see_all_devices(tpu, google, devices):
    google.have()
    google.change(devices=devices)
    code, printed = tpu("setup")
    assert code == 1
    missing = "has 8 devices for JAX, but the hosts see: t1v-n-1234-w-0"
    assert ("1 of 2 hosts succeeded" if len(devices) == 1 else missing) in printed


def test_setup_refuses_to_leave_changes_behind_unless_asked_to(tpu, google, clone):
    google.have()
    change = clone / "configs.py"
    change.write_text("new")
    try:
        code, printed = tpu("setup")
        assert code == 1 and "?? configs.py" in printed and "--allow-dirty" in printed
        assert tpu("setup", "--allow-dirty")[0] == 0
    finally:
        change.unlink()


def test_delete_refuses_what_it_did_not_create(tpu, google):
    google.have()
    google.change(node={**google.world["node"], "labels": {"team": "other"}})
    code, printed = tpu("delete", "--yes")
    assert code == 1 and "no label created-by=icl-jax" in printed and google.world["node"]


@pytest.mark.parametrize(("typed", "deleted"), [("my-tpu", True), ("yes", False), (None, False)])
def test_delete_asks_for_the_name(tpu, google, monkeypatch, typed, deleted):
    google.have()

    def answer(prompt):
        if typed is None:
            raise EOFError
        return typed

    monkeypatch.setattr("builtins.input", answer)
    code, _ = tpu("delete")
    assert (google.world["node"] is None) == deleted == (code == 0)


def test_delete_takes_a_queued_slice_and_its_request(tpu, google):
    google.have(queued=True)
    assert tpu("delete", "--yes")[0] == 0
    assert google.world["node"] is None and google.world["request"] is None
    assert [call[2:4] for call in google.calls if "delete" in call] == [
        ["queued-resources", "delete"]
    ]


def test_deleting_what_is_not_there_says_so(tpu, google):
    code, printed = tpu("delete", "--yes")
    assert code == 1 and "nothing called my-tpu" in printed


@pytest.mark.parametrize(
    ("command", "flags"),
    [("ssh", ["--worker=1"]), ("logs", ["--worker=1", "--follow", "--lines=5"])],
)
def test_ssh_and_logs_hand_the_terminal_to_gcloud(tpu, google, monkeypatch, command, flags):
    became = []
    monkeypatch.setattr(os, "execvp", lambda file, words: became.append(words))
    tpu(command, *flags)
    assert "--worker=1" in became[0]
    remote = [word for word in became[0] if word.startswith("--command=")]
    follow = "--command=tail -n 5 -F icl_jax_runs/my-tpu.log"
    assert remote == ([follow] if command == "logs" else [])


def test_a_command_that_hangs_is_ended_with_its_children_and_keeps_its_answers():
    child = "import subprocess, sys; print('one', flush=True); "
    child += "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    started = time.monotonic()
    answer = Cloud(poll=0).call([sys.executable, "-S", "-c", child], timeout=1)
    assert time.monotonic() - started < 30
    assert answer.code == 124 and answer.stdout == "one\n" and "timed out" in answer.stderr


def test_a_key_that_ssh_lacks_is_not_tried_again(tmp_path):
    script = tmp_path / "say.py"
    script.write_text(
        f"import sys; print('x', file=open({str(tmp_path / 'count')!r}, 'a'))\n"
        "sys.exit('SSH Key is not present in the SSH agent. Please add it, and try again.')"
    )
    assert Cloud(poll=0).call([sys.executable, "-S", str(script)], tries=4).code == 1
    assert (tmp_path / "count").read_text() == "x\n"


def test_without_gcloud_one_line_says_how_to_get_it(tpu, google, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    code, printed = tpu("status")
    assert code == 1 and printed.count("\n") == 1 and "cloud.google.com/sdk" in printed


def test_nothing_of_the_environment_is_printed_or_sent(tpu, google, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "very-secret-value")
    google.have()
    printed = "".join(tpu(c, "--yes")[1] for c in ("setup", "status", "delete"))
    printed += tpu("run", "--dry-run", *RUN)[1]
    assert "very-secret-value" not in printed + str(google.calls) + str(google.world)


@pytest.mark.parametrize("path", sorted(LAUNCH.glob("*.py")), ids=lambda path: path.name)
def test_no_command_goes_through_a_shell(path):
    tree = ast.parse(path.read_text())
    assert not [x for x in ast.walk(tree) if isinstance(x, ast.keyword) and x.arg == "shell"]
    names = {x.attr for x in ast.walk(tree) if isinstance(x, ast.Attribute)}
    assert not names & {"system", "popen", "getoutput", "getstatusoutput"}
