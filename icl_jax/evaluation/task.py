"""What all tasks have in common: items become rows, part by part, and rows become results.

A row is the JSON object of one item, with all that a result is computed from. Parts are files, each
written whole, so that a killed evaluation goes on after the last one; at the end they are one file.
"""

from collections.abc import Callable, Sequence
import json
from pathlib import Path
from typing import Protocol

from etils import epath
from jax.sharding import Mesh

from icl_jax.files import mirror
from icl_jax.files.remote import read_text
from icl_jax.files.step_folder import StepFolder, beside, read_inputs, read_results, write_json
from icl_jax.workers.local import progress_bar

ROWS, TABLE = "outputs.jsonl", "table.md"


class Task(Protocol):
    """Made from (Subject, EvaluationConfig): reads and checks the data, but no weights."""

    unit: str  # of its items, for the progress bar
    part_size: int  # items of a part
    items: Sequence
    inputs: dict  # JSON: data and settings that the results depend on, the model apart

    def run(
        self, items: Sequence, first: int, mesh: Mesh, progress: Callable[[int], None]
    ) -> list[dict]:
        """The rows of some items, the first of which is number `first`."""

    def results(self, rows: list[dict]) -> dict:
        """JSON, from the rows alone."""

    def table(self, results: dict) -> str:
        """The results for people."""


def check_folder(task: Task, identity: dict, folder: Path) -> None:
    """Stops if what is in `folder` was made from other inputs."""
    StepFolder(folder, {"model": identity, **task.inputs})


def run_task(
    task: Task, name: str, identity: dict, bootstrap: dict, folder: Path, mesh: Mesh
) -> str:
    """The table of a task; all that it makes is in `folder`, and is not made twice.

    `identity` is that of the model; `bootstrap`, which intervals depend on, makes results anew of
    the rows that are there.
    """
    step = StepFolder(folder, {"model": identity, **task.inputs})
    if step.results is None or step.results["bootstrap"] != bootstrap:
        results = task.results(_make_rows(task, name, folder, mesh)) | {"bootstrap": bootstrap}
        _write(folder / TABLE, f"## {name}\n\n{task.table(results).strip()}\n")
        if step.results is None:
            step.complete(results)
        else:
            write_json(folder / "results.json", results)
    return (folder / TABLE).read_text()


def read_finished(folder: Path) -> tuple[dict, str] | None:
    """Results and table of a task that is complete."""
    results = read_results(folder)
    return None if results is None else (results, (folder / TABLE).read_text())


def read_model(folder: Path) -> dict:
    """The identity of the model that a task's folder belongs to."""
    return read_inputs(folder)["model"]


def read_rows(folder: epath.PathLike) -> list[dict]:
    """The rows of a complete task."""
    lines = read_text(epath.Path(folder) / ROWS).split("\n")  # not splitlines: text may hold others
    return [json.loads(line) for line in lines if line]


def _make_rows(task: Task, name: str, folder: Path, mesh: Mesh) -> list[dict]:
    if not (folder / ROWS).exists():
        _make_parts(task, name, folder, mesh)
    for part in folder.glob("part-*.jsonl"):  # also those of a run that was killed just here
        mirror.remove(part)
    return read_rows(folder)


def _make_parts(task: Task, name: str, folder: Path, mesh: Mesh) -> None:
    count = len(task.items)
    starts = range(0, count, task.part_size)
    spans = [(start, min(start + task.part_size, count)) for start in starts]
    parts = [folder / f"part-{start}-{stop}.jsonl" for start, stop in spans]
    done = sum(b - a for (a, b), part in zip(spans, parts, strict=True) if part.exists())
    with progress_bar(total=count, initial=done, unit=f" {task.unit}", desc=name) as bar:
        for (start, stop), part in zip(spans, parts, strict=True):
            if not part.exists():
                rows = task.run(task.items[start:stop], start, mesh, bar.update)
                _write(part, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    _write(folder / ROWS, "".join(part.read_text() for part in parts))


def _write(file: Path, text: str) -> None:
    with beside(file) as partial:
        partial.write_text(text)
