"""balance (D4, D5): its violation against other lengths, and a term that asks for it.

Liu 2024, 3.6.3.2 and Figure 3.40.
"""

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
import numpy as np
from scipy import stats

from icl_jax.evaluation.compare.table import show_p
from icl_jax.sandboxes.dyck.experiments.settings import (
    EXPLAINED,
    METRICS,
    accuracy,
    numbers,
    show,
    trained_point,
)
from icl_jax.sandboxes.dyck.trained import FAR, NEAR, Training
from icl_jax.sandboxes.experiment import Experiment, Results
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import SURE, Claim, Finding, make_table, show_spread

STANDARD, ALL = "standard", "standard, all tokens"
# After START; and as in the authors' code.
NESTED, FIXED = "contrastive, nested pairs", "contrastive, fixed prefix"
STRENGTH = 0.3  # the authors' code
ARMS = {
    STANDARD: {},
    NESTED: {"contrast": STRENGTH},
    FIXED: {"contrast": STRENGTH, "prefix": "fixed"},
    ALL: {"learn": "all"},
}
TOKENS = 100_000  # of all examples, whatever their length
LENGTHS = (16, 56)  # of training, next to 28: theorem 2
SEEDS = {
    "mini": {STANDARD: 40, NESTED: 40, FIXED: 40, ALL: 16, LENGTHS: 16},
    "paper": {STANDARD: 40, NESTED: 40, FIXED: 40, ALL: 40, LENGTHS: 40},
}
SIZE = {"mini": {}, "paper": {"width": 500, "learning_rate": 3e-3, "test_rows": 1024}}
COLOURS = {STANDARD: "C0", NESTED: "C3", FIXED: "C1", ALL: "C7"}


