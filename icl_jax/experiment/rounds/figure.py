"""The figure of the rounds: the result of each arm, and how much the neighbours changed."""

import itertools
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
import numpy as np

from icl_jax.evaluation.metric import SHARE, show_metric
from icl_jax.experiment.report.numbers import headlines, main_metric

_MARKERS = "osD^vP*X"  # arms differ without colours too
_COLOURS = [f"C{number}" for number in range(10)]
_STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


def draw_rounds(rounds: list[dict], file: Path) -> None:
    """Writes a PNG: a panel for each task's main metric, and one for the neighbours."""
    shown = headlines(rounds[0]["comparison"])
    with matplotlib.rc_context(_STYLE):
        size = (3.6 * (len(shown) + 1), 3.4)
        figure = Figure(figsize=size, dpi=200, layout="constrained")
        *panels, last = figure.subplots(1, len(shown) + 1, squeeze=False)[0]
        for axis, headline in zip(panels, shown, strict=True):
            metric = main_metric(rounds[0]["comparison"], headline)
            _draw_arms(axis, rounds, headline.task, metric)
        _draw_neighbours(last, rounds)
        for axis in (*panels, last):
            axis.set_xlabel("round")
            axis.set_xlim(0.7, len(rounds) + 0.3)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.savefig(file, format="png", metadata={"Software": None})


def _draw_arms(axis, rounds: list[dict], task: str, metric: str) -> None:
    """Values with 95% intervals; each arm continues from the reference of the previous round."""
    reference = rounds[0]["comparison"]["reference"]
    arms = list(dict.fromkeys(arm for found in rounds for arm in found["comparison"]["arms"]))
    cells = [
        {arm: held[task][metric] for arm, held in found["comparison"]["arms"].items()}
        for found in rounds
    ]
    places = {arm: 0.06 * (place - (len(arms) - 1) / 2) for place, arm in enumerate(arms)}
    for arm, marker, colour in zip(arms, itertools.cycle(_MARKERS), itertools.cycle(_COLOURS)):
        points = [(number, held[arm]) for number, held in enumerate(cells, 1) if arm in held]
        x = [number + places[arm] for number, _ in points]
        y = [cell["value"] for _, cell in points]
        low, high = zip(*(cell["interval95"] for _, cell in points), strict=True)
        errors = [np.subtract(y, low).clip(0), np.subtract(high, y).clip(0)]
        axis.errorbar(x, y, errors, fmt=marker, color=colour, markersize=4, capsize=2, label=arm)
        for (number, _), *end in zip(points, x, y, strict=True):
            if number > 1:
                begin = (number - 1 + places[reference], cells[number - 2][reference]["value"])
                style = "-" if arm == reference else ":"
                axis.plot(*zip(begin, end, strict=True), style, color=colour, linewidth=1)
    cell = cells[0][reference]
    axis.set_title(f"{task}: {show_metric(metric)}", fontsize=9, loc="left")
    if cell["unit"] == SHARE.name:
        axis.yaxis.set_major_formatter(PercentFormatter(1))
    else:
        axis.set_ylabel(f"{cell['unit']} ({cell['better']} is better)")
    axis.legend(fontsize=7, frameon=False)


def _draw_neighbours(axis, rounds: list[dict]) -> None:
    """How much of each search remains in the next."""
    names = {"kept": "neighbours kept", "same_nearest": "same nearest"}
    for (name, label), marker in zip(names.items(), _MARKERS):
        values = [(found["round"], (found["overlap"] or {}).get(name)) for found in rounds]
        values = [(number, value) for number, value in values if value is not None]
        axis.plot(*np.reshape(values, (-1, 2)).T, marker=marker, markersize=4, label=label)
    axis.set_ylim(0, 1)
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.set_title("neighbours, against the previous round", fontsize=9, loc="left")
    axis.legend(fontsize=7, frameon=False)
