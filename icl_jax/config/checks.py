"""The errors that stop a command, and the shared checks of config fields."""

MAX_SEED = 2**32 - 1  # of numpy.random.RandomState


class ConfigError(ValueError):
    """A config that cannot work; the message names every wrong field, its value and the fix."""


class StageError(RuntimeError):
    """A stage that cannot continue; the run stops with this message."""


class StoppedError(Exception):
    """A signal stopped the training after it was saved: no fault, but later stages must wait."""


def require_share(found: list[str], config: object, *names: str, below: bool = False) -> None:
    """From 0 to 1; with `below`, below 1."""
    for name in names:
        value = getattr(config, name)
        if not 0 <= value <= 1 or (below and value == 1):
            found.append(f"{name} must be from 0 to 1{' but below' * below}, got {value}")


def require_positive(found: list[str], config: object, *names: str) -> None:
    """At least 1, or None."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < 1:
            found.append(f"{name} must be at least 1, got {value}")


def require_at_least_0(found: list[str], config: object, *names: str) -> None:
    """At least 0."""
    for name in names:
        if getattr(config, name) < 0:
            found.append(f"{name} must be at least 0, got {getattr(config, name)}")


def require_choice(found: list[str], name: str, value: str, choices: tuple[str, ...]) -> None:
    """One of the given words."""
    if value not in choices:
        several = "; several are written \"('a','b')\"" if "," in value else ""
        found.append(f"{name} must be one of {', '.join(choices)}, got '{value}'{several}")
