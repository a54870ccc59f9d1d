"""Spearman's and Pearson's correlations of scored pairs, x 100: `all`, `mean` and `wmean`.

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
    """The results of each set, and their average if all of the seven are there and whole."""
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
    """Both correlations of the rows' cosines and scores; None where one of them never varies."""
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
    """Of a set that is not whole only its subsets have results."""
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
    """Of each kind; None if there is nothing to average, or anything is None."""
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
