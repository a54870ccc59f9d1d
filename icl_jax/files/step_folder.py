"""The folder of one step of a stage: filled file by file, safe to be killed, never mixed up.

`inputs.json` says what the files are made from, `results.json` that the step is complete, and
`cost.json` how much time and memory its last run took, so it alone is never the same twice. A
folder that is the local copy of one at a URL (`mirror`) is brought up to date when it is opened,
and its files are sent to the URL as they are finished. In a job of several processes all open and
complete a step together; the first of them writes what is made once.
"""

from collections.abc import Callable
import contextlib
import errno
import json
import os
from pathlib import Path
import resource
import shutil
import socket
import sys
import tempfile
import time
from typing import TypeVar
import uuid
import weakref

from etils import epath

from icl_jax.config import StageError
from icl_jax.config.tree import differences
from icl_jax.files import mirror
from icl_jax.files import remote as storage
from icl_jax.workers.job import agree, job_place, on_first

T = TypeVar("T")

_PARTIAL = ".partial"
_SHOWN = 5  # differences in one message

_open: "weakref.WeakSet[StepCost]" = weakref.WeakSet()  # of steps in progress


class OtherInputsError(StageError):
    """A folder whose files were made from other inputs than the given ones."""

    def __init__(self, path: Path, differences: str):
        self.path, self.differences = path, differences
        super().__init__(
            f"{mirror.shown(path)} was made from other inputs ({differences}); choose another "
            "--workdir, undo the difference, or delete that folder"
        )


class StepFolder:
    """Opens or creates the folder; stops if its files were made from other inputs."""

    def __init__(self, path: Path, inputs: dict):
        self.path = path
        self._inputs = json.loads(json.dumps(inputs))  # as it will be read back
        self._resumed = False
        once(path, self._prepare)
        if job_place():
            self._clear_away()  # from this host's own disk, if the folder is a local copy
            self._check_same_inputs()
        self.results = _read_json(path / "results.json")  # what `complete` was given; else None
        if not agree(f"the step {path.name}", self.results is not None):
            self._cost = StepCost()

    def _prepare(self) -> None:
        mirror.pull(self.path)
        self._clear_away()
        if not self._check_inputs():  # nothing is there that could be mixed up
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / "inputs.json", self._inputs)
        self._resumed = any(child.name != "inputs.json" for child in self.path.iterdir())

    def _clear_away(self) -> None:
        """Deletes what a run that was killed left half written; nobody may be at work here."""
        for left in self.path.rglob(f"*{_PARTIAL}"):
            left.unlink(missing_ok=True)

    def _check_same_inputs(self) -> None:
        """Stops a process of a job that would make something else than the first one."""
        wrong = differences(_read_json(self.path / "inputs.json") or {}, self._inputs)
        if wrong:
            raise StageError(
                f"process {job_place()} of this job, on {socket.gethostname()}, would make "
                f"{mirror.shown(self.path)} from other inputs than process 0 "
                f"({_some_of(wrong)}); expected the same config, files and packages on all hosts"
            )

    def _check_inputs(self) -> bool:
        """Whether the folder holds files, which then must be made from the same inputs."""
        held = self.path / "inputs.json"
        if not held.exists() or all(child == held for child in self.path.iterdir()):
            return False
        wrong = differences(json.loads(held.read_text()), self._inputs)
        if wrong:
            raise OtherInputsError(self.path, _some_of(wrong))
        return True

    def complete(self, results: dict | Callable[[], dict]) -> None:
        """Marks the step as done; call it once, when every file is there.

        If `results` is a function, only the first process of a job calls it: it makes what is left
        to be made once, and may read the files of all shards.
        """
        once(self.path, self._write, results)
        self.results = _read_json(self.path / "results.json")

    def _write(self, results: dict | Callable[[], dict]) -> None:
        results = results() if callable(results) else results
        write_json(self.path / "cost.json", self._cost.end(self._resumed))
        write_json(self.path / "results.json", results)


def once(folder: Path, work: Callable[..., T], *arguments) -> T | None:
    """`work(*arguments)` by the first process of a job; then all see what it wrote into `folder`.

    Returns what it returns, to the first process alone.
    """
    result = on_first(f"{work.__name__} in {folder.name}", work, *arguments)
    if job_place():
        mirror.bring_in_sight(folder)
    return result


