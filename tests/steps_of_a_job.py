"""What each process of the job in `test_parallel_hosts.py` runs; prints what it saw, line by line.

python tests/steps_of_a_job.py FOLDER --coordinator=HOST:PORT --num_processes=N --process_id=I
"""

import os
from pathlib import Path
import sys
import time

from icl_jax.cli import ends_in_one_line
from icl_jax.config import ConfigError, StageError
from icl_jax.workers import hosts as parallel_hosts
from icl_jax.workers import hosts_messages
from icl_jax.workers.hosts import by_leader
from icl_jax.workers.job import job_place, join_job
from icl_jax.workers.local import KeptOpen, Runner, progress_bar, run_shards


def wait_for(there) -> None:
    deadline = time.monotonic() + 30
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def meet(folder: str, name: str, number: int) -> tuple[int, int]:
    """Waits for a process that does the same, so that each has a task."""
    place = Path(folder) / name
    place.mkdir(exist_ok=True)
    (place / str(os.getpid())).touch()
    wait_for(lambda: len(os.listdir(place)) == 2)
    return number * number, job_place()


class Watched:
    """A bar that notes when the parts of both tasks were counted."""

    def __init__(self, folder: Path):
        self.n, self.folder = 0, folder

    def update(self, count: int) -> None:
        self.n += count
        if self.n == 2:
            (self.folder / "both were counted").touch()


@KeptOpen
def held(described: str) -> list[str]:
    return [described]


def tell_a_part(folder: str, progress) -> list[str]:
    progress(1)
    wait_for((Path(folder) / "both were counted").exists)
    return held("by all")


def fail(place: int) -> None:
    if job_place() == place:
        raise StageError(f"nothing comes of {place}")
    time.sleep(0.2)


def shards(folder: Path) -> None:
    runner = Runner(1, design=str(folder / "design"))
    with progress_bar(disable=True) as bar:
        tasks = [(str(folder), "met", number) for number in (3, 1, 2)]
        results = run_shards(meet, tasks, bar, [1, 1, 1], runner)
    print([square for square, _ in results], sorted({place for _, place in results}))
    lent, bar = ["by the leader"], Watched(folder)
    held.lend("by all", lent)
    results = run_shards(tell_a_part, [(str(folder),)] * 2, bar, [5, 7], runner, whole_host=True)
    print(bar.n, sorted(results), held("by all") is lent)


def fail_at(place: int, folder: Path) -> None:
    runner = Runner(1, design=str(folder / "design"))
    with progress_bar(disable=True) as bar:
        run_shards(fail, [(place,)] * 8, bar, [1] * 8, runner)


def stop() -> None:
    raise ConfigError("a wrong word")


def main() -> None:
    folder = Path(sys.argv[1])
    coordinator, processes, place = (argument.partition("=")[2] for argument in sys.argv[2:])
    join_job(coordinator, int(processes), int(place))
    hosts_messages.FUNCTIONS_OF += ("__main__",)
    by_leader(shards, folder, workdir=folder)
    for failing in (0, 1):
        try:
            by_leader(fail_at, failing, folder)
        except StageError as error:
            print(error)
    parallel_hosts._LOOK_SECONDS = 0.2
    own = folder if job_place() == 0 else folder / "of another disk"
    with ends_in_one_line():
        try:
            by_leader(print, "never printed", workdir=own)
        except (ConfigError, StageError) as error:
            print(error)
        by_leader(stop)


if __name__ == "__main__":
    main()
