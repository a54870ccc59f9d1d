"""What all tasks have in common: items become rows, part by part, and rows become results.

A row is the JSON object of one item, with everything that results are computed from. Each part is
a file that is written whole, so a killed evaluation continues after the last one; at the end they
become one file.
"""

from collections.abc import Callable, Sequence
import importlib
import json
from pathlib import Path

from etils import epath
from jax.sharding import Mesh

from icl_jax.config import EvaluationConfig
from icl_jax.config.model import ModelConfig
from icl_jax.evaluation.metric import SHARE, Metrics, Unit, show_metric
from icl_jax.evaluation.tasks import TASKS
from icl_jax.files import mirror
from icl_jax.files.remote import read_text
from icl_jax.files.step_folder import StepFolder, beside, read_inputs, read_results, write_json
from icl_jax.workers.local import progress_bar

ROWS, TABLE = "outputs.jsonl", "table.md"


class Task:
    """An evaluation task, made from (model, EvaluationConfig): it opens and checks its data.

    What is defined here is what most tasks have; the comments say what each one must have.
    """

    # Running: `run`, `results` and `table`, and
    unit: str  # what its items are called
    part_size: int  # items of a part
    items: Sequence
    inputs: dict  # JSON: data and settings that the results depend on, except the model
    folders: tuple[str, ...] = ()  # that it reads in `EvaluationConfig.data`

    # Comparing: `metrics`, and
    item: tuple[str, ...]  # the fields of a row that are the item, not what a model made of it
    units: tuple[Unit, ...] = (SHARE,)  # of its metrics

    # Reporting
    rank = 100  # its place in a report: the most telling tasks come first
    counted = ""  # the metric that is shown as how many items are right
    fallback = ""  # the metric that is shown instead where no model has an item right
    outputs = "every single result"  # what outputs.jsonl holds
    prefixed = True  # whether its numbers in comparison.json have its name before them

    @classmethod
    def check(cls, config: EvaluationConfig, model: ModelConfig) -> None:
        """Stops on what is known to be wrong before the design; reads no weights."""

    @classmethod
    def with_design(cls, config: EvaluationConfig, workdir: epath.Path) -> EvaluationConfig:
        """The config that reads the design in `workdir` where it would read the run's own."""
        return config

    def run(
        self, items: Sequence, first: int, mesh: Mesh, progress: Callable[[int], None]
    ) -> list[dict]:
        """The rows of some items, the first of which is number `first`."""
        raise NotImplementedError

    def results(self, rows: list[dict]) -> dict:
        """JSON, from the rows alone."""
        raise NotImplementedError

    def table(self, results: dict) -> str:
        """The results for people."""
        raise NotImplementedError

    @staticmethod
    def metrics(rows: list[dict], results: dict) -> Metrics:
        """The numbers that are compared, each computed from the rows."""
        raise NotImplementedError

    @staticmethod
    def shared_inputs(inputs: dict) -> dict:
        """Those of its inputs that must be the same for models to be compared."""
        return inputs

    @staticmethod
    def headline(metrics: list[str]) -> list[str]:
        """Which of the metrics of a comparison a report shows, the main one first."""
        return metrics

    @classmethod
    def title(cls, metric: str, items: int) -> str:
        """Of its panel in the figure of a report."""
        return metric[:1].upper() + metric[1:]

    @classmethod
    def sentence(cls, name: str, metric: str, model: str, value: str, items: int) -> str:
        """What a report says first: the main number of one model. `name` is the task's own."""
        words = metric if metric == name else f"{name} {metric}"
        return f"{show_metric(words)}: {model} has {value}"


def task_class(name: str) -> type[Task]:
    """The class of a task, by the table."""
    module, made = TASKS[name]
    return getattr(importlib.import_module(f"icl_jax.evaluation.tasks.{module}"), made)


def unit_of(name: str, cell: dict) -> Unit:
    """The unit of a task's number in a comparison."""
    known = {unit.name: unit for unit in task_class(name).units}
    return known.get(cell["unit"]) or Unit(cell["unit"], better=cell["better"])


def check_folder(task: Task, identity: dict, folder: Path) -> None:
    """Stops if the contents of `folder` were made from other inputs."""
    StepFolder(folder, {"model": identity, **task.inputs})


def run_task(
    task: Task, name: str, identity: dict, bootstrap: dict, folder: Path, mesh: Mesh
) -> str:
    """The table of a task; everything it makes is in `folder`, and nothing is made twice.

    `identity` is that of the model. Where only `bootstrap`, which intervals depend on, has changed,
    results are computed again from the rows.
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
    """The identity of the model that was evaluated in a task's folder."""
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
