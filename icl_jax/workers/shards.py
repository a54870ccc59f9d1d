"""The loop over the shards of a step: makes those that are missing, and shows progress.

A shard is one file (or a few) that one function makes of names and numbers, whole or not at all.
So it does not matter who makes it, nor how often: processes of this machine, workers of Beam, or
all processes of a job.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
import contextlib
from pathlib import Path

from tqdm import tqdm

from icl_jax.files.mirror import bring_in_sight
from icl_jax.workers.job import barrier, job_place, job_size
from icl_jax.workers.local import Runner, progress_bar, run_shards

Progress = Callable[[int], None]


def make_shards(
    label: str,
    folder: Path,
    sizes: Sequence[int],
    is_made: Callable[[int], bool],
    function: Callable,
    task: Callable[[int], tuple],
    runner: Runner,
    unit: str = "sentence",
    here: Callable[[int, Progress], object] | None = None,
    threads: int = 1,
    around: Callable[[Sequence[int]], contextlib.AbstractContextManager] | None = None,
    stop: int | None = None,
) -> None:
    """Makes the shards in `folder` that are not made yet, shard i by `function(*task(i))`.

    `here(i, progress)` does the same with what this process has open, such as devices; it is called
    instead, in `threads` threads, unless workers of Beam make the shards. `around(shards)` is held
    while it makes them. `stop`: only shards before this one. In a job, process p of n makes the
    shards with i % n == p; all return when all shards are there, and the first process sees the
    files of all.
    """
    place, count = job_place(), job_size()
    if place:  # what the first has made for the shards
        bring_in_sight(folder)
    own = range(place, len(sizes), count)
    if runner.kind == "beam":
        own = range(len(sizes) if place == 0 else 0)
    left = [index for index in own if not is_made(index)]
    total, todo = sum(sizes[i] for i in own), sum(sizes[i] for i in left)
    left = [index for index in left if stop is None or index < stop]
    options = {"total": int(total), "initial": int(total - todo), "desc": label, "unit": unit}
    with progress_bar(**options, unit_scale=True) as bar:
        if here is None or runner.kind == "beam":
            tasks, own_sizes = [task(index) for index in left], [int(sizes[i]) for i in left]
            run_shards(function, tasks, bar, own_sizes, runner)
        else:
            with around(left) if around else contextlib.nullcontext():
                _run_here(here, left, sizes, threads, bar)
    barrier(label)
    if count > 1 and place == 0:
        bring_in_sight(folder)


def add_up(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """The sums of what shards count, by name, in the order in which names first appear."""
    total: Counter = Counter()
    for own in counts:
        total.update(own)
    return dict(total)


def _run_here(
    make: Callable[[int, Progress], object],
    shards: Sequence[int],
    sizes: Sequence[int],
    threads: int,
    bar: tqdm,
) -> None:
    if threads == 1:
        for shard in shards:
            make(shard, bar.update)
        return
    with ThreadPoolExecutor(threads) as pool:
        made = {pool.submit(make, shard, lambda count: None): sizes[shard] for shard in shards}
        try:
            for one in as_completed(made):
                one.result()
                bar.update(int(made[one]))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
