"""A run starts on all hosts, survives pre-emption, and stops where another start cannot help."""

import pytest

from launch.tpu_job import Job, Look
from tests.launch.conftest import FINISHES, HOSTS
from tests.launch.stand_in_gcloud import NOTHING_RUNS

ARGUMENTS = ["--config=configs/tiny.py", "--workdir=gs://bucket/run"]
RUN = ("run", "--", *ARGUMENTS)
FAILS = {"looks": 1, "exit": [1, 1], "step": [3, 7], "step_line": "train: 3/7 [",
         "tail": ["RuntimeError: a made-up failure"]}  # fmt: skip


@pytest.fixture
def ready(google, commit):
    """A slice that is set up."""
    google.have(commit=commit)


def test_a_run_is_started_watched_and_complete(tpu, google, ready):
    code, printed = tpu(*RUN)
    assert code == 0 and "complete on 2 host(s)" in printed
    assert google.verbs == ["scp", "start"]
    assert "gcloud storage cp --recursive gs://bucket/run ." in printed


def test_arguments_reach_the_hosts_unchanged(tpu, google, ready):
    odd = ["--config.a=two words", "--config.b=it's", '--config.c="$HOME" `id`; *', "--", "é\\n"]
    assert tpu(*RUN, *odd)[0] == 0
    start = next(words for words in google.remote if "start" in words)
    assert start[start.index("--") + 1 :] == [*ARGUMENTS, *odd]
    assert "--logs=gs://bucket/run/logs" in start


def test_a_pre_empted_slice_is_deleted_created_set_up_and_continues(tpu, google, ready):
    google.change(preempted_at_look=[3], runs=[{**FINISHES, "looks": 99}, FINISHES])
    code, printed = tpu(*RUN)
    assert code == 0, printed
    again = ["delete", "create", "scp", "install", "devices", "start"]
    assert google.verbs == ["scp", "start", *again]
    assert "PREEMPTED" in printed and "restart 1" in printed
    create = next(call for call in google.calls if call[3] == "create")
    assert "--spot" in create and "--version=v2-alpha-tpuv5-lite" in create
    commits = [words[3] for words in google.remote if "install" in words]
    assert commits == [f"--commit={google.world['reports'][0]['installed']}"]


def test_a_queued_slice_is_queued_again(tpu, google, commit):
    google.have(queued=True, commit=commit)
    google.change(preempted_at_look=[3], runs=[{**FINISHES, "looks": 99}, FINISHES])
    assert tpu(*RUN)[0] == 0
    groups = [call[2] for call in google.calls if call[3] in ("delete", "create")]
    assert groups == ["queued-resources"] * 2


def test_a_slice_that_vanished_is_created_again_and_capacity_is_waited_for(tpu, google):
    google.change(stockouts=2)
    code, printed = tpu(*RUN)
    assert code == 0 and "asking again" in printed
    assert google.verbs == ["create"] * 3 + ["scp", "install", "devices", "start"]


def test_pre_emptions_end_at_max_restarts(tpu, google, ready):
    google.change(preempted_at_look=[3, 5, 5], runs=[{**FINISHES, "looks": 99}] * 3)
    code, printed = tpu("run", "--max_restarts=1", *RUN[1:])
    assert code == 1 and "--max-restarts=1" in printed
    assert google.verbs.count("create") == 1


def test_a_slice_of_others_is_not_deleted_when_it_is_pre_empted(tpu, google, ready):
    google.change(node={**google.world["node"], "labels": {}}, preempted_at_look=[3])
    google.change(runs=[{**FINISHES, "looks": 99}])
    code, printed = tpu(*RUN)
    assert code == 1 and "did not create it" in printed and "delete" not in google.verbs


def test_a_failure_shows_the_log_and_is_tried_again(tpu, google, ready):
    google.change(runs=[FAILS, FINISHES])
    code, printed = tpu(*RUN)
    assert code == 0 and "RuntimeError: a made-up failure" in printed
    assert google.verbs == ["scp", "start", "stop", "start"]


