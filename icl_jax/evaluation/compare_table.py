"""A comparison of arms as text: Markdown for people, CSV for spreadsheets."""

import csv
import io

from icl_jax.evaluation.compare_metrics import UNITS, Unit

FEW = 30  # items; a bootstrap of fewer is known to be too sure
_CSV = (
    "task", "metric", "arm", "value", "low", "high", "seeds", "standard_deviation", "items",
    "right", "unit", "better", "difference", "difference_low", "difference_high", "test", "p",
    "p_holm", "verdict",
)  # fmt: skip


def make_markdown(comparison: dict) -> str:
    """All tasks, with what the columns are."""
    reference, count = comparison["reference"], comparison["comparisons"]
    tasks = next(iter(comparison["arms"].values()))
    parts = ["# Comparison", ""]
    for task in tasks:
        parts += [f"## {task}", "", task_table(comparison, task), ""]
        fewest = min(cell["items"] for cell in _cells(comparison["arms"], task))
        if fewest < FEW:
            parts += [f"Of {fewest} items alone, intervals are too narrow.", ""]
    for task, arms in comparison["left_out"].items():
        parts += [f"{task} is left out: {', '.join(arms)} has not been evaluated on it.", ""]
    parts += [
        f"Differences are to {reference}, on the same items. 95% intervals by bootstrap over the "
        f"items ({comparison['resamples']:,} resamples). p: two-sided, by the test that is named. "
        f"Holm: p adjusted for all {count} comparisons. Both speak of other items of this kind, "
        "not of other seeds of the training: for those look at the standard deviation over seeds.",
        "",
    ]
    return "\n".join(parts)


def task_table(comparison: dict, task: str) -> str:
    """The Markdown table of one task: a line for each metric and arm."""
    reference, arms = comparison["reference"], comparison["arms"]
    several = any(len(cell["seeds"]) > 1 for cell in _cells(arms, task))
    counted = any(cell["right"] is not None for cell in _cells(arms, task))
    first = _cells(arms, task)[0]
    header = [f"metric ({first['unit']}, {first['better']} is better)"]
    header += ["arm", "value", "95% interval"]
    header += ["sd over seeds"] * several + ["right"] * counted
    header += [f"difference to {reference}", "its 95% interval", "p", "Holm", "is it real?"]
    lines = [header, ["---"] * len(header)]
    for metric in next(iter(arms.values()))[task]:
        for arm in arms:
            cell = arms[arm][task][metric]
            unit = UNITS[cell["unit"]]
            name = metric.replace("_", " ").replace("f1", "F1")
            line = [name, arm, show(cell["value"], unit), show_interval(cell["interval95"], unit)]
            line += [_seeds(cell, unit)] * several + [_right(cell)] * counted
            if cell["p"] is None:
                line += ["reference" if arm == reference else "", "", "", "", ""]
            else:
                line += [
                    show(cell["difference"], unit, "+"),
                    show_interval(cell["difference_interval95"], unit, "+"),
                    f"{show_p(cell['p'])} ({cell['test']})",
                    show_p(cell["p_holm"]),
                    cell["verdict"],
                ]
            lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
    """A p-value; small ones are only said to be small."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _cells(arms: dict, task: str) -> list[dict]:
    return [cell for tasks in arms.values() for cell in tasks[task].values()]


def _seeds(cell: dict, unit: Unit) -> str:
    if cell["standard_deviation"] is None:
        return "1 seed"
    return f"{show(cell['standard_deviation'], unit)} ({len(cell['seeds'])} seeds)"


def _right(cell: dict) -> str:
    if cell["right"] is None:
        return ""
    right = f"{cell['right']:,.0f}" if len(cell["seeds"]) == 1 else f"{cell['right']:,.1f}"
    return f"{right} of {cell['items']:,}"
