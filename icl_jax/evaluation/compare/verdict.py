"""Whether a difference is real: over items, and over seeds where both arms have several."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from icl_jax.evaluation.bootstrap import ROUNDING, holm

LEVEL = 0.05


def p_over_seeds(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Two-sided p-value of Welch's t-test of the values of two arms' seeds.

    None where an arm has one seed, or where the seeds of each arm are all equal: how far seeds
    scatter is then unknown.
    """
    if min(len(first), len(second)) < 2 or max(np.ptp(first), np.ptp(second)) <= ROUNDING:
        return None
    told = [f(values) for values in (first, second) for f in (np.mean, _deviation, len)]
    return float(stats.ttest_ind_from_stats(*told, equal_var=False).pvalue)


def judge(cells: list[dict], reference: str) -> None:
    """Adds the p-values that take all comparisons into account, whether it is real, and a word."""
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
            return True, f"{side}, real at {LEVEL} {tested}"
        equal = " (they are equal)" if cell["p_seeds"] is None else ""
        return False, f"{side} on these seeds, not shown over seeds{equal}"
    if cell["p"] < LEVEL and (single or over_seeds):
        return False, f"{side} at {LEVEL} {tested} by itself, not among all"
    return False, "not shown"


def _key(cell: dict) -> tuple[str, str]:
    return cell["task"], cell["metric"]


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1))
