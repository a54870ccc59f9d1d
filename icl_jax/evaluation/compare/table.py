"""A comparison of arms as text: Markdown for people, CSV for spreadsheets."""

import csv
import io

from icl_jax.evaluation.bootstrap import FEW_ITEMS
from icl_jax.evaluation.compare.cells import LEVEL
from icl_jax.evaluation.metric import Unit, show_metric
from icl_jax.evaluation.task import unit_of

_CSV = (
    "task", "metric", "arm", "value", "low", "high", "seeds", "standard_deviation", "items",
    "right", "unit", "better", "difference", "difference_low", "difference_high", "test", "p",
    "p_holm", "p_seeds", "real", "verdict",
)  # fmt: skip
TOLERANCE = 0.05  # of updates: larger differences between arms are warned of


def make_markdown(comparison: dict) -> str:
    """All tasks, and an explanation of the columns."""
    reference, count = comparison["reference"], comparison["comparisons"]
    tasks = next(iter(comparison["arms"].values()))
    parts = ["# Comparison", ""]
    warning = warn_of_updates(comparison)
    if warning:
        parts += [warning, ""]
    elif comparison["updates"]:
        counts = (f"{arm} {show_updates(comparison, arm)}" for arm in comparison["updates"])
        parts += [f"Updates of training: {', '.join(counts)}.", ""]
    for task in tasks:
        parts += [f"## {task}", "", task_table(comparison, task), ""]
        fewest = min(cell["items"] for cell in _cells(comparison["arms"], task))
        if fewest < FEW_ITEMS:
            parts += [f"With only {fewest} items, intervals are too narrow.", ""]
        parts += [line for note in comparison["notes"].get(task, ()) for line in (note, "")]
    if comparison["left_out"]:
        parts += [f"Left out: {describe_left_out(comparison['left_out'])}.", ""]
    parts += [
        f"Differences are to {reference}, on the same items. 95% intervals: bootstrap over the "
        f"items ({comparison['resamples']:,} resamples); for shares that are equal for all items, "
        "Clopper and Pearson's exact bound. p over items: two-sided; for right or wrong answers "
        "the sign test if both arms have one seed, otherwise the paired bootstrap of the mean over "
        f"seeds. Holm: this p, adjusted for all {count} comparisons. p over seeds: Welch's t-test "
        "of the seeds' values, if both arms have several that are not all equal. A difference is "
        f"significant at {LEVEL} if Holm's p is below that and, where both arms have several "
        "seeds, p over seeds is too. With 1 seed, the test covers other items of this kind only: "
        "results may differ with another seed.",
        "",
    ]
    return "\n".join(parts)


def task_table(comparison: dict, task: str) -> str:
    """The Markdown table of one task: a line for each metric and arm."""
    reference, arms = comparison["reference"], comparison["arms"]
    several = any(len(cell["seeds"]) > 1 for cell in _cells(arms, task))
    counted = any(cell["right"] is not None for cell in _cells(arms, task))
    units = list(dict.fromkeys(_unit(cell) for cell in _cells(arms, task)))
    header = [f"metric ({units[0]})" if len(units) == 1 else "metric"]
    header += ["arm", "value", "95% interval"]
    header += ["sd over seeds"] * several + ["right"] * counted
    header += [f"difference to {reference}", "its 95% interval", "p over items", "Holm"]
    header += ["p over seeds"] * several + ["significant?"]
    lines = [header, ["---"] * len(header)]
    for metric in next(iter(arms.values()))[task]:
        for arm in arms:
            cell = arms[arm][task][metric]
            unit = unit_of(task, cell)
            name = show_metric(metric)
            name += "" if len(units) == 1 else f" ({_unit(cell)})"
            line = [name, arm, show(cell["value"], unit), show_interval(cell["interval95"], unit)]
            line += [_seeds(cell, unit)] * several + [_right(cell)] * counted
            if cell["p"] is None:
                line += ["reference", "", "", "", *[""] * several, ""]
            else:
                line += [
                    show(cell["difference"], unit, "+"),
                    show_interval(cell["difference_interval95"], unit, "+"),
                    f"{show_p(cell['p'])} ({cell['test']})",
                    show_p(cell["p_holm"]),
                    *[_p_seeds(cell, arms[reference][task][metric])] * several,
                    cell["verdict"],
                ]
            lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show_updates(comparison: dict, arm: str) -> str:
    """The updates of an arm as text; with several seeds the fewest and the most."""
    counts = sorted(set(comparison.get("updates", {}).get(arm, ())))  # older ones have none
    return " to ".join(f"{count:,}" for count in counts[:: max(1, len(counts) - 1)]) or "-"


