"""How sure a number is: 95% intervals by resampling the items, and tests of paired differences.

A resample draws as many items as there are, with replacement; it is given by how often each item
was drawn, and a statistic computes its value from that. Intervals and tests cover other items of
the same kind; they say nothing about another training seed.

    first = draw(mean_of(scores_of_first), items, resamples=10_000, seed=0)
    second = draw(mean_of(scores_of_second), items, resamples=10_000, seed=0)
    interval(first), interval(first - second), p_value(first - second, differing=items)

Shape suffixes: R resamples, N items, G groups of equal values.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

# counts_RN, how often each item was drawn -> R values
Statistic = Callable[[np.ndarray], np.ndarray]

FEW_ITEMS = 30  # a bootstrap of fewer is known to be too sure
CELLS = 1 << 16  # of counts that are held at once: 0.5 MB, which a cache holds
ROUNDING = 1e-12  # a difference that comes from the order in which numbers were added


def draw(statistic: Statistic, items: int, resamples: int, seed: int | Sequence[int]) -> np.ndarray:
    """The values (float64) of a statistic on resamples of the items.

    The resamples depend on the seed and the number of items alone: two statistics of the same items
    see the same ones, and the differences of their values are paired.
    """
    if items < 1:
        raise ValueError("there are no items to draw from")
    random = np.random.RandomState(seed)
    block = max(1, CELLS // items)
    values = []
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn_RN = random.randint(0, items, size=(rows, items), dtype=np.int64)
        drawn_RN += np.arange(rows)[:, None] * items
        counts_RN = np.bincount(drawn_RN.ravel(), minlength=rows * items).reshape(rows, items)
        values.append(statistic(counts_RN.astype(np.float64)))
    return np.concatenate(values)


def mean_of(scores: Sequence[float]) -> Statistic:
    """The mean of the items' scores."""
    scores_N = np.asarray(scores, np.float64)
    return lambda counts_RN: _sums(counts_RN, scores_N) / len(scores_N)


def ratio_of(numerators: Sequence[float], denominators: Sequence[float]) -> Statistic:
    """The sum of one quantity by the sum of another, as nats by tokens."""
    above_N, below_N = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    return lambda counts_RN: _sums(counts_RN, above_N) / _sums(counts_RN, below_N)


def spearman_of(first: Sequence[float], second: Sequence[float]) -> Statistic:
    """Spearman's correlation, equal values at their mean rank; 0 where all values are equal."""
    first_N, second_N = _groups(first), _groups(second)
    order_N = np.argsort(first_N, kind="stable")  # so that the first needs no sorting any more
    rank_first, rank_second = _ranks_of(first_N[order_N]), _ranks_of(second_N[order_N])

    def spearman(counts_RN: np.ndarray) -> np.ndarray:
        counts_RN = np.take(counts_RN, order_N, axis=1)
        (a_RN, aa_R), (b_RN, bb_R) = rank_first(counts_RN), rank_second(counts_RN)
        ab_R = np.einsum("rn,rn,rn->r", counts_RN, a_RN, b_RN)
        scale_R = np.sqrt(aa_R * bb_R)
        return np.divide(ab_R, scale_R, out=np.zeros_like(ab_R), where=scale_R > 0)

    return spearman


def interval(values: np.ndarray) -> list[float]:
    """The 95% percentile interval: 2.5% of the resamples are below it, and 2.5% above."""
    return [float(end) for end in np.percentile(values, (2.5, 97.5))]


def mean_interval(scores: Sequence[float], resamples: int, seed: int) -> list[float] | None:
    """The 95% interval of the mean of some items' scores; None: there are fewer than 2."""
    return ratio_interval(scores, np.ones(len(scores)), resamples, seed)


def share_interval(scores: Sequence[float], resamples: int, seed: int) -> list[float] | None:
    """The same for scores from 0 to 1; exact if all are equal, such as 0 right answers."""
    if len(scores) > 1 and are_alike(scores):
        return alike_interval(float(scores[0]), len(scores), 0.0, 1.0)
    return mean_interval(scores, resamples, seed)


def are_alike(scores: Sequence[float]) -> bool:
    """Whether all are equal, so that an interval of resamples would have no width."""
    return bool(np.ptp(np.asarray(scores, np.float64)) <= ROUNDING)


