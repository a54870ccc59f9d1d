"""Runs one function on many shards, with progress: in processes of this machine, or of others."""

from collections.abc import Callable, Iterable, Sequence
import concurrent.futures.process
import dataclasses
import functools
import itertools
import multiprocessing.connection
import os
from pathlib import Path
import signal
import sys
import threading
from typing import ClassVar

from tqdm import tqdm

from icl_jax.config import DesignConfig, StageError
from icl_jax.files.step_cost import forget_peak, note_worker, peak_of_this_process

_FIRST = concurrent.futures.FIRST_COMPLETED


@dataclasses.dataclass(frozen=True)
class Runner:
    """Where the shards of a step are worked on."""

    workers: int = 0  # processes of this machine; 0: one for each core
    kind: str = "local"
    options: tuple[str, ...] = ()  # of Beam
    folder: str = ""  # where workers of Beam leave results; all of them must see it
    design: str = ""  # where the design lies, maybe a URL; all hosts of a job must see it

    @classmethod
    def of(cls, config: DesignConfig, folder: str | Path, design: str) -> "Runner":
        """What a config asks for."""
        options = tuple(config.beam_options)
        return cls(config.workers, config.runner, options, str(folder), design)

    @property
    def threads(self) -> int:
        """How many threads one process may keep busy."""
        return self.workers or count_cores()

    @property
    def elsewhere(self) -> bool:
        """Whether others than this process and its workers take shards: they know names alone."""
        return self.kind == "beam" or self.by_hosts

    @property
    def by_hosts(self) -> bool:
        """Whether all hosts of a job take shards."""
        from icl_jax.workers import hosts as parallel_hosts

        return self.kind != "beam" and parallel_hosts.leads()


def run_shards(
    function: Callable,
    tasks: Sequence[tuple],
    bar: tqdm,
    sizes: Sequence[int],
    runner: Runner,
    whole_host: bool = False,
    company: Callable | None = None,
) -> list:
    """`function(*task)` for every task, results in the order of the tasks.

    `function` is one of a module, and its arguments can be pickled (in a job of several hosts,
    encoded by `hosts_messages`). Workers of Beam return what JSON keeps as it is. `bar` advances by
    a task's size when it is done. With one worker all runs in this process. After an error nothing
    new is begun, what runs is finished, and the error is raised. Where this process leads a job of
    several hosts (`parallel_hosts`), all of them take tasks. `whole_host`: one task keeps all
    devices and cores of a host busy; there it has `progress` as its last argument, to tell of parts
    of its size.
    `company`: what all hosts hold around their tasks to work on them together
    (`parallel_hosts.Company`).
    """
    if runner.kind == "beam":
        from icl_jax.workers import beam as parallel_beam

        return parallel_beam.run(function, tasks, bar, sizes, runner)
    if runner.elsewhere:
        from icl_jax.workers import hosts as parallel_hosts

        return parallel_hosts.run(function, tasks, bar, sizes, runner, whole_host, company)
    results: list = [None] * len(tasks)

    def finished(index: int, result: object, peak: tuple[str, int]) -> None:
        results[index] = result
        note_worker(*peak)
        bar.update(sizes[index])

    run_here(function, enumerate(tasks), min(runner.threads, len(tasks)), runner, finished)
    return results


def run_here(
    function: Callable,
    tasks: Iterable[tuple[int, tuple]],
    workers: int,
    runner: Runner,
    finished: Callable[[int, object, tuple[str, int]], None],
) -> None:
    """Runs numbered tasks, each asked for when a worker is free; `finished` hears of each.

    With its number, its result and the memory of the process that ran it. With one worker that is
    this process, else one of its pool.
    """
    if workers <= 1:
        for index, task in tasks:
            finished(index, function(*task), peak_of_this_process())
        return
    pool, tasks, running = _working_pool(runner.threads), iter(tasks), {}
    try:
        while True:
            for index, task in itertools.islice(tasks, workers - len(running)):
                running[pool.submit(_call, function, task)] = index
            if not running:
                return
            done, _ = concurrent.futures.wait(running, return_when=_FIRST)
            for future in done:
                result, peak = future.result()
                finished(running.pop(future), result, peak)
    except concurrent.futures.process.BrokenProcessPool:
        _end_pool(pool)
        raise StageError(
            f"one of {runner.threads} worker processes was killed, probably for lack of memory; "
            "what was finished stays. Give the same command again with fewer design.workers"
        ) from None
    except BaseException:
        for future in running:
            future.cancel()
        concurrent.futures.wait(running)
        raise


class KeptOpen:
    """What a worker opens by its description and keeps for the next task, until told to close."""

    _all: ClassVar[list["KeptOpen"]] = []

    def __init__(self, open_: Callable[[str], object]):
        self._open = open_
        self.close()
        self._all.append(self)

    def __call__(self, described: str) -> object:
        """The same object as long as the same is asked for."""
        if self._described != described:
            self.close()  # before the next takes memory
            self.lend(described, self._open(described))
        return self._kept

    def lend(self, described: str, opened: object) -> None:
        """Gives what is open already, so that it is not opened a second time."""
        self._described, self._kept = described, opened

    def close(self) -> None:
        """Lets it go, with the memory of the devices that it lies on."""
        self._described = self._kept = None

    @classmethod
    def close_all(cls) -> None:
        """Lets everything go that this process has open so."""
        for kept in cls._all:
            kept.close()


def progress_bar(**options) -> tqdm:
    """A bar with rate and time left; a line every 10 seconds where nobody watches."""
    from icl_jax.workers import hosts as parallel_hosts

    options.setdefault("disable", parallel_hosts.follows())
    terminal = sys.stderr.isatty()
    return tqdm(mininterval=0.1 if terminal else 10, dynamic_ncols=True, **options)


def count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


class _Pool(concurrent.futures.ProcessPoolExecutor):
    """Its workers end when `lifeline` is closed, be it because this process was killed.

    A broken pool of the library forgets a worker that was just being started, which then would wait
    for ever, and this process for it.
    """

    def __init__(self, workers: int):
        context = multiprocessing.get_context("spawn")
        of_workers, self.lifeline = context.Pipe(duplex=False)
        super().__init__(workers, context, initializer=_end_with, initargs=(of_workers,))

    def submit(self, *task) -> concurrent.futures.Future:
        """As of the library, which starts workers here, in any state of a pool that breaks."""
        try:
            return super().submit(*task)
        except (OSError, ValueError):  # what it shares with the worker was closed meanwhile
            super().submit(int)  # a pool that broke says so
            raise


@functools.lru_cache(maxsize=1)
def _pool(workers: int) -> _Pool:
    """Kept from step to step: a new process takes a second to import what it needs."""
    return _Pool(workers)


def _working_pool(workers: int) -> _Pool:
    """The kept one; a new one where a worker died since, for it had no work that would be lost."""
    pool = _pool(workers)
    try:
        pool.submit(int)  # nothing, only to hear whether it still takes work
    except concurrent.futures.process.BrokenProcessPool:
        _end_pool(pool)
    return _pool(workers)


def _end_pool(pool: _Pool) -> None:
    _pool.cache_clear()
    pool.lifeline.close()


def _call(function: Callable, task: tuple) -> tuple:
    """In a worker: the result, and the most memory that the worker took for it."""
    forget_peak()
    return function(*task), peak_of_this_process()


def _end_with(lifeline: multiprocessing.connection.Connection) -> None:
    """In a worker: ends it when nobody holds the other end any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gave it work

    def watch() -> None:
        lifeline.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
