"""Runs experiments of the table: their points first, all in one queue, then their reports."""

from collections.abc import Sequence
from pathlib import Path

from icl_jax.sandboxes.automata.experiments import EXPERIMENTS
from icl_jax.sandboxes.points import is_done, run_points
from icl_jax.sandboxes.report import make_claims, make_table, write_finding, write_together

TITLE = "Automata: networks whose weights are written down, and those that must find them"


def run_experiments(names: Sequence[str], scale: str, to: Path, workers: int = 0) -> str:
    """Runs what is missing and writes everything; what the command prints."""
    of_each = {name: EXPERIMENTS[name].points(scale) for name in names}
    results = run_points([point for points in of_each.values() for point in points], to, workers)
    shown = []
    for name in names:
        own = {point.name: results[point.name] for point in of_each[name]}
        found = EXPERIMENTS[name].report(scale, own)
        write_finding(found, to)
        shown += [f"{name}: {found.title}", "", make_claims(found.claims), ""]
    write_together(TITLE, list(EXPERIMENTS), to)
    return "\n".join([*shown, f"{to / 'report.md'}, {to / 'results.json'} and a figure for each"])


def list_points(names: Sequence[str], scale: str, to: Path) -> str:
    """Every point, whether it is done, and a guess of the hours that it takes one core."""
    rows, total = [["point", "done", "core hours"]], 0.0
    for name in names:
        for point in EXPERIMENTS[name].points(scale):
            done = is_done(point, to)
            total += 0 if done else point.seconds
            rows.append([point.name, "yes" if done else "", f"{point.seconds / 3600:.2f}"])
    return f"{make_table(rows)}\n\n{len(rows) - 1} points; left: {total / 3600:.1f} core hours"
