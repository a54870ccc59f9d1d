"""Tables and figures of the measurements of `in_context_bias`."""

import math
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
import numpy as np

from icl_jax.files.step_folder import beside, write_json
from icl_jax.theory import bounds

BOUND_DEPTHS = range(1, 13)
MARKERS = "sD^vP*X"
_STYLE = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlelocation": "left", "axes.titlesize": 9.5, "legend.frameon": False,
    "legend.fontsize": 7.5,
}  # fmt: skip
_TITLES = {"positive": "positive weights (theorem 1)", "normal": "normal weights"}


def write_report(settings: dict, found: list[dict], folder: Path) -> str:
    """Writes the measurements, tables and a figure of each part; returns the tables."""
    write_json(folder / "measurements.json", {"settings": settings, "measurements": found})
    parts = {"in_context_bias": (_bias, _draw_bias), "embedding_rank": (_ranks, _draw_ranks)}
    texts = []
    for name, (tell, draw) in parts.items():
        with matplotlib.rc_context(_STYLE), beside(folder / f"{name}.png") as partial:
            draw(settings, found).savefig(partial, format="png", metadata={"Software": None})
        texts.append("\n".join(tell(settings, found)))
        with beside(folder / f"{name}.md") as partial:
            partial.write_text(f"{texts[-1]}\n")
    written = ", ".join(f"{name}.md and .png" for name in parts)
    return "\n\n".join([*texts, f"written to {folder}: {written}"])


def curve(settings: dict, found: list[dict], weights: str, rate: float | None) -> list[dict]:
    """For each depth the medians of both bounds over the seeds."""
    points = []
    for depth in settings["depths"]:
        rows = [
            row
            for row in found
            if row.get("weights") == weights
            and row["depth"] == depth
            and row["learning_rate"] == rate
        ]
        medians = {
            side: float(np.median([row[side] for row in rows])) for side in ("lower", "upper")
        }
        points.append({"depth": depth} | medians)
    return points


def measured_deficit(context: list[dict], other: list[dict]) -> str:
    """By how many layers the deepest `other` is behind the curve in context.

    That is measured to the depth where the rank in context (its lower bound, log-linear between
    depths) equals the other's.
    """
    depth, rank = other[-1]["depth"], math.log(other[-1]["lower"])
    depths = [point["depth"] for point in context]
    logs = np.maximum.accumulate([math.log(point["lower"]) for point in context])
    if rank >= logs[-1]:
        return "none"
    if rank < logs[0]:
        return f"more than {depth - depths[0]}"
    return f"{depth - float(np.interp(rank, logs, depths)):.1f}"


def _bias(settings: dict, found: list[dict]) -> list[str]:
    lines = [
        f"Epsilon-sequential-separation rank: width {settings['width']}, {settings['heads']} "
        f"heads, sentences of {settings['sentence_length']} words, epsilon "
        f"{settings['epsilon']:g}; certified lower and upper bounds on {settings['points']} x "
        f"{settings['points']} points, median of {settings['seeds']} networks.",
    ]
    for weights, title in _TITLES.items():
        context = curve(settings, found, weights, None)
        header = [title, *(f"depth {depth}" for depth in settings["depths"])]
        rows = [header, ["---", *["---:"] * len(settings["depths"])]]
        rows.append(["in context", *map(_span, context)])
        for rate in settings["learning_rates"]:
            points = curve(settings, found, weights, rate)
            rows.append([f"sequential, eta {rate:g}", *map(_span, points)])
        lines += ["", *(f"| {' | '.join(row)} |" for row in rows)]
    return [*lines, "", *_deficits(settings, found)]


def _span(point: dict) -> str:
    low, high = (f"{point[side]:g}" for side in ("lower", "upper"))
    return low if low == high else f"{low} to {high}"


def _deficits(settings: dict, found: list[dict]) -> list[str]:
    last = settings["depths"][-1]
    header = ["eta", "0.5 log3(1 / eta)", *(f"measured, {weights} weights" for weights in _TITLES)]
    rows = [header, ["---:"] * len(header)]
    for rate in settings["learning_rates"]:
        cells = [f"{rate:g}", f"{bounds.depth_deficit(rate):.2f}"]
        for weights in _TITLES:
            context = curve(settings, found, weights, None)
            cells.append(measured_deficit(context, curve(settings, found, weights, rate)))
        rows.append(cells)
    return [
        f"Depth deficit: by how many layers the sequential rank at depth {last} lies behind the "
        "rank in context (lower bounds).",
        "",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _ranks(settings: dict, found: list[dict]) -> list[str]:
    rows = [["embedding rank", *map(str, settings["ranks"])]]
    rows.append(["---", *["---:"] * len(settings["ranks"])])
    for width in settings["rank_widths"]:
        measured = [str(row["measured"]) for row in found if row.get("width") == width]
        rows.append([f"width {width}", *measured])
    return [
        f"Separation rank between two input vectors, depth {settings['rank_depth']} (Wies et al. "
        "2021): numerical rank.",
        "",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _draw_bias(settings: dict, found: list[dict]) -> Figure:
    figure = Figure(figsize=(10.4, 4.9), dpi=200, layout="constrained")
    *panels, last = figure.subplots(1, len(_TITLES) + 1)
    for axis, (weights, title) in zip(panels, _TITLES.items()):
        _draw_curves(axis, settings, found, weights)
        axis.set(title=title, xlabel="depth L (layers)", yscale="log")
        axis.axhline(settings["points"], color="0.6", lw=0.7, ls=":")
        place = (settings["depths"][0], settings["points"] * 1.05)
        axis.text(*place, "points of the grid", fontsize=7, color="0.4")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel(
        f"$\\varepsilon$-separation rank, $\\varepsilon$ = {settings['epsilon']:g}"
    )
    for axis in panels:
        axis.set_ylim(0.8, 2 * settings["points"])
    _draw_bounds(last, settings)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16)}
    panels[0].legend(*_half(panels[0], 0), **below)
    panels[1].legend(*_half(panels[0], 1), **below)
    last.legend(**below)
    return figure


