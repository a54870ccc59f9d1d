"""How often networks misread: exact intervals, tests between arms, tables and curves.

No error in N reads is never a rate of 0: it is shown as < 3/N, the one-sided 95% limit.
Shape suffixes: S seeds, G groups of reads.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats


def interval95(errors: int, total: int) -> list[float]:
    """The exact two-sided 95% interval of a rate (Clopper and Pearson 1934)."""
    found = stats.binomtest(errors, total).proportion_ci(0.95, method="exact")
    return [float(found.low), float(found.high)]


def counted(errors: int, total: int) -> dict:
    """What `results.json` holds of a number of errors."""
    return {"errors": errors, "total": total, "interval95": interval95(errors, total)}


def pooled(result: dict) -> dict[str, dict]:
    """The errors of all seeds of a point together, for each test."""
    return {
        name: counted(sum(test["errors"]), test["reads"] * len(test["errors"]))
        for name, test in result["tests"].items()
    }


def rates(result: dict, test: str) -> list[float]:
    """The share of wrong reads, of every seed."""
    found = result["tests"][test]
    return [errors / found["reads"] for errors in found["errors"]]


def show_rate(errors: float, total: int) -> str:
    """A rate; with no error its upper limit."""
    return f"{errors / total:.2g}" if errors else f"< 3/{total}"


def show_pooled(found: dict) -> str:
    """Errors of a total, and the exact interval of their rate."""
    low, high = found["interval95"]
    rate = show_rate(found["errors"], found["total"])
    return f"{found['errors']} of {found['total']}: {rate} ({low:.2g} to {high:.2g})"


def show_seeds(result: dict, test: str) -> str:
    """Median and range of the rate over seeds."""
    found = result["tests"][test]
    low, middle, high = (
        show_rate(value, found["reads"]) for value in np.percentile(found["errors"], (0, 50, 100))
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def free_of_errors(result: dict, tests: Sequence[str]) -> int:
    """How many seeds make no error in any of these tests."""
    return int((np.sum([result["tests"][test]["errors"] for test in tests], axis=0) == 0).sum())


def rank_sum_p(more: Sequence[float], less: Sequence[float]) -> float:
    """The exact one-sided p that `more` is larger, by ranks, ties too."""
    ranks = np.rint(2 * stats.rankdata([*more, *less])).astype(int)  # doubled: those of ties too
    # How many choices of so many ranks have each sum.
    ways = np.zeros((len(more) + 1, ranks.sum() + 1))
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :-rank]
    return float(ways[-1, ranks[: len(more)].sum() :].sum() / ways[-1].sum())


def seeds_differ_p(result: dict, test: str) -> float:
    """How likely networks of one rate would differ as these do; 1 without errors.

    Errors on one row go together: the chi-square is divided by the reads of a row, as if all did.
    """
    found = result["tests"][test]
    errors_S, reads = np.array(found["errors"]), found["reads"]
    rate = errors_S.mean() / reads
    if rate in (0, 1):
        return 1.0
    chi2 = np.sum((errors_S - rate * reads) ** 2) / (reads * rate * (1 - rate))
    return float(stats.chi2.sf(chi2 * found["rows"] / reads, len(errors_S) - 1))


def adjust(ps: Mapping[str, float]) -> dict[str, float]:
    """Holm's p of each of several tests."""
    found, largest = {}, 0.0
    for n, name in enumerate(sorted(ps, key=ps.__getitem__)):
        largest = max(largest, min(1.0, (len(ps) - n) * ps[name]))
        found[name] = largest
    return {name: found[name] for name in ps}


# Drawings.


def draw_seeds(axis, results: Mapping[str, dict], test: str, colours: Sequence[str]) -> None:
    """A dot for every seed of every arm, the median; what makes no error is apart, below."""
    limit = min(1 / result["tests"][test]["reads"] for result in results.values())
    bottom = limit / 4
    axis.axhspan(bottom / 2, limit / 2, color="0.93", linewidth=0)
    for place, (result, colour) in enumerate(zip(results.values(), colours, strict=True)):
        values = np.array(rates(result, test))
        x = place + np.linspace(-0.25, 0.25, len(values))
        shown = np.where(values > 0, values, bottom)
        axis.plot(x, shown, "o", color=colour, alpha=0.5, markersize=3.5)
        middle = np.median(values) or bottom
        axis.plot([place - 0.35, place + 0.35], [middle] * 2, color=colour, linewidth=1.5)
    axis.set_yscale("log")
    axis.set_ylim(bottom / 2, 1)
    axis.set_xticks(range(len(results)), list(results), rotation=90, fontsize=7)
    axis.set_title(f"{test.replace('_', ' ')}: wrong reads, grey: none", fontsize=9, loc="left")


def draw_curves(axis, results: Mapping[str, dict], tests: Sequence[str], by: str, colours) -> None:
    """The rate by distance to the write or by density of writes, with 95% intervals.

    All seeds and tests are taken together; where there is no error, there is an interval alone.
    """
    for (name, result), colour in zip(results.items(), colours, strict=True):
        up_to, errors, reads = together(result, tests, by)
        ends = np.array([interval95(int(e), int(n)) for e, n in zip(errors, reads)])
        axis.fill_between(up_to, *ends.T, color=colour, alpha=0.2, linewidth=0)
        rate = np.where(errors > 0, errors / reads, np.nan)
        axis.plot(up_to, rate, "o-", color=colour, markersize=3, label=name)
    axis.set_xscale("log")
    axis.set_yscale("log")
    ends = sorted({end for result in results.values() for end in together(result, tests, by)[0]})
    axis.set_xticks(ends, [str(end) for end in ends])
    axis.set_xticks([], minor=True)
    axis.set_title(f"{' and '.join(tests).replace('_', ' ')}: wrong reads", fontsize=9, loc="left")


def together(result: dict, tests: Sequence[str], by: str) -> tuple[np.ndarray, ...]:
    """The upper end, the errors and the reads of each group, over seeds and tests."""
    totals: dict[int, np.ndarray] = {}
    for test in tests:
        found = result["tests"][test][by]
        errors_G, seeds = np.sum(found["errors"], axis=0), len(found["errors"])
        for end, errors, reads in zip(found["up_to"], errors_G, found["reads"], strict=True):
            totals[end] = totals.get(end, 0) + np.array([errors, reads * seeds])
    ends = sorted(totals)
    errors_G, reads_G = np.array([totals[end] for end in ends]).T
    return np.array(ends), errors_G, reads_G
