"""Shards run in processes, in order, with progress; an error and a killed parent end them."""

import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import pytest

from icl_jax.config import StageError
from icl_jax.workers.local import Runner, progress_bar, run_shards


def square(number: int) -> tuple[int, int]:
    if number < 0:
        raise StageError(f"{number} is below 0")
    return number * number, os.getpid()


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_tasks(workers):
    tasks = [(3,), (1,), (2,)]
    with progress_bar(total=6, disable=True) as bar:
        results = run_shards(square, tasks, bar, sizes=[3, 1, 2], runner=Runner(workers))
    assert [value for value, _ in results] == [9, 1, 4]
    assert (os.getpid() in {process for _, process in results}) == (workers == 1)


def test_progress_counts_the_sizes():
    with progress_bar(total=10, initial=4, file=open(os.devnull, "w")) as bar:
        run_shards(square, [(1,), (2,)], bar, sizes=[5, 1], runner=Runner(1))
        assert bar.n == 10


@pytest.mark.parametrize("workers", [1, 2])
def test_the_error_of_a_shard_reaches_the_caller_as_it_is(workers):
    with progress_bar(disable=True) as bar, pytest.raises(StageError, match="-1 is below 0"):
        run_shards(square, [(1,), (-1,), (2,)], bar, sizes=[1, 1, 1], runner=Runner(workers))


def die(number: int) -> None:
    os._exit(1)


def test_a_worker_that_was_killed_is_reported():
    with progress_bar(disable=True) as bar, pytest.raises(StageError, match="lack of memory"):
        run_shards(die, [(1,), (2,)], bar, sizes=[1, 1], runner=Runner(2))


def meet(folder: str) -> int:
    """Waits for another worker that does the same, so that each has one task."""
    (Path(folder) / str(os.getpid())).touch()
    wait_for(lambda: os.listdir(folder), 2)
    return os.getpid()


def test_a_worker_that_died_between_two_calls_harms_nobody(tmp_path):
    with progress_bar(disable=True) as bar:
        workers = run_shards(meet, [(str(tmp_path),)] * 2, bar, [1, 1], Runner(2))
        os.kill(workers[0], signal.SIGKILL)
        # When the pool has noticed, it ends the other one too.
        wait_for(lambda: [worker for worker in workers if not is_running(worker)], 2)
        results = run_shards(square, [(1,), (2,)], bar, [1, 1], Runner(2))
    assert [value for value, _ in results] == [1, 4]
    assert not {*workers} & {process for _, process in results}


def test_after_a_worker_was_killed_at_its_work_the_next_call_has_new_ones():
    with progress_bar(disable=True) as bar:
        with pytest.raises(StageError, match="lack of memory"):
            run_shards(die, [(1,)] * 3, bar, [1] * 3, Runner(2))
        assert run_shards(square, [(1,), (2,)], bar, [1, 1], Runner(2))[1][0] == 4


STARTING = """
from multiprocessing.context import SpawnProcess
import os, signal, sys, time
from icl_jax.config import StageError
from icl_jax.workers.local import Runner, progress_bar, run_shards
from tests.workers.test_local import square

start, started = SpawnProcess.start, []

def start_late(process):
    if sys.argv[1] == "after":
        start(process)
    if started:
        os.kill(started[0], signal.SIGKILL)
        time.sleep(0.5)  # the pool notices, and ends the workers that it knows
    if sys.argv[1] == "before":
        start(process)
    started.append(process.pid)

if __name__ == "__main__":
    SpawnProcess.start = start_late
    try:
        with progress_bar(disable=True) as bar:
            run_shards(square, [(0,), (1,)], bar, sizes=[1, 1], runner=Runner(2))
    except StageError:
        print("told")
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_worker_killed_while_another_is_started_is_reported_and_the_run_ends(tmp_path, moment):
    script, root = tmp_path / "starting.py", str(Path(__file__).parents[2])
    script.write_text(STARTING)
    command, env = [sys.executable, str(script), moment], os.environ | {"PYTHONPATH": root}
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert run.stdout == "told\n", run


SLEEPY = """
import os, sys, time
from icl_jax.workers.local import Runner, progress_bar, run_shards

def sleep(number):
    open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
    time.sleep(60)

if __name__ == "__main__":
    with progress_bar(disable=True) as bar:
        run_shards(sleep, [(0,), (1,)], bar, sizes=[1, 1], runner=Runner(2))
"""


def test_workers_end_when_their_parent_is_killed(tmp_path):
    script, notes = tmp_path / "sleepy.py", tmp_path / "notes"
    script.write_text(SLEEPY)
    notes.mkdir()
    parent = subprocess.Popen([sys.executable, str(script), str(notes)])
    children = wait_for(lambda: [int(path.name) for path in notes.iterdir()], 2)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    ended = wait_for(lambda: [child for child in children if not is_running(child)], 2)
    assert sorted(ended) == sorted(children)


def wait_for(look, count: int) -> list:
    for _ in range(300):
        found = look()
        if len(found) == count:
            return found
        time.sleep(0.1)
    raise AssertionError(f"expected {count}, saw {found}")


def is_running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
