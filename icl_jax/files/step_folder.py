"""The folder of one step of a stage: filled file by file, safe to be killed, never mixed up.

`inputs.json` says what the files are made from, `results.json` that the step is complete, and
`cost.json` what its last run took: time and memory, so that it alone is never the same twice. A
folder that is the local copy of one at a URL (`mirror`) is brought up to date when it is opened,
and its files go to the URL as they are finished.
"""

import contextlib
import errno
import json
import os
from pathlib import Path
import shutil
import tempfile
import uuid

from etils import epath

from icl_jax.config import StageError
from icl_jax.config.tree import differences
from icl_jax.files import mirror
from icl_jax.files import remote as storage
from icl_jax.files.step_cost import StepCost

_PARTIAL = ".partial"
_SHOWN = 5  # differences in one message


class OtherInputsError(StageError):
    """A folder whose files were made from other inputs than those at hand."""

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
        inputs = json.loads(json.dumps(inputs))  # as it will be read back
        mirror.pull(path)
        held = path / "inputs.json"
        for left in path.rglob(f"*{_PARTIAL}"):  # of a run that was killed
            left.unlink(missing_ok=True)
        if held.exists() and any(child != held for child in path.iterdir()):
            wrong = differences(json.loads(held.read_text()), inputs)
            if wrong:
                more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
                raise OtherInputsError(path, f"{'; '.join(wrong[:_SHOWN])}{more}")
        else:  # nothing is there that could be mixed up
            path.mkdir(parents=True, exist_ok=True)
            write_json(held, inputs)
        if self.results is None:
            self._resumed = any(child != held for child in path.iterdir())
            self._cost = StepCost()

    @property
    def results(self) -> dict | None:
        """What `complete` was given; None while files are missing."""
        return _read_json(self.path / "results.json")

    def complete(self, results: dict) -> None:
        """Marks the step as done; call it once, when every file is there."""
        write_json(self.path / "cost.json", self._cost.end(self._resumed))
        write_json(self.path / "results.json", results)


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
    """A place beside `path` to write to; it becomes `path` when the block ends without error.

    For a URL the place is in a temporary folder of this machine.
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
            f"the disk is full: {path} could not be written. What was finished stays; "
            "free some space and give the same command again"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def absolute(path: epath.PathLike) -> epath.Path:
    """From the root of the disk; a remote path (gs://...) as it is.

    `epath.Path.resolve` would make a local path of that: files would stay on the machine.
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
