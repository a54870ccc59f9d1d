"""Which numbers of a task are compared, and how each is computed from the task's rows."""

from collections.abc import Callable, Sequence
import math
from typing import NamedTuple

import numpy as np

from icl_jax.evaluation.bootstrap import Statistic, mean_of, ratio_of, spearman_of
from icl_jax.evaluation.tasks.sts.files import SUBSETS

_BITS = 1 / math.log(2)  # of a nat


class Unit(NamedTuple):
    """What a number counts."""

    name: str
    digits: int  # after the point
    better: str = "higher"
    by_token: bool = False  # means something only where all arms have the same tokens


SHARE = Unit("share of 1", 4)
SPEARMAN = Unit("Spearman x 100, all", 2)
LOSS = Unit("nats per token", 4, "lower", by_token=True)
BY_CHARACTER = Unit("bits per character", 4, "lower")
BY_BYTE = Unit("bits per byte", 4, "lower")
GAIN = Unit("nats gained per token", 4, by_token=True)
UNITS = {u.name: u for u in (SHARE, SPEARMAN, LOSS, BY_CHARACTER, BY_BYTE, GAIN)}


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
        """How many can be drawn; of a mean those of the others."""
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


def _counted(right: Sequence[int]) -> Metric:
    right = np.asarray(right, np.float64)
    return Metric(SHARE, mean_of(right), right, counted=True)


# Of each task: name -> metric, or None where the evaluation holds the number back.
Metrics = dict[str, Metric | None]


def _questions(rows: list[dict], results: dict) -> Metrics:
    f1 = np.array([row["f1"] for row in rows])
    metrics = {
        "exact_match": _counted([row["exact_match"] for row in rows]),
        "f1": Metric(SHARE, mean_of(f1), f1),
    }
    if "harness_exact_match" in rows[0]:
        metrics["harness_exact_match"] = _counted([row["harness_exact_match"] for row in rows])
    return metrics


def _sts(rows: list[dict], results: dict) -> Metrics:
    """`all` of each set that is whole, and the average of the seven if all are."""
    metrics: Metrics = {}
    for name, own in _split(rows, "task").items():
        cosine, gold = (np.array([row[key] for row in own]) for key in ("cosine", "gold"))
        held_back = results[name]["all"]["spearman"] is None
        whole = Metric(SPEARMAN, _times_100(spearman_of(cosine, gold)), cosine)
        metrics[name] = None if held_back else whole
    held_back = results["average"] is None
    metrics["average"] = None if held_back else Metric(SPEARMAN, mean_of=tuple(SUBSETS))
    return metrics


def _times_100(statistic: Statistic) -> Statistic:
    return lambda counts_RN: 100 * statistic(counts_RN)


def _glue(rows: list[dict], results: dict) -> Metrics:
    guesses = {"accuracy": "prediction", "accuracy by token": "prediction_normalised"}
    return {
        f"{name} {accuracy}": _counted([row[guess] == row["label"] for row in own])
        for name, own in _split(rows, "task").items()
        for accuracy, guess in guesses.items()
    }


def _perplexity(rows: list[dict], results: dict) -> Metrics:
    metrics = {}
    for name, own in _split(rows, "source").items():
        bits = [row["text_loss"] * _BITS for row in own]
        loss = [row["loss"] for row in own]
        metrics[f"loss of {name}"] = _by_size(own, loss, "tokens", LOSS)
        metrics[f"loss of {name}, by character"] = _by_size(own, bits, "characters", BY_CHARACTER)
        metrics[f"loss of {name}, by byte"] = _by_size(own, bits, "bytes", BY_BYTE)
    return metrics


def _neighbour_gain(rows: list[dict], results: dict) -> Metrics:
    """What neighbours before a sentence bring, against nothing and against random sentences."""
    sides = {"gain_neighbours": "alone", "neighbour_gain": "with_random"}
    return {
        name: _by_size(rows, [row[side] - row["with_neighbours"] for row in rows], "tokens", GAIN)
        for name, side in sides.items()
    }


def _by_size(rows: list[dict], losses: list[float], size: str, unit: Unit) -> Metric | None:
    """Losses by what `size` counts; a text without a token to predict, its loss 0, has none."""
    sizes = np.array([row[size] if row["tokens"] else 0 for row in rows], np.float64)
    return Metric(unit, ratio_of(losses, sizes), np.array(losses), sizes) if sizes.any() else None


def _split(rows: list[dict], key: str) -> dict[str, list[dict]]:
    parts: dict[str, list[dict]] = {}
    for row in rows:
        parts.setdefault(row[key], []).append(row)
    return parts


class Compared(NamedTuple):
    """How a task is compared."""

    metrics: Callable[[list[dict], dict], Metrics]  # from its rows and results
    item: tuple[str, ...]  # the fields of a row that are the item, not what a model made of it


TASKS = {
    "sts": Compared(_sts, ("task", "subset", "sentence1", "sentence2", "gold")),
    "nq_open": Compared(_questions, ("number", "question", "answers", "prompt")),
    "glue": Compared(_glue, ("task", "sentence1", "sentence2", "label")),
    "perplexity": Compared(_perplexity, ("source", "document")),
    "neighbour_gain": Compared(_neighbour_gain, ("query", "neighbour_ids", "random_ids", "tokens")),
}
