"""What the trained networks share: how a point is made, and how their results are shown."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from icl_jax.sandboxes.dyck.trained import Training, train
from icl_jax.sandboxes.experiment import Results
from icl_jax.sandboxes.points import Point

CORE = 2e10  # operations a second of one core, for guesses of time
START = 15.0  # seconds to compile a training and its tests
METRICS = {"all": "(i)", "after_closings": "(ii)", "sure": "(iii)"}
EXPLAINED = (
    "Accuracy, in percent of the places at which a bracket is open: (i) of the closings, the right "
    "one is most probable; (ii) the same after closings only, since an opening says itself what "
    "closes it; (iii) the right one has more than 80% of the probability of all closings. "
)
# Arrays too long for results.json, which stay in the folders of the points.
LONG = ("attention", "layers", "losses", "by_length", "shown")


def trained_point(name: str, **fields) -> Point:
    """A point that trains a network."""
    training = Training(**fields)
    return Point(name, train, dataclasses.asdict(training), START + training.flops() / CORE)


def accuracy(results: Results, point: str, test: str, metric: str) -> list[float]:
    """That of every seed; `test` is NEAR or FAR."""
    return results[point]["tests"][test][metric]


def show(values: Sequence[float], digits: int = 2) -> str:
    """Median and range over seeds."""
    low, middle, high = (f"{value:.{digits}f}" for value in np.percentile(values, (0, 50, 100)))
    return middle if low == high else f"{middle} ({low} to {high})"


def numbers(results: Results, points: Sequence[Point]) -> dict:
    """What `results.json` holds of the points: settings, and all but the long arrays."""
    return {
        point.name: {"settings": point.arguments}
        | {key: value for key, value in results[point.name].items() if key not in LONG}
        | {"final_loss": [losses[-1] for losses in results[point.name]["losses"]]}
        for point in points
    }
