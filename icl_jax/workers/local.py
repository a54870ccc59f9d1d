"""Runs one function on many tasks, with progress: in processes of this machine, or by Beam."""

from collections.abc import Callable, Sequence
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

from tqdm import tqdm

from icl_jax.config import DesignConfig, StageError
from icl_jax.files.step_folder import forget_peak, note_worker, peak_of_this_process
from icl_jax.workers.job import job_place

_FIRST = concurrent.futures.FIRST_COMPLETED


@dataclasses.dataclass(frozen=True)
class Runner:
    """Who works on the shards of a step."""

    workers: int = 0  # processes of this machine; 0: one for each core
    kind: str = "local"
    options: tuple[str, ...] = ()  # of Beam
    folder: str = ""  # where workers of Beam leave results; all of them must see it

    @classmethod
    def of(cls, config: DesignConfig, folder: str | Path) -> "Runner":
        """What a config asks for."""
        return cls(config.workers, config.runner, tuple(config.beam_options), str(folder))

    @property
    def threads(self) -> int:
        """How many threads one process may keep busy."""
        return self.workers or count_cores()


def run_shards(
    function: Callable, tasks: Sequence[tuple], bar: tqdm, sizes: Sequence[int], runner: Runner
) -> list:
    """`function(*task)` for every task, results in the order of the tasks.

    `function` is defined in a module, and its arguments can be pickled; workers of Beam return what
    JSON keeps as it is. `bar` advances by a task's size when it is done. With one worker everything
    runs in this process. After an error no further task is started, those that run are finished,
    and the error is raised.
    """
    if runner.kind == "beam":
        from icl_jax.workers import beam

        return beam.run(function, tasks, bar, sizes, runner)
    workers = min(runner.threads, len(tasks))
    if workers > 1:
        return _run_in_pool(function, tasks, bar, sizes, runner.threads)
    results = []
    for task, size in zip(tasks, sizes, strict=True):
        results.append(function(*task))
        bar.update(size)
    return results


def _run_in_pool(
    function: Callable, tasks: Sequence[tuple], bar: tqdm, sizes: Sequence[int], workers: int
) -> list:
    """As `run_shards`; a task is handed to a worker when one is free."""
    pool, results = _working_pool(workers), [None] * len(tasks)
    waiting, running = iter(enumerate(tasks)), {}
    try:
        while True:
            for index, task in itertools.islice(waiting, workers - len(running)):
                running[pool.submit(_call, function, task)] = index
            if not running:
                return results
            done, _ = concurrent.futures.wait(running, return_when=_FIRST)
            for future in done:
                index = running.pop(future)
                results[index], peak = future.result()
                note_worker(*peak)
                bar.update(sizes[index])
    except concurrent.futures.process.BrokenProcessPool:
        _end_pool(pool)
        raise StageError(
            f"one of {workers} worker processes was killed, probably for lack of memory; what was "
            "finished is kept. Rerun the command with fewer design.workers"
        ) from None
    except BaseException:
        for future in running:
            future.cancel()
        concurrent.futures.wait(running)
        raise


def progress_bar(**options) -> tqdm:
    """A bar with rate and time left; a line every 10 seconds where the output is not a terminal.

    In a job of several processes only the first shows one.
    """
    options.setdefault("disable", job_place() > 0)
    terminal = sys.stderr.isatty()
    return tqdm(mininterval=0.1 if terminal else 10, dynamic_ncols=True, **options)


def count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


class _Pool(concurrent.futures.ProcessPoolExecutor):
    """Its workers end when `lifeline` is closed, also if that is because this process was killed.

    When the library's pool breaks, it forgets a worker that is just being started; that worker
    would then wait forever, and this process for it.
    """

    def __init__(self, workers: int):
        context = multiprocessing.get_context("spawn")
        of_workers, self.lifeline = context.Pipe(duplex=False)
        super().__init__(workers, context, initializer=_end_with, initargs=(of_workers,))

    def submit(self, *task) -> concurrent.futures.Future:
        """As in the library, which starts workers here even while the pool is breaking."""
        try:
            return super().submit(*task)
        except (OSError, ValueError):  # what it shares with the worker was closed in the meantime
            super().submit(int)  # a broken pool reports that
            raise


@functools.lru_cache(maxsize=1)
def _pool(workers: int, flags: str) -> _Pool:
    """Kept from step to step: a new process takes a second to import what it needs.

    Not if workers are to have other `flags` of XLA, which they read when they start.
    """
    return _Pool(workers)


def _working_pool(workers: int) -> _Pool:
    """The kept pool; a new one if a worker has died since, which had no work that could be lost."""
    flags = os.environ.get("XLA_FLAGS", "")
    pool = _pool(workers, flags)
    try:
        pool.submit(int)  # only to see whether it still accepts work
    except concurrent.futures.process.BrokenProcessPool:
        _end_pool(pool)
    return _pool(workers, flags)


def _end_pool(pool: _Pool) -> None:
    _pool.cache_clear()
    pool.lifeline.close()


def _call(function: Callable, task: tuple) -> tuple:
    """In a worker: the result, and the most memory that the worker used for it."""
    forget_peak()
    return function(*task), peak_of_this_process()


def _end_with(lifeline: multiprocessing.connection.Connection) -> None:
    """In a worker: ends it when nobody holds the other end any longer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gave it work

    def watch() -> None:
        lifeline.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
