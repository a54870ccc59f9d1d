"""The numbers of a comparison, the differences to the reference, and which are significant."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from icl_jax.evaluation import bootstrap
from icl_jax.evaluation.bootstrap import ROUNDING, holm
from icl_jax.evaluation.metric import SHARE, Metrics, Unit
from icl_jax.workers.local import progress_bar

LEVEL = 0.05  # of significance
_SEED = 0


def make_cells(
    task: str, metrics: dict[str, list[Metrics]], names: list[str], reference: str, resamples: int
) -> list[dict]:
    """One cell for each of these metrics and each arm; p-values are not adjusted yet.

    `metrics` are those of each arm's seeds.
    """
    seeds, drawn = sum(map(len, metrics.values())), {}
    with progress_bar(total=len(names) * seeds, unit=" statistics", desc=f"{task}") as bar:
        for arm, held in metrics.items():
            drawn[arm] = [_draw(seed, names, resamples, bar.update) for seed in held]
    cells = []
    for name in names:
        values = {arm: np.mean([d[name] for d in drawn[arm]], axis=0) for arm in metrics}
        of_reference = _cell(name, metrics[reference], values[reference])
        for arm in metrics:
            cell = _cell(name, metrics[arm], values[arm])
            if arm != reference:
                differences = _finite(values[arm] - values[reference])
                by_item = _by_item(name, metrics[arm]) - _by_item(name, metrics[reference])
                cell |= {
                    "difference": cell["value"] - of_reference["value"],
                    "difference_interval95": _interval(
                        metrics[arm][0][name].unit, differences, by_item, lowest=-1.0
                    ),
                    **_test(name, metrics[arm], metrics[reference], differences, by_item),
                    "p_seeds": p_over_seeds(cell["seeds"], of_reference["seeds"]),
                }
            cells.append({"arm": arm, "task": task, "metric": name} | cell)
    return cells


def _draw(seed: Metrics, names: list[str], resamples: int, progress) -> dict[str, np.ndarray]:
    """The values of one evaluation's metrics on resamples; parts of a mean are drawn separately."""
    drawn = {}
    for number, name in enumerate(names):
        metric = seed[name]
        if metric.mean_of:
            drawn[name] = np.mean([drawn[part] for part in metric.mean_of], axis=0)
        else:
            with np.errstate(invalid="ignore", divide="ignore"):  # only texts of size 0 drawn
                of_items = metric.statistic, metric.items
                drawn[name] = bootstrap.draw(*of_items, resamples, [_SEED, number])
        progress(1)
    return drawn


def _cell(name: str, seeds: list[Metrics], drawn: np.ndarray) -> dict:
    metric, values = seeds[0][name], [seed[name].value(seed) for seed in seeds]
    value = float(np.mean(values))
    return {
        "value": value,
        "interval95": _interval(metric.unit, _finite(drawn), _by_item(name, seeds), lowest=0.0),
        "seeds": values,
        "standard_deviation": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "items": sum(seeds[0][part].items_with_size for part in metric.mean_of or (name,)),
        "right": value * metric.items if metric.counted else None,
        "unit": metric.unit.name,
        "better": metric.unit.better,
        "difference": None,
        "difference_interval95": None,
        "test": None,
        "p": None,
        "p_holm": None,
        "p_seeds": None,
        "real": None,
        "verdict": None,
    }


def _interval(unit: Unit, drawn: np.ndarray, by_item: np.ndarray, lowest: float) -> list[float]:
    """From the resamples; exact for shares (or their differences) that are equal for all items."""
    if unit == SHARE and bootstrap.are_alike(by_item):
        return bootstrap.alike_interval(float(by_item[0]), len(by_item), lowest, 1.0)
    return bootstrap.interval(drawn)


def _test(
    name: str,
    seeds: list[Metrics],
    of_reference: list[Metrics],
    drawn: np.ndarray,
    by_item: np.ndarray,
) -> dict:
    """How likely such a difference is by chance, over items."""
    metric = seeds[0][name]
    if metric.counted and len(seeds) == len(of_reference) == 1:
        return {"test": "sign test", "p": bootstrap.sign_test(by_item)}
    p = bootstrap.p_value(drawn, differing=np.count_nonzero(by_item))
    return {"test": "paired bootstrap", "p": p}


def _by_item(name: str, seeds: list[Metrics]) -> np.ndarray:
    """The score of each item, the mean over seeds; for a mean the scores of all its parts."""
    parts = seeds[0][name].mean_of or (name,)
    scores = [np.mean([seed[part].scores for seed in seeds], axis=0) for part in parts]
    return np.concatenate(scores)


def _finite(drawn: np.ndarray) -> np.ndarray:
    return drawn[np.isfinite(drawn)]


def p_over_seeds(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Two-sided p-value of Welch's t-test of the values of two arms' seeds.

    None if an arm has one seed, or if the seeds of each arm are all equal: the spread of seeds is
    then unknown.
    """
    if min(len(first), len(second)) < 2 or max(np.ptp(first), np.ptp(second)) <= ROUNDING:
        return None
    moments = [f(values) for values in (first, second) for f in (np.mean, _deviation, len)]
    return float(stats.ttest_ind_from_stats(*moments, equal_var=False).pvalue)


def judge(cells: list[dict], reference: str) -> None:
    """Adds p-values adjusted for all comparisons, and whether each difference is significant."""
    tested = [cell for cell in cells if cell["p"] is not None]
    of_reference = {_key(cell): cell for cell in cells if cell["arm"] == reference}
    for cell, p_holm in zip(tested, holm([cell["p"] for cell in tested]), strict=True):
        cell["p_holm"] = p_holm
        cell["real"], cell["verdict"] = _verdict(cell, of_reference[_key(cell)])


def _verdict(cell: dict, reference: dict) -> tuple[bool, str]:
    if abs(cell["difference"]) <= ROUNDING:
        return False, "no difference"
    side = "better" if (cell["difference"] > 0) == (cell["better"] == "higher") else "worse"
    single = [held["arm"] for held in (cell, reference) if len(held["seeds"]) == 1]
    over_seeds = cell["p_seeds"] is not None and cell["p_seeds"] < LEVEL
    if single:
        tested = f"on these items (1 seed{'' if len(single) == 2 else f' of {single[0]}'})"
    else:
        tested = "over items and seeds"
    if cell["p_holm"] < LEVEL:
        if single or over_seeds:
            return True, f"{side}, significant at {LEVEL} {tested}"
        equal = " (they are equal)" if cell["p_seeds"] is None else ""
        return False, f"{side} on these seeds, not significant over seeds{equal}"
    if cell["p"] < LEVEL and (single or over_seeds):
        return False, f"{side}, significant at {LEVEL} {tested} only before Holm's adjustment"
    return False, "not significant"


def _key(cell: dict) -> tuple[str, str]:
    return cell["task"], cell["metric"]


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1))
