"""Which numbers of a task are compared, and how each is computed from the task's rows."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from icl_jax.evaluation.bootstrap import Statistic, mean_of, ratio_of, spearman_of
from icl_jax.evaluation.sts_files import SUBSETS

SIGN_TEST, BOOTSTRAP = "sign test", "paired bootstrap"


class Unit(NamedTuple):
    """What a number counts."""

    name: str
    digits: int  # after the point
    better: str = "higher"


SHARE = Unit("share of 1", 4)
SPEARMAN = Unit("Spearman x 100, all", 2)
LOSS = Unit("nats per token", 4, "lower")
GAIN = Unit("nats gained per token", 4)
UNITS = {unit.name: unit for unit in (SHARE, SPEARMAN, LOSS, GAIN)}


class Metric(NamedTuple):
    """A number of one evaluation: a statistic of its items, or the mean of other metrics."""

    unit: Unit
    statistic: Statistic | None = None
    scores: np.ndarray | None = None  # of each item
    test: str = BOOTSTRAP  # of a paired difference; sign test: scores are 0 or 1
    mean_of: tuple[str, ...] = ()

    @property
    def items(self) -> int:
        """How many it is computed from; of a mean those of the others."""
        return 0 if self.scores is None else len(self.scores)

    def value(self, others: dict[str, "Metric"]) -> float:
        """The number itself: each item counts once."""
        if self.mean_of:
            return float(np.mean([others[name].value(others) for name in self.mean_of]))
        return float(self.statistic(np.ones((1, self.items)))[0])


def _counted(right: Sequence[int]) -> Metric:
    right = np.asarray(right, np.float64)
    return Metric(SHARE, mean_of(right), right, SIGN_TEST)


def _questions(rows: list[dict], results: dict) -> dict[str, Metric]:
    f1 = np.array([row["f1"] for row in rows])
    metrics = {
        "exact_match": _counted([row["exact_match"] for row in rows]),
        "f1": Metric(SHARE, mean_of(f1), f1),
    }
    if "harness_exact_match" in rows[0]:
        metrics["harness_exact_match"] = _counted([row["harness_exact_match"] for row in rows])
    return metrics


def _sts(rows: list[dict], results: dict) -> dict[str, Metric]:
    """`all` of each set that is whole, and the average of the seven if all are."""
    metrics = {}
    for name, own in _split(rows, "task").items():
        if results[name]["all"]["spearman"] is not None:
            cosine, gold = (np.array([row[key] for row in own]) for key in ("cosine", "gold"))
            metrics[name] = Metric(SPEARMAN, _times_100(spearman_of(cosine, gold)), cosine)
    if results["average"] is not None:
        metrics["average"] = Metric(SPEARMAN, mean_of=tuple(SUBSETS))
    return metrics


def _times_100(statistic: Statistic) -> Statistic:
    return lambda counts_RN: 100 * statistic(counts_RN)


def _glue(rows: list[dict], results: dict) -> dict[str, Metric]:
    return {
        f"{name} accuracy": _counted([row["prediction"] == row["label"] for row in own])
        for name, own in _split(rows, "task").items()
    }


def _perplexity(rows: list[dict], results: dict) -> dict[str, Metric]:
    return {
        f"loss of {name}": _by_token(own, [row["loss"] for row in own], LOSS)
        for name, own in _split([row for row in rows if row["tokens"]], "source").items()
    }


def _neighbour_gain(rows: list[dict], results: dict) -> dict[str, Metric]:
    """What neighbours before a sentence bring, against nothing and against random sentences."""
    rows = [row for row in rows if row["tokens"]]
    return {
        name: _by_token(rows, [row[side] - row["with_neighbours"] for row in rows], GAIN)
        for name, side in (("gain_neighbours", "alone"), ("neighbour_gain", "with_random"))
    }


def _by_token(rows: list[dict], nats: list[float], unit: Unit) -> Metric:
    return Metric(unit, ratio_of(nats, [row["tokens"] for row in rows]), np.array(nats))


def _split(rows: list[dict], key: str) -> dict[str, list[dict]]:
    parts: dict[str, list[dict]] = {}
    for row in rows:
        parts.setdefault(row[key], []).append(row)
    return parts


class Compared(NamedTuple):
    """How a task is compared."""

    metrics: Callable[[list[dict], dict], dict[str, Metric]]  # from its rows and results
    item: tuple[str, ...]  # the fields of a row that are the item, not what a model made of it


TASKS = {
    "sts": Compared(_sts, ("task", "subset", "sentence1", "sentence2", "gold")),
    "nq_open": Compared(_questions, ("number", "question", "answers", "prompt")),
    "glue": Compared(_glue, ("task", "sentence1", "sentence2", "label")),
    "perplexity": Compared(_perplexity, ("source", "document", "tokens", "bytes")),
    "neighbour_gain": Compared(_neighbour_gain, ("query", "tokens")),
}
