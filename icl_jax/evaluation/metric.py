"""A number of a task as comparisons compute it: a statistic of items, and the unit it is in."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from icl_jax.evaluation.bootstrap import Statistic, mean_of, ratio_of


class Unit(NamedTuple):
    """What a number counts."""

    name: str
    digits: int = 4  # after the point
    better: str = "higher"
    by_token: bool = False  # means something only where all arms have the same tokens


SHARE = Unit("share of 1", 4)


class Metric(NamedTuple):
    """A number of one evaluation: a statistic of its items, or the mean of other metrics."""

    unit: Unit
    statistic: Statistic | None = None
    scores: np.ndarray | None = None  # of each item
    sizes: np.ndarray | None = None  # of each item, where scores are summed and divided by them
    counted: bool = False  # scores are 0 or 1, wrong or right
    mean_of: tuple[str, ...] = ()

    @property
    def items(self) -> int:
        """How many can be drawn; for a mean 0."""
        return 0 if self.scores is None else len(self.scores)

    @property
    def items_with_size(self) -> int:
        """How many it is computed from: a text without a token to predict adds nothing."""
        return self.items if self.sizes is None else int(np.count_nonzero(self.sizes))

    def value(self, others: dict[str, "Metric"]) -> float:
        """The number itself: each item counts once."""
        if self.mean_of:
            return float(np.mean([others[name].value(others) for name in self.mean_of]))
        return float(self.statistic(np.ones((1, self.items)))[0])


def share_of_right(right: Sequence[int]) -> Metric:
    """The share of items that are right."""
    right = np.asarray(right, np.float64)
    return Metric(SHARE, mean_of(right), right, counted=True)


# Name -> metric, or None where an evaluation withholds the number.
Metrics = dict[str, Metric | None]


def by_size(rows: list[dict], losses: list[float], size: str, unit: Unit) -> Metric | None:
    """Losses by what `size` counts; a text without a token to predict counts nothing."""
    sizes = np.array([row[size] if row["tokens"] else 0 for row in rows], np.float64)
    return Metric(unit, ratio_of(losses, sizes), np.array(losses), sizes) if sizes.any() else None


def split(rows: list[dict], key: str) -> dict[str, list[dict]]:
    """The rows by their value of a key."""
    parts: dict[str, list[dict]] = {}
    for row in rows:
        parts.setdefault(row[key], []).append(row)
    return parts


def show_metric(metric: str) -> str:
    """The name of a metric, as words."""
    return metric.replace("_", " ").replace("f1", "F1")
