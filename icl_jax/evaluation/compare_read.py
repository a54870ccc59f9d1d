"""Reads evaluations that are to be compared, and stops where they are not of the same items."""

from pathlib import Path
from typing import NamedTuple

from icl_jax.config import StageError
from icl_jax.config_tree import differences
from icl_jax.evaluation.compare_metrics import TASKS, Metric
from icl_jax.evaluation.task import read_rows
from icl_jax.step_folder import read_inputs, read_results

# Inputs in which arms may differ: the model, how it makes vectors, and the precision of intervals.
_OF_THE_MODEL = ("model", "vectors", "resamples")
_SHOWN = 3  # differences in one message


class Evaluation(NamedTuple):
    """What one evaluated model left on the disk."""

    folder: Path
    tasks: tuple[str, ...]


def open_evaluation(path: Path) -> Evaluation:
    """The tasks of an evaluation; stops if one of them is not finished."""
    folder = path.with_suffix("") if path.suffix == ".json" else path
    if not folder.is_dir():
        raise StageError(f"there is no evaluation at {path}; expected what --output of it named")
    tasks = _tasks_in(folder)
    inside = [child for child in sorted(folder.iterdir()) if child.is_dir() and _tasks_in(child)]
    if not tasks and len(inside) > 1:
        raise StageError(
            f"{path} holds {len(inside)} evaluations ({', '.join(c.name for c in inside)}); name "
            "one of them"
        )
    if not tasks and inside:
        folder, tasks = inside[0], _tasks_in(inside[0])
    if not tasks:
        raise StageError(
            f"{path} holds no evaluation; expected folders of tasks, of {', '.join(TASKS)}"
        )
    unfinished = [task for task in tasks if read_results(folder / task) is None]
    if unfinished:
        raise StageError(
            f"the evaluation {folder} is not finished ({', '.join(unfinished)}); give its command "
            "again"
        )
    return Evaluation(folder, tuple(tasks))


def read_metrics(
    task: str, arms: dict[str, list[Evaluation]], reference: str
) -> dict[str, list[dict[str, Metric]]]:
    """Arm -> the metrics of each seed; stops if any has other items than the reference."""
    first = arms[reference][0].folder / task
    first_items = [_item(task, row) for row in read_rows(first)]
    metrics = {}
    for arm, seeds in arms.items():
        metrics[arm] = []
        for folder in [seed.folder / task for seed in seeds]:
            _check_inputs(first, folder)
            rows = read_rows(folder)
            _check_items(first, first_items, folder, [_item(task, row) for row in rows])
            metrics[arm].append(TASKS[task].metrics(rows, read_results(folder)))
    return metrics


def _tasks_in(folder: Path) -> list[str]:
    return [task for task in TASKS if (folder / task / "inputs.json").exists()]


def _check_inputs(first: Path, folder: Path) -> None:
    there, here = (
        {key: value for key, value in read_inputs(held).items() if key not in _OF_THE_MODEL}
        for held in (first, folder)
    )
    wrong = differences(there, here)
    if wrong:
        raise StageError(
            f"{folder} cannot be compared with {first}, for its data or settings are others "
            f"({'; '.join(wrong[:_SHOWN])}); evaluate both models in the same way"
        )


def _item(task: str, row: dict) -> dict:
    return {name: row.get(name) for name in TASKS[task].item}


def _check_items(first: Path, there: list[dict], folder: Path, here: list[dict]) -> None:
    if len(there) != len(here):
        wrong = f"it has {len(here)} of them, not {len(there)}"
    elif there != here:
        number = next(n for n, (a, b) in enumerate(zip(there, here, strict=True)) if a != b)
        wrong = f"line {number + 1}: {'; '.join(differences(there[number], here[number])[:_SHOWN])}"
    else:
        return
    raise StageError(
        f"{folder} cannot be compared with {first}, for its items are others ({wrong}); evaluate "
        "both models on the same data with the same tokenizer"
    )