def test_failing_twice_at_one_step_stops(tpu, google, ready):
    google.change(runs=[FAILS, FAILS, FINISHES])
    code, printed = tpu(*RUN)
    assert code == 1 and "failed twice at step 3 of 7 without progress" in printed
    assert google.verbs.count("start") == 2


def test_failing_further_on_is_progress(tpu, google, ready):
    google.change(runs=[FAILS, {**FAILS, "step": [5, 7]}, FINISHES])
    assert tpu(*RUN)[0] == 0
    assert google.verbs.count("start") == 3


def test_what_icl_jax_refuses_is_not_tried_again(tpu, google, ready):
    wrong = {**FAILS, "exit": [2, 2], "tail": ["error: config file 'x' does not exist"]}
    google.change(runs=[wrong, FINISHES])
    code, printed = tpu(*RUN)
    assert code == 1 and "config file 'x' does not exist" in printed
    assert google.verbs.count("start") == 1


def test_a_run_that_saved_at_a_signal_is_not_complete(tpu, google, ready):
    google.change(
        runs=[{**FINISHES, "exit": [143] * HOSTS, "stopped": True}, {**FINISHES, "stopped": False}]
    )
    assert tpu(*RUN)[0] == 0
    assert google.verbs.count("start") == 2


def test_the_same_command_attaches_to_the_run(tpu, google, ready):
    google.change(runs=[{**FINISHES, "looks": 2}])
    assert tpu("run", "--detach", *RUN[1:])[0] == 0
    google.forget_calls()
    code, printed = tpu(*RUN)
    assert code == 0 and "attached" in printed and "complete" in printed
    assert "start" not in google.verbs
    google.forget_calls()
    assert "complete" in tpu(*RUN)[1] and "start" not in google.verbs


def test_another_run_on_the_slice_is_left_alone(tpu, google, ready):
    google.change(runs=[{**FINISHES, "looks": 9}])
    tpu("run", "--detach", *RUN[1:])
    code, printed = tpu(*RUN, "--config.seed=3")
    assert code == 1 and "runs something else: --config=configs/tiny.py" in printed


def test_hosts_with_another_commit_are_set_up_first(tpu, google):
    google.have(commit="another")
    assert tpu(*RUN)[0] == 0
    assert google.verbs == ["scp", "scp", "install", "devices", "start"]


def test_a_run_ended_by_stop_is_not_started_again(tpu, google, ready):
    google.change(runs=[{**FINISHES, "asked_to_stop": True}])
    code, printed = tpu(*RUN)
    assert code == 1 and "ended by `stop`" in printed and google.verbs.count("start") == 1


def test_nothing_is_started_where_a_host_does_not_answer(tpu, google, ready):
    google.change(reports=[NOTHING_RUNS])
    code, printed = tpu(*RUN)
    assert code == 1 and "not all hosts answered" in printed and google.verbs == ["scp"]


def test_hosts_that_stop_answering_are_waited_for_but_not_for_ever(tpu, google, ready, monkeypatch):
    monkeypatch.setattr(Job, "look", lambda job: Look("READY", 2, why_not_all="no route to host"))
    code, printed = tpu(*RUN)
    assert code == 1 and "did not answer 20 times in a row" in printed
    assert "no route to host" in printed and google.verbs == ["scp", "start"]


def test_status_reports_state_hosts_and_the_last_step(tpu, google, ready):
    google.change(runs=[{**FINISHES, "looks": 0}])
    tpu("run", "--detach", *RUN[1:])
    code, printed = tpu("status")
    assert code == 0 and "slice: v5litepod-8, READY, HEALTHY, 2 host(s)" in printed
    assert "t1v-n-1234-w-1: exited with 0, 7 of 7 steps done" in printed


@pytest.mark.parametrize("rest", [[], ["--", "--config=configs/tiny.py"]])
def test_a_run_without_a_workdir_is_refused(tpu, google, rest):
    code, printed = tpu("run", *rest)
    assert code == 1 and "--workdir=gs://" in printed and google.calls == []