def points(scale: str) -> list[Point]:
    """With and without the term, on all tokens, and from shorter and longer prefixes."""
    found = [
        trained_point(f"balance {arm}", seeds=SEEDS[scale][arm], **SIZE[scale] | fields)
        for arm, fields in ARMS.items()
    ]
    for length in LENGTHS:
        fields = {"length": length, "examples": TOKENS // length, "seeds": SEEDS[scale][LENGTHS]}
        found.append(trained_point(f"balance length {length}", **SIZE[scale] | fields))
    return found


def report(scale: str, results: Results) -> Finding:
    """Violation and accuracies, how they go together, and the violation by length of training."""
    of = {arm: results[f"balance {arm}"] for arm in ARMS}
    shortest, longest = Training().far
    header = ["minimal first layer", "violation", "largest"]
    header += [f"{sign} {where}" for where in ("as trained", f"{shortest} to {longest}")
               for sign in METRICS.values()]  # fmt: skip
    rows = [header]
    rows += [
        [arm, show(of[arm]["violation"]), show(of[arm]["largest_violation"]),
         *(show_spread(accuracy(results, f"balance {arm}", where, metric))
           for where in (NEAR, FAR) for metric in METRICS)]
        for arm in ARMS
    ]  # fmt: skip
    rank = [["Spearman: violation against", *(f"{sign}" for sign in METRICS.values())]]
    rank += [[arm, *(_show_rank(_rank(results, arm, metric)) for metric in METRICS)]
             for arm in (STANDARD, NESTED, FIXED, ALL)]  # fmt: skip
    by_length, slope = _slope(results)
    text = (
        f"{EXPLAINED}Medians over seeds (least to largest). Trained on prefixes of "
        f"{Training().length} brackets, tested on new ones, and on prefixes of {shortest} to "
        f"{longest}. Violation: beta, the mean over pairs of brackets and queries of what a pair "
        f"adds against what tells two prefixes apart.\n\n{make_table(rows)}\n\nRank correlation "
        f"over the seeds of an arm, at {shortest} to {longest} (two-sided p):\n\n"
        f"{make_table(rank)}\n\nTheorem 2 bounds the violation by a constant / N for networks far "
        "closer to the optimum than any training comes. Here, trained on prefixes of N = "
        + ", ".join(f"{n}: {show(values)}" for n, values in by_length.items())
        + f"; the slope of log beta on log N is {slope:+.2f} (-1 would be as 1 / N).\n\n"
        "A network without positions cannot tell pairs before START from pairs after it, so that "
        "the two contrastive terms differ in which pairs they insert and not in where."
    )
    found = {
        "scale": scale, "slope": slope, "points": numbers(results, points(scale)),
        "spearman": {arm: {m: _rank(results, arm, m) for m in METRICS} for arm in ARMS},
    }  # fmt: skip
    return Finding(
        "balance", "balance violation and longer rows", text, _claims(results, of), found,
        lambda figure: _draw(figure, results, of, by_length), size=(9.5, 3.2),
    )  # fmt: skip


def _rank(results: Results, arm: str, metric: str) -> list[float]:
    """Spearman's rho of the violation and the accuracy on longer rows over seeds, and its p."""
    values = accuracy(results, f"balance {arm}", FAR, metric)
    violations = results[f"balance {arm}"]["violation"]
    if len(set(values)) == 1:
        return [0.0, 1.0]
    found = stats.spearmanr(violations, values)
    return [float(found.statistic), float(found.pvalue)]


def _show_rank(rank: list[float]) -> str:
    return f"{rank[0]:+.2f} (p {show_p(rank[1])})"


def _slope(results: Results) -> tuple[dict[int, list[float]], float]:
    """The violations by the length of training, and the slope of their logarithms."""
    found = {n: results[f"balance length {n}"]["violation"] for n in LENGTHS}
    found[Training().length] = results[f"balance {STANDARD}"]["violation"]
    found = dict(sorted(found.items()))
    x, y = zip(*((n, value) for n, values in found.items() for value in values), strict=True)
    return found, float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _claims(results: Results, of: dict) -> list[Claim]:
    claims = []
    standard = of[STANDARD]["violation"]
    for arm in (NESTED, FIXED):
        ratio = np.median(standard) / np.median(of[arm]["violation"])
        claims.append(Claim(
            f"{arm}: the term lowers the balance violation, to less than half", "lower",
            f"{show(standard)} without, {show(of[arm]['violation'])} with it: a ratio of medians "
            f"of {ratio:.1f}", ratio > 2,
        ))  # fmt: skip
        for metric in ("sure", "after_closings"):
            without, found = (
                accuracy(results, f"balance {a}", FAR, metric) for a in (STANDARD, arm)
            )
            p = float(stats.mannwhitneyu(found, without, alternative="greater").pvalue)
            claims.append(Claim(
                f"{arm}: better on longer rows, accuracy {METRICS[metric]} (rank-sum p < 1e-4)",
                "higher", f"{show_spread(without)} without, {show_spread(found)} with it; p "
                f"{p:.1g}", p < 1e-4,
            ))  # fmt: skip
    rank = {metric: _rank(results, STANDARD, metric) for metric in METRICS}
    rho, p = rank["sure"]
    words = "; ".join(f"{METRICS[m]} {_show_rank(found)}" for m, found in rank.items())
    claims.append(Claim(
        "standard: seeds that violate balance more do worse on longer rows, accuracy (iii)",
        "negatively correlated", f"Spearman {words}", rho < 0 if p < SURE else None,
    ))  # fmt: skip
    return claims


def _draw(figure: Figure, results: Results, of: dict, by_length: dict) -> None:
    scatter, curves, slope = figure.subplots(1, 3, width_ratios=(1.2, 1.2, 0.8))
    for arm, colour in COLOURS.items():
        scatter.plot(of[arm]["violation"],
                     np.multiply(100, accuracy(results, f"balance {arm}", FAR, "sure")), "o",
                     color=colour, markersize=3, alpha=0.7, label=arm)  # fmt: skip
        values_SL = 100 * np.array(of[arm]["by_length"]["after_closings"])
        lengths = of[arm]["by_length"]["length"]
        low, middle, high = np.percentile(values_SL, (10, 50, 90), axis=0)
        curves.plot(lengths, middle, color=colour)
        curves.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
    curves.axvline(Training().length, color="0.7", linewidth=0.8, linestyle=":")
    scatter.set_xlabel("balance violation")
    scatter.set_ylabel("accuracy (iii) on longer rows, %")
    scatter.legend(fontsize=6.5, frameon=False)
    curves.set_xlabel("length of the prefix")
    curves.set_ylabel("accuracy (ii), %: median, 10% to 90%")
    for length, values in by_length.items():
        slope.plot([length] * len(values), values, "o", color="C0", markersize=3, alpha=0.5)
    slope.set_xscale("log")
    slope.set_yscale("log")
    slope.set_xticks(list(by_length), list(map(str, by_length)))
    slope.xaxis.set_minor_locator(NullLocator())
    slope.set_xlabel("length in training")
    slope.set_ylabel("balance violation")


EXPERIMENT = Experiment("balance", "balance violation and longer rows", points, report)