def alike_interval(value: float, items: int, low: float, high: float) -> list[float]:
    """The 95% interval of the mean of items that are all `value`, of scores from `low` to `high`.

    If none of so many differs, then at most a certain share of the population does (Clopper and
    Pearson's exact bound, 2.5% on each side), and at worst that share is at an end of the range.
    """
    others = 1 - 0.025 ** (1 / items)
    return [value - others * (value - low), value + others * (high - value)]


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], resamples: int, seed: int
) -> list[float] | None:
    """The 95% interval of a ratio of sums; None: fewer than 2 items have a denominator."""
    if np.count_nonzero(denominators) < 2:
        return None
    with np.errstate(invalid="ignore", divide="ignore"):  # only items without one drawn
        values = draw(ratio_of(numerators, denominators), len(denominators), resamples, seed)
    return interval(values[np.isfinite(values)])


def show_interval(ends: Sequence[float] | None, show: Callable[[float], str]) -> str:
    """LOW to HIGH, for a table."""
    return " to ".join(map(show, ends)) if ends else "-"


def note_few_items(*counts: int) -> list[str]:
    """What a table says about intervals over very few items; nothing if there are enough."""
    few = [count for count in counts if 2 <= count < FEW_ITEMS]
    notes = [f"With only {min(few)} items, intervals are too narrow."] if few else []
    return notes + ["Fewer than 2 items have no interval."] * (min(counts) < 2)


def p_value(values: np.ndarray, differing: int) -> float:
    """Two-sided p-value of "there is no difference", from the differences of the resamples.

    Twice the share of resamples on the other side of 0, or on it: below 0.05 if the 95% interval
    excludes 0. The observed difference counts as one resample, so p is never 0; it is never less
    than a sign test could give for so many differing items, because resamples of a few items are
    all much the same.
    """
    beyond = min(np.sum(values <= ROUNDING), np.sum(values >= -ROUNDING))
    share = max((beyond + 1) / (len(values) + 1), 0.5**differing)
    return float(min(1.0, 2 * share))


def sign_test(differences: Sequence[float]) -> float:
    """Two-sided exact p-value of "where two arms differ, each is as often ahead".

    Items on which they are equal do not count. For scores of 0 or 1 this is McNemar's exact test.
    """
    differences = np.asarray(differences, np.float64)
    ahead, behind = int(np.sum(differences > 0)), int(np.sum(differences < 0))
    return float(stats.binomtest(ahead, ahead + behind).pvalue) if ahead + behind else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: at 0.05, the chance of any false positive among them is 5%."""
    p_values = np.asarray(p_values, np.float64)
    order = np.argsort(p_values, kind="stable")
    times = np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p_values[order] * times))
    return [float(p) for p in adjusted]


def _sums(counts_RN: np.ndarray, values_N: np.ndarray) -> np.ndarray:
    # not @: the order in which BLAS adds, and so the last digit, depends on its threads
    return np.einsum("rn,n->r", counts_RN, values_N)


def _groups(values: Sequence[float]) -> np.ndarray:
    """The number of each item's value among the different values, the lowest first."""
    return np.unique(np.asarray(values, np.float64), return_inverse=True)[1]


def _ranks_of(group_N: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """counts_RN -> each item's rank in its resample less the mean rank, and their squares' sum."""
    items = len(group_N)
    order_N = np.argsort(group_N, kind="stable")
    first_G = np.searchsorted(group_N[order_N], np.arange(group_N.max() + 1))
    in_order, no_ties = (np.diff(group_N) >= 0).all(), len(first_G) == items

    def ranks(counts_RN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sorted_RN = counts_RN if in_order else np.take(counts_RN, order_N, axis=1)
        size_RG = sorted_RN if no_ties else np.add.reduceat(sorted_RN, first_G, axis=1)
        # the mean rank of a group is (size + 1) / 2 above what is below it; that of all (N + 1) / 2
        rank_RG = np.cumsum(size_RG, axis=1) - (size_RG + items) / 2
        squares_R = np.einsum("rg,rg,rg->r", size_RG, rank_RG, rank_RG)
        rank_RN = rank_RG if in_order and no_ties else np.take(rank_RG, group_N, axis=1)
        return rank_RN, squares_R

    return ranks
