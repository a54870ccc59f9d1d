"""The errors that stop a command, and what the checks of config fields have in common."""

MAX_SEED = 2**32 - 1  # of numpy.random.RandomState


class ConfigError(ValueError):
    """A config that cannot work; the message names every wrong field, what it holds and the fix."""


class StageError(RuntimeError):
    """A stage that found what must not be; the run stops with this message."""


class StoppedError(Exception):
    """A signal stopped the training, which was saved: nothing is wrong, but later stages wait."""


def require_share(found: list[str], config: object, *names: str, below: bool = False) -> None:
    """From 0 to 1; `below`: not 1 itself."""
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
    """One of some words."""
    if value not in choices:
        several = "; several are written \"('a','b')\"" if "," in value else ""
        found.append(f"{name} must be one of {', '.join(choices)}, got '{value}'{several}")
