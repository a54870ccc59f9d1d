"""The form of an experiment, and what runs a table of them: points first, then their reports."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from icl_jax.sandboxes.points import Point, is_done, run_points
from icl_jax.sandboxes.report import (
    Finding,
    make_claims,
    make_table,
    write_finding,
    write_together,
)

SCALES = ("mini", "paper")  # minutes on two cores; as published

Results = dict[str, dict]  # of each point, by its name


class Experiment(NamedTuple):
    """One row of a sandbox's table of experiments."""

    name: str
    title: str
    points: Callable[[str], list[Point]]  # of a scale
    report: Callable[[str, Results], Finding]


Table = Mapping[str, Experiment]


def run_experiments(
    table: Table, title: str, names: Sequence[str], scale: str, to: Path, workers: int = 0
) -> str:
    """Runs what is missing, all points in one queue, and writes everything; what is printed."""
    of_each = {name: table[name].points(scale) for name in names}
    results = run_points(distinct_points(of_each.values()), to, workers)
    shown = []
    for name in names:
        own = {point.name: results[point.name] for point in of_each[name]}
        found = table[name].report(scale, own)
        write_finding(found, to)
        shown += [f"{name}: {found.title}", "", make_claims(found.claims), ""]
    write_together(title, list(table), to)
    shown.append(f"tables: {to / 'report.md'}; numbers: {to / 'results.json'}")
    return "\n".join(shown)


def list_points(table: Table, names: Sequence[str], scale: str, to: Path) -> str:
    """Every point, whether it is done, and a guess of the hours that it takes one core."""
    rows, total = [["point", "done", "core hours"]], 0.0
    for point in distinct_points(table[name].points(scale) for name in names):
        done = is_done(point, to)
        total += 0 if done else point.seconds
        rows.append([point.name, "yes" if done else "", f"{point.seconds / 3600:.2f}"])
    return f"{make_table(rows)}\n\n{len(rows) - 1} points; left: {total / 3600:.1f} core hours"


def distinct_points(of_each: Iterable[Sequence[Point]]) -> list[Point]:
    """The points of several experiments; one that two of them compare with is there once."""
    found: list[Point] = []
    for points in of_each:
        found += [point for point in points if point not in found]
    return found


def numbers(results: Results, points: Sequence[Point]) -> dict:
    """What `results.json` holds of trained networks: settings, tests, the loss at the end."""
    return {
        point.name: {
            "settings": {k: v for k, v in point.arguments.items() if k != "tests"},
            "tests": results[point.name]["tests"],
            "final_loss": [losses[-1] for losses in results[point.name]["losses"]],
            "parameters": results[point.name]["parameters"],
            "seconds": results[point.name]["seconds"],
        }
        for point in points
    }
