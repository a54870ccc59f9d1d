"""variation (D1, D2, D3, D6): what networks that close brackets look at. Liu 2024, 3.6.3.1."""

from matplotlib.figure import Figure
import numpy as np

from icl_jax.sandboxes.dyck.experiments.settings import (
    EXPLAINED,
    accuracy,
    numbers,
    show,
    trained_point,
)
from icl_jax.sandboxes.dyck.network import MOST_POSITIONS
from icl_jax.sandboxes.dyck.trained import NEAR
from icl_jax.sandboxes.dyck.variation import random_variation
from icl_jax.sandboxes.experiment import Experiment, Results
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import Claim, Finding, make_table, show_spread

LINEAR, NONE, PAIRS = "GPT, linear positions", "GPT, no positions", "minimal, pairs"
UNIFORM = ("minimal, uniform attention", "GPT, uniform attention")
GPT = {"network": "gpt", "steps": 1440, "learning_rate": 3e-3}
SLOW = {"learning_rate": 3e-3}  # Figure 3.39 (b) to (d)
ARMS = {
    LINEAR: GPT | {"position": "linear"},
    NONE: GPT,
    PAIRS: {},
    "minimal, pairs, slower": SLOW,
    "minimal, types and depths": SLOW | {"form": "types and depths"},
    "minimal, types and angles": SLOW | {"form": "types and angles"},
    UNIFORM[0]: {"uniform": True},
    UNIFORM[1]: GPT | {"uniform": True},
}
# Seeds of each arm: all that the claims of variation are about, or some.
SEEDS = {
    "mini": dict.fromkeys(ARMS, 10) | {LINEAR: 16, NONE: 10, PAIRS: 40, UNIFORM[1]: 4},
    "paper": dict.fromkeys(ARMS, 40),
}
# Figure 3.3a: width 200 at 3e-4; Figure 3.39: minimal first layers of width 500.
WIDE = {"gpt": {"width": 200, "learning_rate": 3e-4}, "minimal": {"width": 500}}
PUBLISHED_VARIATION = {LINEAR: 2.20, NONE: 2.27, PAIRS: 0.24}
PUBLISHED_RANDOM = 2.85
SHOWN_SEEDS = 5


def points(scale: str) -> list[Point]:
    """Both networks, with and without positions, embeddings of three forms, uniform attention."""
    found = []
    for arm, fields in ARMS.items():
        wide = WIDE[fields.get("network", "minimal")] if scale == "paper" else {}
        seeds = {"seeds": SEEDS[scale][arm]}
        found.append(trained_point(f"variation {arm}", **fields | wide | seeds))
    return found


def report(scale: str, results: Results) -> Finding:
    """Accuracy, variation between seeds, and the weight on the top of the stack."""
    of = {arm: results[f"variation {arm}"] for arm in ARMS}
    queries = len(of[PAIRS]["shown"])
    rows = [["network", "seeds", "(i) as trained", "(ii) as trained", "variation", "published",
             "on the top of the stack"]]  # fmt: skip
    rows += [
        [arm, SEEDS[scale][arm], *(show_spread(of[arm]["tests"][NEAR][m])
                                   for m in ("all", "after_closings")),
         f"{of[arm]['variation']:.2f}", PUBLISHED_VARIATION.get(arm, "-"),
         show(of[arm]["on_top"])]
        for arm in ARMS
    ]  # fmt: skip
    baseline = random_variation(queries)
    shown = of[PAIRS]["shown"].replace("](", "] (")  # which Markdown would take for a link
    text = (
        f"{EXPLAINED}Medians over seeds (least to largest).\n\nVariation: the mean over pairs of "
        f"seeds of the squared Frobenius distance of the last layer's attention on "
        f"`{shown}` (the dot is START). Causal rows drawn uniformly from the simplex "
        f"have {baseline:.2f} for its {queries} rows (published: {PUBLISHED_RANDOM}). On the top "
        "of the stack: how much of the weight of a query that is a closing is on the opening that "
        f"is to be closed next; equal weights put {of[PAIRS]['on_top_if_equal']:.2f} there, a "
        f"stack 1.\n\n{make_table(rows)}\n\nLinear positions are i / {MOST_POSITIONS}, as in the "
        "authors' code."
    )
    found = {"scale": scale, "random": baseline, "points": numbers(results, points(scale))}
    return Finding(
        "variation", "attention maps of many seeds", text, _claims(results, of, baseline), found,
        lambda figure: _draw(figure, of), size=(9.0, 1.75 * len(ARMS)),
    )  # fmt: skip


def _claims(results: Results, of: dict, baseline: float) -> list[Claim]:
    claims = []
    for arm in (LINEAR, NONE):
        values = accuracy(results, f"variation {arm}", NEAR, "all")
        claims.append(Claim(
            f"{arm}: closes at least 97% of brackets right in every seed", "at least 97%",
            show_spread(values), min(values) >= 0.97,
        ))  # fmt: skip
    for arm, words, holds in (
        (PAIRS, "under 0.6", of[PAIRS]["variation"] < 0.6),
        (LINEAR, "above 1.5", of[LINEAR]["variation"] > 1.5),
        (NONE, "above 1.5", of[NONE]["variation"] > 1.5),
    ):
        claims.append(Claim(
            f"{arm}: variation {words}",
            f"{PUBLISHED_VARIATION[arm]:.2f}; random {PUBLISHED_RANDOM}",
            f"{of[arm]['variation']:.2f}; random {baseline:.2f}", holds,
        ))  # fmt: skip
    for arm in (LINEAR, NONE, PAIRS):
        claims.append(Claim(
            f"{arm}: mostly not like a stack (less than half of the weight on its top, in most "
            "seeds)", "most are not stack-like",
            f"{show(of[arm]['on_top'])}", float(np.median(of[arm]["on_top"])) < 0.5,
        ))  # fmt: skip
    for arm in UNIFORM:
        values = accuracy(results, f"variation {arm}", NEAR, "all")
        claims.append(Claim(
            f"{arm}: closes more than 99% right in every seed", "more than 99%",
            show_spread(values), min(values) > 0.99,
        ))  # fmt: skip
    return claims


def _draw(figure: Figure, of: dict) -> None:
    panels = figure.subplots(len(ARMS), SHOWN_SEEDS, squeeze=False)
    *_, last = ARMS
    for row, arm in zip(panels, ARMS):
        for seed, axis in enumerate(row):
            if seed >= len(of[arm]["attention"]):
                axis.axis("off")
                continue
            draw_map(axis, np.array(of[arm]["attention"][seed]), of[arm]["shown"])
            if seed:
                axis.set_yticks([])
            if arm != last:
                axis.set_xticks([])
            axis.set_title(f"{arm}: seed {seed}" if seed == 0 else f"seed {seed}", fontsize=7,
                           loc="left")  # fmt: skip


def draw_map(axis, weights_QK: np.ndarray, shown: str) -> None:
    """Attention as an image; what a query does not see is white."""
    seen = np.tril(np.ones_like(weights_QK)) > 0
    axis.imshow(np.where(seen, weights_QK, np.nan), cmap="viridis", vmin=0, vmax=1)
    axis.set_xticks(range(len(shown)), shown, fontsize=5)
    axis.set_yticks(range(len(shown)), shown, fontsize=5)
    axis.tick_params(length=0, pad=1)


EXPERIMENT = Experiment("variation", "attention maps of many seeds", points, report)
