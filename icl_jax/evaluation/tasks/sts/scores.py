"""Spearman's and Pearson's correlations of scored pairs, x 100: `all`, `mean` and `wmean`; a table.

`all` is one correlation over the pooled pairs of all subsets, `mean` the mean of the subsets'
correlations, `wmean` that mean weighted by their pairs.
"""

from collections.abc import Sequence
import warnings

import numpy as np
from scipy import stats

from icl_jax.evaluation import bootstrap
from icl_jax.evaluation.tasks.sts.files import SUBSETS, PairSet

KINDS = ("spearman", "pearson")


def score_sets(sets: Sequence[PairSet], rows: list[dict], resamples: int, seed: int) -> dict:
    """The results of each set, and their average if all seven are complete."""
    results, draws = {}, {}
    for number, held in enumerate(sets):
        own = [row for row in rows if row["task"] == held.name]
        scores = _score_set(own, not held.missing, bool(SUBSETS.get(held.name)))
        if scores["all"]["spearman"] is not None:
            statistic = bootstrap.spearman_of(*_columns(own))
            draws[held.name] = 100 * bootstrap.draw(statistic, len(own), resamples, (seed, number))
            scores["all"]["spearman_interval95"] = bootstrap.interval(draws[held.name])
        results[held.name] = {**scores, "unscored": held.unscored, "source": held.source}
    seven = [results[name]["all"] for name in SUBSETS if name in results]
    means = dict.fromkeys(KINDS) if len(seven) < len(SUBSETS) else _mean(seven)
    interval = None
    if means["spearman"] is not None:
        interval = bootstrap.interval(np.mean([draws[name] for name in SUBSETS], axis=0))
    return {
        **results,
        "average": means["spearman"],
        "average_interval95": interval,
        "average_pearson": means["pearson"],
        "average_of": f"Spearman x 100, all, mean of {', '.join(SUBSETS)}",
        "missing": [name for held in sets for name in held.missing],
        "undefined": _undefined(results),
        "resamples": resamples,
    }


def correlate(rows: list[dict]) -> dict[str, float | None]:
    """Both correlations of the rows' cosines and scores; None if either never varies."""
    cosine, gold = _columns(rows)
    if len(rows) < 2 or np.ptp(cosine) == 0 or np.ptp(gold) == 0:
        return dict.fromkeys(KINDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        return {
            "spearman": 100 * float(stats.spearmanr(cosine, gold).statistic),
            "pearson": 100 * float(stats.pearsonr(cosine, gold).statistic),
        }


def _score_set(rows: list[dict], whole: bool, has_subsets: bool) -> dict:
    """If a set is incomplete, only its subsets have results."""
    parts: dict[str, list[dict]] = {}
    for row in rows:
        if row["subset"]:
            parts.setdefault(row["subset"], []).append(row)
    subsets = {name: {"pairs": len(part), **correlate(part)} for name, part in parts.items()}
    scores = {"all": correlate(rows) if whole else dict.fromkeys(KINDS)}
    if subsets or has_subsets:
        averaged = list(subsets.values()) if whole else []
        scores["mean"] = _mean(averaged)
        scores["wmean"] = _mean(averaged, [subset["pairs"] for subset in averaged])
        scores["subsets"] = subsets
    return {**scores, "pairs": len(rows)}


def _columns(rows: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    cosine, gold = ([row[name] for row in rows] for name in ("cosine", "gold"))
    return np.array(cosine, np.float64), np.array(gold, np.float64)


def _mean(scores: list[dict], weights: list[int] | None = None) -> dict[str, float | None]:
    """For each kind; None if there is nothing to average, or anything is None."""
    columns = {kind: [score[kind] for score in scores] for kind in KINDS}
    return {
        kind: float(np.average(column, weights=weights)) if column and None not in column else None
        for kind, column in columns.items()
    }


def _undefined(results: dict) -> list[str]:
    """Sets and subsets that have pairs but no correlation: NAME, or NAME/SUBSET."""
    found = []
    for name, scores in results.items():
        subsets = scores.get("subsets", {})
        found += [f"{name}/{s}" for s, part in subsets.items() if part["spearman"] is None]
        if not subsets and scores["pairs"] and scores["all"]["spearman"] is None:
            found.append(name)
    return found


def make_table(results: dict) -> str:
    """Correlations x 100 of each set and subset, with an explanation."""
    sets = {name: found for name, found in results.items() if _is_set(found)}
    lines = [
        f"Correlation x 100 of cosines with human scores; vectors: {results['pooling']}.",
        "",
        "| set | pairs | Spearman, all | 95% interval | Spearman, mean | Spearman, wmean "
        "| Pearson, all | Pearson, mean | Pearson, wmean |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in sets.items():
        spearman, pearson = (
            [_number(found.get(group, {}).get(kind)) for group in ("all", "mean", "wmean")]
            for kind in ("spearman", "pearson")
        )
        interval = _interval(found["all"].get("spearman_interval95"))
        cells = [name, found["pairs"], spearman[0], interval, *spearman[1:], *pearson]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    if results["average"] is not None:
        cells = [_number(results["average"]), _interval(results["average_interval95"]), "", ""]
        pearson = [_number(results["average_pearson"]), "", ""]
        lines.append(f"| **average of the seven** |  | {' | '.join([*cells, *pearson])} |")
    lines += [
        "",
        "all: one correlation over the pooled pairs of the subsets; mean: of the subsets' "
        "correlations; wmean: the same weighted by pairs. Interval: percentiles of "
        f"{results['resamples']} resamples of the pairs.",
    ]
    lines += [f"- {note}" for note in _notes(results, sets)]
    if any(found.get("subsets") for found in sets.values()):
        lines += ["", "| set | subset | pairs | Spearman | Pearson |", "|---|---|---|---|---|"]
    for name, found in sets.items():
        for subset, scores in found.get("subsets", {}).items():
            cells = [name, subset, scores["pairs"]]
            cells += [_number(scores["spearman"]), _number(scores["pearson"])]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _notes(results: dict, sets: dict) -> list[str]:
    notes = []
    if results["missing"]:
        notes.append(f"Missing from the data: {', '.join(results['missing'])}.")
    if results["undefined"]:
        notes.append(
            f"No correlation, because all scores or all cosines are equal: "
            f"{', '.join(results['undefined'])}."
        )
    left_out = [name for name in SUBSETS if name not in sets]
    if left_out:
        notes.append(f"Not requested: {', '.join(left_out)}.")
    if results["average"] is None:
        notes.append(
            f"The average of the seven is withheld: it would be over fewer than {len(SUBSETS)} "
            "whole sets."
        )
    unscored = sum(found["unscored"] for found in sets.values())
    if unscored:
        notes.append(f"Pairs without a score, skipped: {unscored:,}.")
    if results["cut"]:
        notes.append(f"Sentences too long for the model, cut on the right: {results['cut']:,}.")
    sources = dict.fromkeys(found["source"] for found in sets.values() if found["source"])
    notes.append(f"Read from {', '.join(sources)}.")
    return notes


def _is_set(value) -> bool:
    return isinstance(value, dict) and "all" in value


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _interval(ends: list[float] | None) -> str:
    return "-" if ends is None else f"{ends[0]:.2f} to {ends[1]:.2f}"