def _half(axis, half: int) -> tuple[list, list]:
    """The first or the second half of a legend."""
    handles, labels = axis.get_legend_handles_labels()
    middle = -(-len(labels) // 2)
    chosen = slice(middle) if half == 0 else slice(middle, None)
    return handles[chosen], labels[chosen]


def _draw_curves(axis, settings: dict, found: list[dict], weights: str) -> None:
    """Lower bounds as lines; whiskers reach up to the upper bounds."""
    rates = settings["learning_rates"]
    greys = np.linspace(0.25, 0.72, len(rates))
    curves = [(None, "in context", "black", "o", 2.2)]
    curves += [
        (rate, f"sequential, $\\eta$ = {rate:g}", str(grey), MARKERS[n % len(MARKERS)], 1.1)
        for n, (rate, grey) in enumerate(zip(rates, greys))
    ]
    for n, (rate, label, colour, marker, width) in enumerate(curves):
        points = curve(settings, found, weights, rate)
        depths = np.array([point["depth"] for point in points]) + 0.035 * (n - len(curves) / 2)
        low, high = (np.array([point[side] for point in points]) for side in ("lower", "upper"))
        axis.errorbar(
            depths, low, yerr=[np.zeros_like(low), high - low], label=label, color=colour,
            marker=marker, ms=4.5, lw=width, elinewidth=0.6, ls="-" if rate is None else "--",
        )  # fmt: skip


def _draw_bounds(axis, settings: dict) -> None:
    """Natural logarithms of the bounds at the same width; theorem 1 from where it holds."""
    width, heads = settings["width"], settings["heads"]
    lines = [
        ("in context, upper (corollary 1)",
         lambda L: bounds.in_context_upper(L, width, heads), "-"),
        ("in context, reached (binomial)", lambda L: bounds.in_context_exact_upper(L, width), "--"),
        ("sequential, any $\\eta$ (degree in b)",
         lambda L: bounds.sequential_exact_upper(L, width), ":"),
    ]  # fmt: skip
    if width - heads >= 2:
        lines.append(
            (
                "in context, lower (theorem 2)",
                lambda L: bounds.in_context_lower(L, width, heads),
                "-.",
            )
        )
    for n, (label, bound, style) in enumerate(lines):
        depths = [L for L in BOUND_DEPTHS if L > 1 or "lower" not in label]
        axis.plot(depths, list(map(bound, depths)), style, color=str(0.18 * n), label=label, lw=1.4)
    sizes = (width, heads, settings["sentence_length"])
    for rate, marker in zip((1.0, 1e-2, 1e-4), "sD^"):
        depths = [L for L in BOUND_DEPTHS if not bounds.sequential_conditions(L, *sizes, rate)]
        values = [bounds.sequential_upper(L, *sizes, rate, settings["epsilon"]) for L in depths]
        axis.plot(depths, values, marker, color="0.45", ms=3.5, mfc="none",
                  label=f"sequential, $\\eta$ = {rate:g} (theorem 1)")  # fmt: skip
    axis.set(title=f"the bounds at width {width}", xlabel="depth L (layers)")
    axis.set_ylabel("natural logarithm of the rank")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_ranks(settings: dict, found: list[dict]) -> Figure:
    figure = Figure(figsize=(6.4, 3.8), dpi=200, layout="constrained")
    axis, ranks, depth = figure.subplots(), settings["ranks"], settings["rank_depth"]
    for width, marker, grey in zip(
        settings["rank_widths"], "osD^vP", ("0", "0.4", "0.55", "0.65", "0.72", "0.78")
    ):
        measured = [row["measured"] for row in found if row.get("width") == width]
        axis.plot(ranks, measured, f"{marker}-", color=grey, ms=5 + 0.7 * width, mfc="none",
                  label=f"measured, width {width}")  # fmt: skip
        upper = [math.exp(bounds.embedding_rank_upper(depth, width, r, None, 0)) for r in ranks]
        axis.plot(ranks, upper, "--", color=grey, lw=1.2, label=f"upper bound, width {width}")
        fits = [r for r in ranks if r <= width and r - 1 >= 2]  # heads 1: (r - H) / 2 >= 1
        lower = [math.exp(bounds.convolution_lower(depth, width, r, 1)) for r in fits]
        axis.plot(fits, lower, ":x", color=grey, lw=1.2, ms=4, label=f"lower bound, width {width}")
        axis.axvline(width, color=grey, lw=0.6, ls=(0, (1, 3)))
    axis.set(yscale="log", xlabel="rank r of the embedding", ylabel="separation rank",
             title=f"a rank below the width caps what width can do (depth {depth})")  # fmt: skip
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure
