"""The main numbers of a comparison: which of each task, and how each is written."""

import re
from typing import NamedTuple

from icl_jax.evaluation.compare.metrics import SHARE, UNITS
from icl_jax.evaluation.compare.table import show, show_interval


class Headline(NamedTuple):
    """What a report tells of a task."""

    task: str
    metrics: list[str]  # the main one first
    items: str  # what the task's items are called


_ITEMS = {
    "nq_open": "questions", "sts": "pairs", "neighbour_gain": "sentences", "perplexity": "texts",
    "glue": "pairs",
}  # fmt: skip


def headlines(comparison: dict) -> list[Headline]:
    """The tasks of a comparison, the most telling first."""
    held = next(iter(comparison["arms"].values()))
    return [
        Headline(task, _main_metrics(task, list(held[task])), items)
        for task, items in _ITEMS.items()
        if held.get(task)
    ]


def _main_metrics(task: str, names: list[str]) -> list[str]:
    if task == "nq_open":
        return ["exact_match", "f1"]
    if task == "glue":
        return [name for name in names if name.endswith(" accuracy")]
    if task == "perplexity":  # by byte where the arms have other tokens
        by_token = [name for name in names if not name.endswith((", by character", ", by byte"))]
        return by_token or [name for name in names if name.endswith(", by byte")]
    main = {"sts": "average", "neighbour_gain": "neighbour_gain"}[task]
    return sorted(names, key=lambda name: name != main)


def main_metric(comparison: dict, headline: Headline) -> str:
    """The one to look at first: where no arm has an answer right, how near they come."""
    cells = [tasks[headline.task][headline.metrics[0]] for tasks in comparison["arms"].values()]
    nothing = headline.task == "nq_open" and not any(cell["right"] for cell in cells)
    return "f1" if nothing else headline.metrics[0]


def make_numbers(comparison: dict) -> dict[str, dict]:
    """Arm -> its numbers, flat.

    A metric has its name, after that of its task: `sts_average`, `sts_average_interval95`,
    `p_sts_average`; one called as its task stands alone, and those of nq_open have no task before
    them. p-values are paired, against the reference (which has none), and not adjusted.
    """
    return {arm: _numbers_of(comparison, arm) for arm in comparison["arms"]}


def _numbers_of(comparison: dict, arm: str) -> dict:
    tasks = comparison["arms"][arm]
    cells = {
        _key(headline.task, metric): tasks[headline.task][metric]
        for headline in headlines(comparison)
        for metric in headline.metrics
    }
    numbers = {key: cell["value"] for key, cell in cells.items()}
    if "exact_match" in cells:
        cell = cells["exact_match"]
        numbers |= {"correct": count_right(cell), "total": cell["items"]}
    numbers |= {f"{key}_interval95": cell["interval95"] for key, cell in cells.items()}
    numbers |= {f"p_{key}": cell["p"] for key, cell in cells.items()}
    numbers["updates"] = comparison.get("updates", {}).get(arm)  # of each seed
    return numbers | {"seeds": len(comparison["evaluations"][arm])}


def _key(task: str, metric: str) -> str:
    words = re.sub(r"[^\w-]+", "_", metric)
    return words if task in ("nq_open", metric) else f"{task}_{words}"


def count_right(cell: dict) -> int | float:
    """How many items are right; of several seeds the mean."""
    seeds = len(cell["seeds"])
    right = round(cell["right"] * seeds)
    return right if seeds == 1 else right / seeds


def show_right(cell: dict) -> str:
    """The same as text."""
    return f"{count_right(cell):,}" if len(cell["seeds"]) == 1 else f"{count_right(cell):,.1f}"


def show_value(cell: dict) -> str:
    """A number as text; shares in percent."""
    if cell["unit"] == SHARE.name:
        return f"{100 * cell['value']:.2f}%"
    return show(cell["value"], UNITS[cell["unit"]])


def show_interval95(cell: dict) -> str:
    """Its 95% interval, in the same manner."""
    if cell["unit"] == SHARE.name:
        low, high = (100 * end for end in cell["interval95"])
        return f"{low:.2f} to {high:.2f}%"
    return show_interval(cell["interval95"], UNITS[cell["unit"]])


def show_metric(metric: str) -> str:
    """The name of a metric, as words."""
    return metric.replace("_", " ").replace("f1", "F1")