def warn_of_updates(comparison: dict) -> str | None:
    """A warning if arms were trained for different numbers of updates."""
    updates = comparison.get("updates", {})
    counts = [count for seeds in updates.values() for count in seeds]
    if not counts or max(counts) - min(counts) <= TOLERANCE * max(counts):
        return None
    counts = ", ".join(f"{arm} {show_updates(comparison, arm)}" for arm in updates)
    return (
        f"**Warning: the arms were not trained for the same number of updates** ({counts}): a "
        "difference between them may come from the amount of training, not from the arrangement. "
        "With design.examples.rows=one_query an epoch is as long in every arm of a design; "
        "otherwise set branches.steps."
    )


def describe_left_out(left_out: list[dict]) -> str:
    """Tasks and metrics that are not compared, why, and for which arms."""
    return "; ".join(
        f"{' '.join(filter(None, (left['task'], left['metric'])))} "
        f"({left['why']} in {', '.join(left['arms'])})"
        for left in left_out
    )


def make_csv(comparison: dict) -> str:
    """One line for each task, metric and arm; numbers in full."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV, lineterminator="\n")
    writer.writeheader()
    for arm, tasks in comparison["arms"].items():
        for task in tasks:
            for metric, cell in tasks[task].items():
                low, high = cell["interval95"]
                ends = cell["difference_interval95"] or (None, None)
                line = {name: cell[name] for name in _CSV if name in cell}
                line |= {"task": task, "metric": metric, "arm": arm, "low": low, "high": high}
                line |= {"difference_low": ends[0], "difference_high": ends[1]}
                writer.writerow(line | {"seeds": len(cell["seeds"])})
    return text.getvalue()


def show(value: float, unit: Unit, sign: str = "") -> str:
    """A number with the digits of its unit."""
    return f"{round(value, unit.digits) + 0.0:{sign}.{unit.digits}f}"  # + 0.0: no -0.00


def show_interval(ends: list[float], unit: Unit, sign: str = "") -> str:
    """LOW to HIGH."""
    return " to ".join(show(end, unit, sign) for end in ends)


def show_p(p: float) -> str:
    """A p-value; below 0.001 only that it is."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _cells(arms: dict, task: str) -> list[dict]:
    return [cell for tasks in arms.values() for cell in tasks[task].values()]


def _unit(cell: dict) -> str:
    return f"{cell['unit']}, {cell['better']} is better"


def _p_seeds(cell: dict, reference: dict) -> str:
    if cell["p_seeds"] is not None:
        return show_p(cell["p_seeds"])
    single = min(len(held["seeds"]) for held in (cell, reference)) == 1
    return "none: 1 seed" if single else "none: seeds are equal"


def _seeds(cell: dict, unit: Unit) -> str:
    if cell["standard_deviation"] is None:
        return "1 seed"
    return f"{show(cell['standard_deviation'], unit)} ({len(cell['seeds'])} seeds)"


def _right(cell: dict) -> str:
    if cell["right"] is None:
        return ""
    right = f"{cell['right']:,.0f}" if len(cell["seeds"]) == 1 else f"{cell['right']:,.1f}"
    return f"{right} of {cell['items']:,}"
