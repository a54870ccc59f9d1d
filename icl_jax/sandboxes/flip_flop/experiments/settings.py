"""What the experiments share: the languages and networks in both sizes, and how a point is made."""

from collections.abc import Callable
import dataclasses

from icl_jax.sandboxes.flip_flop.trained import Training, Trial, train
from icl_jax.sandboxes.points import Point

ID, SPARSE, DENSE = "in_distribution", "sparse", "dense"
OOD = (SPARSE, DENSE)

# Liu 2024, 3.5.6.2, in full; and what shows the same in a minute a seed on one core.
LANGUAGE = {
    "mini": {"length": 64, "ignore": (0.5,)},
    "paper": {"length": 512, "ignore": (0.8,)},
}
TESTS = {
    "mini": (Trial(ID, 0.5, 800), Trial(SPARSE, 0.95, 4000), Trial(DENSE, 0.1, 400)),
    "paper": (Trial(ID, 0.8, 4000), Trial(SPARSE, 0.98, 100_000), Trial(DENSE, 0.1, 4000)),
}
GPT = {
    "mini": {
        "layers": 2, "width": 64, "heads": 4, "position": "alibi", "batch": 32, "steps": 800,
        "learning_rate": 2e-3,
    },
    "paper": {
        "layers": 6, "width": 512, "heads": 8, "position": "learned", "batch": 16, "steps": 10_000,
        "learning_rate": 3e-4,
    },
}  # fmt: skip
LSTM_TESTS = {  # more rows, so that no error says something
    "mini": (Trial(ID, 0.5, 2600), Trial(SPARSE, 0.95, 12_000), Trial(DENSE, 0.1, 1600)),
    "paper": TESTS["paper"],
}
LSTM_FIELDS = {
    "mini": {
        "network": "lstm", "layers": 1, "width": 64, "hidden": 64, "batch": 32, "steps": 300,
        "learning_rate": 3e-3, "seeds": 10,
    },
    "paper": {
        "network": "lstm", "layers": 1, "width": 128, "hidden": 128, "batch": 16, "steps": 500,
        "learning_rate": 3e-4, "seeds": 100,
    },
}  # fmt: skip
SEEDS = {"mini": 5, "paper": 25}
MORE_SEEDS = {"mini": 10, "paper": 25}  # of the arms that claims are about
POSITIONS = {
    "learned": "learned positions", "alibi": "ALiBi", "sinusoidal": "sinusoidal positions",
    "rotary": "rotary positions", "none": "no positions",
}  # fmt: skip
LSTM = "LSTM"
CORE = 4.5e10  # operations a second of one core, for guesses of time
START = 20.0  # seconds to compile a training and its tests


def baseline(scale: str) -> str:
    """The arm that the others differ from in one thing."""
    return POSITIONS[GPT[scale]["position"]]


def arm(scale: str, name: str, seeds: int, **changes) -> Point:
    """A point that trains the baseline with changes."""
    fields = LANGUAGE[scale] | {"tests": TESTS[scale], "seeds": seeds} | GPT[scale] | changes
    return trained_point(name, train, Training(**fields))


def trained_point(name: str, work: Callable[..., dict], training) -> Point:
    """A point that trains what a dataclass says."""
    return Point(name, work, dataclasses.asdict(training), START + training.flops() / CORE)


def positions_arm(scale: str, position: str) -> Point:
    """The baseline with these positions, or itself."""
    seeds = MORE_SEEDS if position in ("learned", "alibi") else SEEDS
    return arm(scale, POSITIONS[position], seeds[scale], position=position)


def baseline_arm(scale: str) -> Point:
    """The baseline itself: every experiment that compares with it names the same point."""
    return positions_arm(scale, GPT[scale]["position"])


def lstm_arm(scale: str) -> Point:
    """The recurrent network."""
    fields = LANGUAGE[scale] | {"tests": LSTM_TESTS[scale]} | LSTM_FIELDS[scale]
    return trained_point(LSTM, train, Training(**fields))
