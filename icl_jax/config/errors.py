"""What stops a command, and is told in one line."""


class ConfigError(ValueError):
    """A config that cannot work; the message names every wrong field, what it holds and the fix."""


class StageError(RuntimeError):
    """A stage that found what must not be; the run stops with this message."""


class StoppedError(Exception):
    """A signal stopped the training, which was saved: nothing is wrong, but later stages wait."""
