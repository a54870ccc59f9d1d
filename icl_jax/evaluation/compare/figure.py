"""A comparison of arms as a figure: one panel for each metric, a line for each arm."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from icl_jax.evaluation.compare.cells import LEVEL
from icl_jax.evaluation.metric import show_metric

_COLUMNS = 4
_STYLE = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "icl_jax",  # the same ids in every file
    "svg.fonttype": "none",  # text stays text
}


def draw_figure(comparison: dict, file: Path, kind: str) -> None:
    """Writes a `png` or `svg`: values with 95% intervals, seeds as small dots.

    A filled point is an arm whose difference to the reference is significant.
    """
    arms, reference = comparison["arms"], comparison["reference"]
    panels = [(task, name) for task, cells in arms[reference].items() for name in cells]
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (2.6 * columns + 0.6, (0.26 * len(arms) + 0.95) * rows + 0.35)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, dpi=200, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for axis, (task, name) in zip(axes.flat, panels):
            _draw_panel(axis, {arm: arms[arm][task][name] for arm in arms}, reference)
            axis.set_title(f"{task}: {show_metric(name)}", fontsize=8, loc="left")
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        axes[0, 0].set_ylim(len(arms) - 0.5, -0.5)  # the first arm at the top
        figure.supxlabel(
            "points and bars: value and 95% interval over items; small dots: seeds; dotted line: "
            f"{reference}.\n"
            f"Filled: the difference to it is significant at {LEVEL} over items (Holm);\n"
            "where both arms have several seeds, also over seeds (Welch)",
            fontsize=7,
        )
        metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
        figure.savefig(file, format=kind, metadata=metadata)


def _draw_panel(axis, cells: dict[str, dict], reference: str) -> None:
    axis.axvline(cells[reference]["value"], color="0.6", linestyle=":", linewidth=1)
    for place, cell in enumerate(cells.values()):
        (low, high), value = cell["interval95"], cell["value"]
        axis.plot([low, high], [place, place], color="0.35", linewidth=1.2, solid_capstyle="butt")
        fill = "black" if cell["real"] else "white"
        axis.plot(value, place, "o", color="black", markerfacecolor=fill, markersize=5)
        if len(cell["seeds"]) > 1:
            beside = [place + 0.25] * len(cell["seeds"])
            axis.plot(cell["seeds"], beside, ".", color="0.45", markersize=3)
    axis.set_yticks(range(len(cells)), list(cells))
    cell = cells[reference]
    axis.set_xlabel(f"{cell['unit']} ({cell['better']} is better)")
    axis.locator_params(axis="x", nbins=4)
