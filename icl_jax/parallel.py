"""Runs one function on many shards, in processes of this machine, with progress."""

from collections.abc import Callable, Sequence
import concurrent.futures.process
import multiprocessing
import os
import sys
import threading

from tqdm import tqdm

from icl_jax.config import StageError


def run_shards(
    function: Callable, tasks: Sequence[tuple], bar: tqdm, sizes: Sequence[int], workers: int = 0
) -> list:
    """`function(*task)` for every task, results in the order of the tasks; 0 workers: all cores.

    `bar` advances by a task's size when it is done. With one worker all runs in this process. After
    an error nothing new is begun, what runs is finished, and the error is raised.
    """
    workers = min(workers or count_cores(), len(tasks))
    if workers <= 1:
        results = []
        for task, size in zip(tasks, sizes, strict=True):
            results.append(function(*task))
            bar.update(size)
        return results
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_end_with_parent
    )
    with pool:
        futures = [pool.submit(function, *task) for task in tasks]
        size_of = dict(zip(futures, sizes, strict=True))
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
                bar.update(size_of[future])
        except concurrent.futures.process.BrokenProcessPool:
            raise StageError(
                f"one of {workers} worker processes was killed, probably for lack of memory; what "
                "was finished stays. Give the same command again with fewer design.workers"
            ) from None
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [future.result() for future in futures]


def progress_bar(**options) -> tqdm:
    """A bar with rate and time left; a line every 10 seconds where nobody watches."""
    terminal = sys.stderr.isatty()
    return tqdm(mininterval=0.1 if terminal else 10, dynamic_ncols=True, **options)


def count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for ever."""

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
