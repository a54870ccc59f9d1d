"""The figure of a report: the result of each arm, one panel for each task."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from icl_jax.evaluation.metric import SHARE
from icl_jax.experiment.report.numbers import (
    Headline,
    headlines,
    main_metric,
    show_right,
    show_value,
)

_PANELS, _COLUMNS = 4, 2
_REFERENCE, _OTHERS, _INK = "#2f6fb0", "0.78", "0.15"  # dark and light without colours too
_STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": "0.6",
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.labelcolor": "0.35",
    "axes.labelsize": 8,
    "xtick.color": "0.35",
    "xtick.labelsize": 8,
    "ytick.left": False,
    "svg.hashsalt": "icl_jax",  # the same ids in every file
    "svg.fonttype": "none",  # text stays text
}


def draw_report(comparison: dict, file: Path, kind: str) -> None:
    """Writes a `png` or `svg`: the main metric of each task, with 95% intervals over items."""
    arms, shown = list(comparison["arms"]), headlines(comparison)[:_PANELS]
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    names = 0.086 * max(map(len, arms))  # inches
    width = names + (4.6 if columns == 1 else 7.2)
    size = (width, (0.33 * len(arms) + 0.85) * rows + 0.25)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, dpi=200, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for axis, headline in zip(axes.flat, shown):
            _draw_panel(axis, comparison, headline)
        for axis in axes.flat[len(shown) :]:
            axis.set_visible(False)
        axes[0, 0].set_yticks(range(len(arms)), arms)
        axes[0, 0].set_ylim(len(arms) - 0.5, -0.5)  # the first arm at the top
        for axis in axes[:, 0]:
            axis.get_yticklabels()[arms.index(comparison["reference"])].set_weight("bold")
        figure.supxlabel(_caption(comparison, shown), fontsize=8, color="0.35")
        metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
        figure.savefig(file, format=kind, metadata=metadata)


def _draw_panel(axis, comparison: dict, headline: Headline) -> None:
    metric = main_metric(comparison, headline)
    is_counted = metric == headline.kind.counted
    cells = {arm: tasks[headline.task][metric] for arm, tasks in comparison["arms"].items()}
    for place, (arm, cell) in enumerate(cells.items()):
        scale = _scale(cell, is_counted)
        _draw_arm(axis, place, cell, scale, arm == comparison["reference"])
        text = show_right(cell) if is_counted else show_value(headline, cell)
        end = max(0, cell["interval95"][1]) * scale
        weight = "bold" if arm == comparison["reference"] else "normal"
        axis.annotate(
            text, (end, place), (5, 0), textcoords="offset points", va="center", weight=weight
        )
    axis.margins(x=0.2)  # room for the last label
    if _begins_at_0(cell):
        axis.axvline(0, color="0.6", linewidth=0.8)
    if not any(end for cell in cells.values() for end in cell["interval95"]):
        axis.set_xlim(0, 1)  # nothing but zeros
    axis.locator_params(axis="x", nbins=5)
    axis.set_title(headline.kind.title(metric, cell["items"]))
    unit = "%" if cell["unit"] == SHARE.name else cell["unit"]
    axis.set_xlabel("" if is_counted else f"{unit} ({cell['better']} is better)")


def _draw_arm(axis, place: int, cell: dict, scale: float, is_reference: bool) -> None:
    """A bar; a point for a loss, where 0 means nothing."""
    colour, value = _REFERENCE if is_reference else _OTHERS, cell["value"] * scale
    ends = [end * scale for end in cell["interval95"]]
    for line, width in (("white", 3.0), (_INK, 1.2)):  # with an edge that shows on a dark bar
        axis.plot(
            ends, [place, place], color=line, linewidth=width, solid_capstyle="butt", zorder=3
        )
    if _begins_at_0(cell):
        axis.barh(place, value, height=0.62, color=colour)
    else:
        axis.plot(value, place, "o", color=colour, markeredgecolor=_INK, markersize=7, zorder=4)
    if len(cell["seeds"]) > 1:
        seeds = [seed * scale for seed in cell["seeds"]]
        dots = {"color": "white", "markeredgecolor": _INK, "markersize": 3, "clip_on": False}
        axis.plot(seeds, [place + 0.2] * len(seeds), "o", zorder=5, **dots)


def _begins_at_0(cell: dict) -> bool:
    return cell["better"] == "higher"


def _scale(cell: dict, is_counted: bool) -> float:
    """Right answers are counted, other shares are in percent."""
    if is_counted:
        return cell["items"]
    return 100 if cell["unit"] == SHARE.name else 1


def _caption(comparison: dict, shown: list[Headline]) -> str:
    most = max(len(paths) for paths in comparison["evaluations"].values())
    seeds = f"means of {most} seeds (dots); " if most > 1 else ""
    items = shown[0].kind.unit if len(shown) == 1 else "items"
    return f"{seeds}lines: 95% intervals over {items}; bold: the reference of the comparison"
