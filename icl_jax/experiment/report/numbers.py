"""The main numbers of a comparison: which ones each task has, and how they are written."""

import re
from typing import NamedTuple

from icl_jax.evaluation.compare.table import show, show_interval
from icl_jax.evaluation.metric import SHARE
from icl_jax.evaluation.task import Task, task_class, unit_of
from icl_jax.evaluation.tasks import TASKS


class Headline(NamedTuple):
    """What a report says about a task."""

    task: str
    kind: type[Task]
    metrics: list[str]  # the main one first


def headlines(comparison: dict) -> list[Headline]:
    """The tasks of a comparison, the most telling first."""
    held = next(iter(comparison["arms"].values()))
    kinds = {task: task_class(task) for task in TASKS if held.get(task)}
    return [
        Headline(task, kind, kind.headline(list(held[task])))
        for task, kind in sorted(kinds.items(), key=lambda item: item[1].rank)
    ]


def main_metric(comparison: dict, headline: Headline) -> str:
    """The one to look at first; the task's fallback where no arm has an item right."""
    task, main = headline.task, headline.metrics[0]
    if main != headline.kind.counted or not headline.kind.fallback:
        return main
    right = any(tasks[task][main]["right"] for tasks in comparison["arms"].values())
    return main if right else headline.kind.fallback


def make_numbers(comparison: dict) -> dict[str, dict]:
    """Arm -> its numbers, flat.

    A metric has its name, after that of its task unless the task says otherwise: `sts_average`,
    `sts_average_interval95`, `p_sts_average`; one named like its task has that name alone.
    p-values are paired, against the reference (which has none), and not adjusted.
    """
    return {arm: _numbers_of(comparison, arm) for arm in comparison["arms"]}


def _numbers_of(comparison: dict, arm: str) -> dict:
    tasks, found = comparison["arms"][arm], headlines(comparison)
    cells = {
        _key(headline, metric): tasks[headline.task][metric]
        for headline in found
        for metric in headline.metrics
    }
    numbers = {key: cell["value"] for key, cell in cells.items()}
    for headline in found:
        if counted := headline.kind.counted:
            cell = tasks[headline.task][counted]
            numbers[_key(headline, "correct")] = count_right(cell)
            numbers[_key(headline, "total")] = cell["items"]
    numbers |= {f"{key}_interval95": cell["interval95"] for key, cell in cells.items()}
    numbers |= {f"p_{key}": cell["p"] for key, cell in cells.items()}
    numbers["updates"] = comparison.get("updates", {}).get(arm)  # of each seed
    return numbers | {"seeds": len(comparison["evaluations"][arm])}


def _key(headline: Headline, metric: str) -> str:
    words = re.sub(r"[^\w-]+", "_", metric)
    alone = not headline.kind.prefixed or metric == headline.task
    return words if alone else f"{headline.task}_{words}"


def count_right(cell: dict) -> int | float:
    """How many items are right; the mean of several seeds."""
    seeds = len(cell["seeds"])
    right = round(cell["right"] * seeds)
    return right if seeds == 1 else right / seeds


def show_right(cell: dict) -> str:
    """The same as text."""
    return f"{count_right(cell):,}" if len(cell["seeds"]) == 1 else f"{count_right(cell):,.1f}"


def show_value(headline: Headline, cell: dict) -> str:
    """A number as text; shares in percent."""
    if cell["unit"] == SHARE.name:
        return f"{100 * cell['value']:.2f}%"
    return show(cell["value"], unit_of(headline.task, cell))


def show_interval95(headline: Headline, cell: dict) -> str:
    """Its 95% interval, in the same manner."""
    if cell["unit"] == SHARE.name:
        low, high = (100 * end for end in cell["interval95"])
        return f"{low:.2f} to {high:.2f}%"
    return show_interval(cell["interval95"], unit_of(headline.task, cell))
