"""The folder of one step of a stage: filled file by file, safe to be killed, never mixed up.

`inputs.json` says what the files are made from, `results.json` that the step is complete.
"""

import contextlib
import errno
import json
from pathlib import Path
import shutil
import uuid

from icl_jax.config import StageError
from icl_jax.config_tree import differences

_PARTIAL = ".partial"


class StepFolder:
    """Opens or creates the folder; stops if its files were made from other inputs."""

    def __init__(self, path: Path, inputs: dict):
        self.path = path
        inputs = json.loads(json.dumps(inputs))  # as it will be read back
        held = path / "inputs.json"
        if held.exists():
            wrong = differences(json.loads(held.read_text()), inputs)
            if wrong:
                raise StageError(
                    f"{path} was made from other inputs ({'; '.join(wrong)}); "
                    "choose another --workdir, undo the difference, or delete that folder"
                )
        else:
            path.mkdir(parents=True, exist_ok=True)
            write_json(held, inputs)
        for left in path.glob(f"*{_PARTIAL}"):  # of a run that was killed
            left.unlink(missing_ok=True)

    @property
    def results(self) -> dict | None:
        """What `complete` was given; None while files are missing."""
        return read_results(self.path)

    def complete(self, results: dict) -> None:
        """Marks the step as done; call it when every file is there."""
        write_json(self.path / "results.json", results)


def read_results(path: Path) -> dict | None:
    """The results of the step in a folder; None if there is no complete one."""
    file = path / "results.json"
    return json.loads(file.read_text()) if file.exists() else None


def write_json(path: Path, value: dict) -> None:
    """Writes a JSON file that is either whole or not there."""
    with beside(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n")


@contextlib.contextmanager
def beside(path: Path):
    """A place beside `path` to write to; it becomes `path` when the block ends without error."""
    partial = path.parent / f"{path.name}.{uuid.uuid4().hex}{_PARTIAL}"
    try:
        yield partial
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


def require_space(path: Path, needed: int, what: str) -> None:
    """Stops before the work begins if its result will not fit on the disk."""
    free = shutil.disk_usage(path).free
    if needed > free:
        raise StageError(
            f"{what} will take {needed / 1e9:.1f} GB in {path}, but the disk has only "
            f"{free / 1e9:.1f} GB free; free some space or choose another --workdir"
        )


def _disk_is_full(error: Exception, path: Path) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return not isinstance(error, StageError) and shutil.disk_usage(path.parent).free < 1 << 20
