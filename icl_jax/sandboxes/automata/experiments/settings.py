"""What the trained networks share: their settings in both sizes, and how a point is made."""

from collections.abc import Callable
import dataclasses

from icl_jax.sandboxes.automata.trained import Training, Trial, train
from icl_jax.sandboxes.experiment import Results
from icl_jax.sandboxes.points import Point

# Liu 2024, 3.4.5.3, in full; and what learns the same in minutes on two cores.
GPT = {
    "mini": {
        "width": 64, "hidden": 64, "heads": 4, "batch": 64, "learning_rate": 2e-3,
        "weight_decay": 1e-4, "steps": 4000, "seeds": 5,
    },
    "paper": {
        "width": 512, "hidden": 512, "heads": 8, "batch": 16, "learning_rate": 1e-4,
        "weight_decay": 1e-4, "steps": 100_000, "seeds": 20,
    },
}  # fmt: skip
LSTM = {
    "mini": {
        "network": "lstm", "layers": 1, "width": 64, "hidden": 128, "batch": 64,
        "learning_rate": 3e-3, "weight_decay": 1e-9, "steps": 1200, "seeds": 5,
    },
    "paper": {
        "network": "lstm", "layers": 1, "width": 64, "hidden": 128, "batch": 64,
        "learning_rate": 3e-3, "weight_decay": 1e-9, "steps": 20_000, "seeds": 20,
    },
}  # fmt: skip
SCRATCHPAD = {
    "mini": GPT["mini"] | {"form": "scratchpad", "width": 32, "hidden": 32, "learning_rate": 3e-3},
    "paper": GPT["paper"] | {"form": "scratchpad", "steps": 40_000},
}
CORE = 4.5e10  # operations a second of one core, for guesses of time
START = 20.0  # seconds to compile a training and its tests


def trained_point(name: str, work: Callable[..., dict] = train, **fields) -> Point:
    """A point that trains a network."""
    training = Training(**fields)
    arguments = dataclasses.asdict(training)
    return Point(name, work, arguments, START + training.flops() / CORE)


def tests(length: int, *prefixes: int) -> tuple[Trial, ...]:
    """A test on usual rows, and on their prefixes."""
    return (Trial(length, prefixes),)


def accuracies(results: Results, point: str, test: str) -> list[float]:
    """The accuracy of every seed."""
    return results[point]["tests"][test]["accuracy"]
