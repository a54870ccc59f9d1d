"""Runs one function on many shards, with progress: in processes of this machine, or by Beam."""

from collections.abc import Callable, Sequence
import concurrent.futures.process
import dataclasses
import functools
import multiprocessing.connection
import os
from pathlib import Path
import signal
import sys
import threading

from tqdm import tqdm

from icl_jax.config import DesignConfig, StageError
from icl_jax.step_cost import forget_peak, note_worker, peak_of_this_process


@dataclasses.dataclass(frozen=True)
class Runner:
    """Where the shards of a step are worked on."""

    workers: int = 0  # processes of this machine; 0: one for each core
    kind: str = "local"
    options: tuple[str, ...] = ()  # of Beam
    folder: str = ""  # where workers of Beam leave results; all of them must see it

    @classmethod
    def of(cls, design: DesignConfig, folder: str | Path = "") -> "Runner":
        """What a config asks for."""
        return cls(design.workers, design.runner, tuple(design.beam_options), str(folder))

    @property
    def threads(self) -> int:
        """How many threads one process may keep busy."""
        return self.workers or count_cores()


def run_shards(
    function: Callable, tasks: Sequence[tuple], bar: tqdm, sizes: Sequence[int], runner: Runner
) -> list:
    """`function(*task)` for every task, results in the order of the tasks.

    `function` is one of a module, and its arguments can be pickled. `bar` advances by a task's size
    when it is done. With one worker all runs in this process. After an error nothing new is begun,
    what runs is finished, and the error is raised.
    """
    if runner.kind == "beam":
        from icl_jax import parallel_beam

        return parallel_beam.run(function, tasks, bar, sizes, runner)
    workers = min(runner.threads, len(tasks))
    if workers <= 1:
        results = []
        for task, size in zip(tasks, sizes, strict=True):
            results.append(function(*task))
            bar.update(size)
        return results
    pool, futures = _working_pool(runner.threads), []
    try:
        for task in tasks:
            futures.append(pool.submit(_call, function, task))
        size_of = dict(zip(futures, sizes, strict=True))
        for future in concurrent.futures.as_completed(futures):
            note_worker(*future.result()[1])
            bar.update(size_of[future])
    except concurrent.futures.process.BrokenProcessPool:
        _end_pool(pool)
        raise StageError(
            f"one of {runner.threads} worker processes was killed, probably for lack of memory; "
            "what was finished stays. Give the same command again with fewer design.workers"
        ) from None
    except BaseException:
        for future in futures:
            future.cancel()
        concurrent.futures.wait(futures)
        raise
    return [future.result()[0] for future in futures]


def progress_bar(**options) -> tqdm:
    """A bar with rate and time left; a line every 10 seconds where nobody watches."""
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
