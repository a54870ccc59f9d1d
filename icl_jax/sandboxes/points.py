"""Runs the points of experiments: pieces of work that need nothing of each other, a folder each.

Several run at once, in processes of one thread each: networks this small leave a core idle where
two share one step. Killed anywhere, the same call continues with the points that are missing.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import hashlib
import json
import os
from pathlib import Path
import re
import threading
from typing import NamedTuple

from tqdm import tqdm

from icl_jax.config import ConfigError
from icl_jax.files.folder_lock import alone_in
from icl_jax.files.step_folder import StepFolder, read_results
from icl_jax.workers.local import Runner, count_cores, progress_bar, run_shards

PROGRESS = "progress"  # a file in the folder of a point that is not complete
LOOK_SECONDS = 2.0  # between two looks at the progress of points
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


class Point(NamedTuple):
    """One piece of an experiment."""

    name: str  # unique in its sandbox: what reports call it; its folder is made of it
    work: Callable[..., dict]  # (folder, **arguments) -> results as JSON; a function of a module
    arguments: dict  # plain JSON values
    seconds: float  # a guess, for one core: what takes longest goes first

    @property
    def folder(self) -> str:
        """The name in letters that every disk takes; what they leave out is in the digits."""
        plain = re.sub(r"[^A-Za-z0-9]+", "-", self.name).strip("-")
        return f"{plain}-{hashlib.sha256(self.name.encode()).hexdigest()[:6]}"


def run_points(points: Sequence[Point], to: Path, workers: int = 0) -> dict[str, dict]:
    """The results of every point by its name; what `to` already holds is not run again.

    `workers`: processes; 0: one for each core, or this process alone where it has accelerators.
    """
    names = [point.name for point in points]
    if len(set(names)) < len(names):
        raise ConfigError(f"two points have one name: {sorted(names)}")
    with alone_in(to):
        found = {point.name: _open(point, to).results for point in points}
        missing = [point for point in points if found[point.name] is None]
        missing.sort(key=lambda point: -point.seconds)
        if missing:
            workers = min(workers or _default_workers(), len(missing))
            tasks, sizes = [(point, to) for point in missing], [0] * len(missing)
            with _one_thread_each(workers), _progress(points, to, len(missing)) as bar:
                run_shards(_run, tasks, bar, sizes, Runner(workers))
        return {point.name: _open(point, to).results for point in points}


def note_progress(folder: Path, share: float) -> None:
    """Notes in a point's folder how much of its work is done, for the progress bar."""
    (folder / PROGRESS).write_text(f"{share:.4f}")


@contextlib.contextmanager
def _progress(points: Sequence[Point], to: Path, missing: int) -> Iterator[tqdm]:
    """A bar over all points; it looks at how far those are that other processes work on."""

    def done() -> float:
        return sum(point.seconds * share_of(point, to) for point in points)

    bar = progress_bar(
        total=sum(point.seconds for point in points), initial=done(),
        desc=f"{missing} of {len(points)} points",
        bar_format="{desc}: {percentage:3.0f}%|{bar}| [{elapsed}, {remaining} left]",
    )  # fmt: skip
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(LOOK_SECONDS):
            bar.update(max(0.0, done() - bar.n))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield bar
    finally:
        stopped.set()
        watcher.join()
        bar.update(max(0.0, done() - bar.n))
        bar.close()


def share_of(point: Point, to: Path) -> float:
    """How much of the work of a point is done."""
    folder = to / "points" / point.folder
    if (folder / "results.json").exists():
        return 1.0
    try:
        return float((folder / PROGRESS).read_text())
    except (FileNotFoundError, ValueError):  # not begun; or just being written
        return 0.0


def _open(point: Point, to: Path) -> StepFolder:
    work = f"{point.work.__module__}.{point.work.__qualname__}"
    arguments = json.loads(json.dumps(point.arguments))
    return StepFolder(to / "points" / point.folder, {"work": work, "arguments": arguments})


def _run(point: Point, to: Path) -> None:
    step = _open(point, to)
    results = point.work(step.path, **point.arguments)
    (step.path / PROGRESS).unlink(missing_ok=True)
    step.complete(results)


def _default_workers() -> int:
    import jax

    return count_cores() if jax.default_backend() == "cpu" else 1


@contextlib.contextmanager
def _one_thread_each(workers: int) -> Iterator[None]:
    """Processes that start within use one thread, unless there is only one of them."""
    kept = os.environ.get("XLA_FLAGS")
    if workers > 1:
        os.environ["XLA_FLAGS"] = f"{kept or ''} {ONE_THREAD}".strip()
    try:
        yield
    finally:
        if kept is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = kept


def is_done(point: Point, to: Path) -> bool:
    """Whether the results of a point are there."""
    return read_results(to / "points" / point.folder) is not None