def read_results(path: epath.PathLike) -> dict | None:
    """The results of the step in a folder; None if there is no complete one."""
    mirror.fetch(path)
    return _read_json(epath.Path(path) / "results.json")


def read_inputs(path: epath.PathLike) -> dict:
    """What the files of a step's folder are made from."""
    mirror.fetch(path)
    return json.loads(storage.read_text(epath.Path(path) / "inputs.json"))


def _read_json(file: epath.Path) -> dict | None:
    try:
        return json.loads(storage.read_text(file))
    except (FileNotFoundError, NotADirectoryError):
        return None


def write_json(path: epath.PathLike, value: dict | list) -> None:
    """Writes a JSON file that is either whole or not there."""
    with beside(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n")


@contextlib.contextmanager
def beside(path: epath.PathLike):
    """A file beside `path` to write to; it becomes `path` when the block ends without an error.

    For a URL the file is in a temporary folder of this machine.
    """
    if storage.is_remote(path):
        with tempfile.TemporaryDirectory() as folder:
            partial = Path(folder) / epath.Path(path).name
            yield partial
            storage.upload(partial, path)
        return
    path = Path(path)
    partial = path.parent / f"{path.name}.{uuid.uuid4().hex}{_PARTIAL}"
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())  # a name must not reach the disk before its content
        mirror.push(partial, path)
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # FAISS knows only the second
        if not _disk_is_full(error, path):
            raise
        raise StageError(
            f"the disk is full: {path} could not be written. What was finished is kept; "
            "free some space and rerun the command"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _some_of(wrong: list[str]) -> str:
    more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return f"{'; '.join(wrong[:_SHOWN])}{more}"


def absolute(path: epath.PathLike) -> epath.Path:
    """The path from the root of the disk; a remote path (gs://...) is returned as it is.

    `epath.Path.resolve` would turn that into a local path: files would stay on the machine.
    """
    path = epath.Path(path)
    return path if storage.is_remote(path) else path.resolve()


def require_space(path: Path, needed: int, what: str) -> None:
    """Stops before the work begins if its result will not fit on the disk."""
    free = shutil.disk_usage(path).free
    if needed > free:
        raise StageError(
            f"{what} will take {needed / 1e9:.1f} GB in {path}, but the disk has only "
            f"{free / 1e9:.1f} GB free; free some space or choose another folder"
        )


def _disk_is_full(error: Exception, path: Path) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return not isinstance(error, StageError) and shutil.disk_usage(path.parent).free < 1 << 20


class StepCost:
    """What a step costs from here on: its wall time, and the most memory that was in use.

    Counted is this process, the first of its job, with its workers.
    """

    def __init__(self):
        _look()  # memory used until now belongs to the steps around this one
        self._started, self._inside = time.perf_counter(), 0.0
        self._own = 0
        self._workers: dict[str, int] = {}
        forget_peak()
        _open.add(self)

    def end(self, resumed: bool) -> dict:
        """The content of `cost.json`; the seconds exclude steps that ended inside this one."""
        _look()
        _open.discard(self)
        seconds = time.perf_counter() - self._started - self._inside
        for around in _open:
            around._inside += seconds
        processes = [self._own, *self._workers.values()]
        return {
            "seconds": round(seconds, 2),
            "peak_memory_gigabytes": round(sum(processes) / 1e9, 3),
            "largest_process_gigabytes": round(max(processes) / 1e9, 3),
            "resumed": resumed,  # what was made earlier is not counted
        }


def forget_peak() -> None:
    """On Linux, resets the peak of this process to what it uses now."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_of_this_process() -> tuple[str, int]:
    """(its name, bytes): what a worker reports with every result."""
    name = f"{socket.gethostname()} {os.getpid()}"
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return name, 1024 * int(line.split()[1])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return name, most if sys.platform == "darwin" else 1024 * most


def note_worker(name: str, peak: int) -> None:
    """Counts a worker's memory for the steps in progress."""
    if name != peak_of_this_process()[0]:
        for step in _open:
            step._workers[name] = max(peak, step._workers.get(name, 0))


def _look() -> None:
    _, peak = peak_of_this_process()
    for step in _open:
        step._own = max(peak, step._own)
