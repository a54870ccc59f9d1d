"""Real processes of a job share the shards of a step, wait for each other, and end together."""

import os
import subprocess
import sys
import time

import pytest

from icl_jax.files.step_folder import read_results
from icl_jax.workers import job
from tests.a_job import end_job, start_job


def run(folder, work: str) -> list[tuple[int, str, str]]:
    return end_job(start_job(["tests/steps_of_a_job.py", str(folder), work], 2, devices=1))


def check_ended(results, code: int, errors: str) -> None:
    """The process that failed said why; the other one has ended, and says that it was not alone."""
    (own, _, why), (other, _, told) = results
    assert own == code and errors in why, why
    assert other not in (0, None) and "start all processes again with the same command" in told


def test_processes_of_a_job_share_the_shards_of_a_step(tmp_path):
    (code, first, errors), (other, second, more) = run(tmp_path, "shards")
    assert (code, other) == (0, 0), errors + more
    told = [
        "['0', '1', '0', '1', '0']",
        "['0', '1', '4', '9', '16']",
        "['made once.json']",
    ]
    ours = lambda text: [line for line in text.splitlines() if "Gloo" not in line]  # noqa: E731
    assert ours(first) == ours(second) == told
    assert (tmp_path / "step/made once.json").read_text() == "0\n"
    assert (tmp_path / "lock").read_text() == ""  # let go of


def test_the_first_process_works_alone_while_the_others_wait(tmp_path):
    (_, first, _), (_, second, errors) = run(tmp_path, "first")
    assert first.endswith("(2, (1, 1))\n") and second.endswith("(2, None)\n"), errors
    assert "printed by one" in first and "printed by one" not in second


def test_a_host_that_does_not_see_the_workdir_is_named_by_all(tmp_path):
    for code, told, errors in run(tmp_path, "blind"):
        assert code == 2 and "never printed" not in told
        assert (
            f"process 1 of this job cannot see what process 0 writes to {tmp_path}" in errors
        ) and "expected a --workdir on a disk that all hosts share, under the same path" in errors
    assert {path.name for path in tmp_path.iterdir()} == {"lock"}


def test_hosts_that_see_other_files_stop(tmp_path):
    for code, _, errors in run(tmp_path, "other_files"):
        assert code == 2 and "do not see the same files (results of the step)" in errors


@pytest.mark.slow
def test_a_host_that_would_make_something_else_stops(tmp_path):
    """Such as one whose own copy of the corpus is another one."""
    results = run(tmp_path, "other_inputs")
    check_ended(results[::-1], 2, "from other inputs than process 0 (files: 0 there, 1 here)")
    assert not any("never printed" in told for _, told, _ in results)


def test_hosts_with_other_records_do_not_train_together(tmp_path):
    for code, _, errors in run(tmp_path, "other_records"):
        assert code == 2 and "not the same on all hosts of this job: data;" in errors
    assert not (tmp_path / "config.json").exists()


def test_what_a_killed_run_left_is_cleared_away_on_every_disk(tmp_path):
    for code, told, errors in run(tmp_path, "left_over"):
        assert code == 0 and told.endswith("['inputs.json']\n"), told + errors


def test_processes_that_wait_for_different_things_stop(tmp_path):
    for place, (code, _, errors) in enumerate(run(tmp_path, "out_of_step")):
        assert code == 1 and f"out of step; this one is at 'here is {place}'" in errors


def test_what_stops_the_first_process_ends_the_others(tmp_path):
    started = time.monotonic()
    check_ended(run(tmp_path, "wrong_word"), 2, "error: a wrong word\n")
    assert time.monotonic() - started < 60


def test_a_job_that_jax_does_not_find_is_told_in_words():
    """Slurm has several tasks, but srun did not start this process."""
    environment = {name: text for name, text in os.environ.items() if "SLURM" not in name}
    environment |= {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    code = "from icl_jax.workers.job import join_job; join_job(None, None, None)"
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "ConfigError: the processes of the job did not find each other" in ended.stderr
    assert "under Slurm start them with srun" in ended.stderr


def test_an_error_of_its_own_is_not_blamed_on_another_process(capsys):
    assert job._report(ConnectionResetError(104, "Connection reset by peer")) == 1
    assert "ConnectionResetError" in capsys.readouterr().err
    assert job._report(RuntimeError("Gloo: Connection reset by peer")) == job._LOST_CODE
    assert "another process of this job is gone" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "code", "errors"),
    [("no_shard", 2, "error: nothing comes of 1\n"), ("no_process", -9, "it was killed")],
)
def test_a_process_that_fails_ends_the_others_within_a_minute(tmp_path, work, code, errors):
    started = time.monotonic()
    check_ended(run(tmp_path, work)[::-1], code, errors)
    assert time.monotonic() - started < 60
    assert read_results(tmp_path / "step") is None
    assert (tmp_path / "step/0.json").exists()
