"""Reads the evaluations to be compared, and stops if they are not of the same items."""

import json
from typing import NamedTuple

from etils import epath
import numpy as np

from icl_jax.config import StageError
from icl_jax.config.tree import differences
from icl_jax.evaluation.metric import Metrics
from icl_jax.evaluation.task import Task, read_rows, task_class
from icl_jax.evaluation.tasks import TASKS
from icl_jax.files.remote import read_text
from icl_jax.files.step_folder import read_inputs, read_results

_SHOWN = 3  # differences in one message


class Evaluation(NamedTuple):
    """The files of one evaluated model, on disk or in a bucket."""

    folder: epath.Path
    tasks: tuple[str, ...]
    model: dict  # its identity


def open_arm(name: str, paths: list[epath.PathLike]) -> list[Evaluation]:
    """The evaluations of an arm's seeds; stops if two of them are of the same model."""
    seeds = [open_evaluation(epath.Path(path)) for path in paths]
    for number, seed in enumerate(seeds):
        for other in seeds[:number]:
            if seed.model == other.model:
                raise StageError(
                    f"{other.folder} and {seed.folder} are two seeds of '{name}', but of the same "
                    "model; name each evaluation once"
                )
    return seeds


def open_evaluation(path: epath.Path) -> Evaluation:
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
            f"the evaluation {folder} is not finished ({', '.join(unfinished)}); rerun its command"
        )
    models = [read_inputs(folder / task)["model"] for task in tasks]
    for task, model in zip(tasks, models, strict=True):
        if model != models[0]:
            raise StageError(
                f"{folder / tasks[0]} and {folder / task} are of two models; evaluate again with "
                "another --output, or delete the old one"
            )
    return Evaluation(folder, tuple(tasks), models[0])


def read_metrics(
    task: str, arms: dict[str, list[Evaluation]], reference: str
) -> dict[str, list[Metrics]]:
    """Arm -> the metrics of each seed; stops if any has other items than the reference."""
    first, kind = arms[reference][0].folder / task, task_class(task)
    first_items = [_item(kind, row) for row in read_rows(first)]
    metrics = {}
    for arm, seeds in arms.items():
        metrics[arm] = []
        for folder in [seed.folder / task for seed in seeds]:
            _check_inputs(kind, first, folder)
            rows = read_rows(folder)
            _check_items(first, first_items, folder, [_item(kind, row) for row in rows])
            metrics[arm].append(kind.metrics(rows, read_results(folder)))
    return metrics


def find_common(
    metrics: dict[str, list[Metrics]], reference: str
) -> tuple[list[str], list[dict], list[str]]:
    """The metrics that can be compared; those that cannot, with the reason; and notes."""
    common, left_out, shares = [], [], {}
    for name in dict.fromkeys(n for seeds in metrics.values() for seed in seeds for n in seed):
        found = {arm: [seed.get(name) for seed in seeds] for arm, seeds in metrics.items()}
        lacking = [arm for arm, seeds in found.items() if None in seeds]
        if lacking:
            left_out.append({"metric": name, "arms": lacking, "why": "withheld or missing"})
            continue
        first = found[reference][0]
        others = [
            arm
            for arm, seeds in found.items()
            if not all(np.array_equal(seed.sizes, first.sizes) for seed in seeds)
        ]
        if others and first.unit.by_token:
            why = f"other tokens than those of {reference}"
            left_out.append({"metric": name, "arms": others, "why": why})
            continue
        common.append(name)
        if others:
            sums = [seed.sizes.sum() for seeds in found.values() for seed in seeds]
            shares[name] = 1 - min(sums) / max(sums)
    if not shares:
        return common, left_out, []
    note = (
        f"{'; '.join(shares)}: not exactly the same text in all arms, because their tokens differ "
        "and a GPT does not predict the first token of a text; its total length differs by up to "
        f"{max(shares.values()):.1%}."
    )
    return common, left_out, [note]


def _count_updates(evaluation: Evaluation) -> int | None:
    """Those since the checkpoint that the run began with; None: unknown, or nothing was trained.

    They are known for RUN/evaluation/STEP, where a run is evaluated by default.
    """
    step, record = evaluation.folder.name, evaluation.folder.parent.parent / "config.json"
    if evaluation.folder.parent.name != "evaluation" or not step.isdigit() or not record.exists():
        return None
    held = json.loads(read_text(record))
    continues = held["config"]["training"]["start_with"] == "everything"
    begin = (held.get("start") or {}).get("step", 0) if continues else 0
    return int(step) - begin


def updates_of(arms: dict[str, list[Evaluation]]) -> dict[str, list[int]]:
    """Arm -> the updates of each seed, of the arms where they are known."""
    counts = {arm: [_count_updates(seed) for seed in seeds] for arm, seeds in arms.items()}
    return {arm: seeds for arm, seeds in counts.items() if None not in seeds}


def _tasks_in(folder: epath.Path) -> list[str]:
    return [task for task in TASKS if (folder / task / "inputs.json").exists()]


def _check_inputs(kind: type[Task], first: epath.Path, folder: epath.Path) -> None:
    """Stops if the data or the settings of two evaluations differ."""
    there, here = (
        kind.shared_inputs({k: v for k, v in read_inputs(held).items() if k != "model"})
        for held in (first, folder)
    )
    wrong = differences(there, here)
    if wrong:
        raise StageError(
            f"{folder} cannot be compared with {first}, because its data or settings differ "
            f"({'; '.join(wrong[:_SHOWN])}); evaluate both models in the same way"
        )


def _item(kind: type[Task], row: dict) -> dict:
    return {name: row.get(name) for name in kind.item}


def _check_items(
    first: epath.Path, there: list[dict], folder: epath.Path, here: list[dict]
) -> None:
    if len(there) != len(here):
        wrong = f"it has {len(here)} of them, not {len(there)}"
    elif there != here:
        number = next(n for n, (a, b) in enumerate(zip(there, here, strict=True)) if a != b)
        wrong = f"line {number + 1}: {'; '.join(differences(there[number], here[number])[:_SHOWN])}"
    else:
        return
    raise StageError(
        f"{folder} cannot be compared with {first}, because its items differ ({wrong}); evaluate "
        "both models on the same data; where an item has tokens, with the same tokenizer"
    )
