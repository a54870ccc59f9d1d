"""The workdir of the run that is evaluated, whose design may be asked for."""

from pathlib import Path

from icl_jax.config import ConfigError
from icl_jax.evaluation.subject import Subject


def own_workdir(subject: Subject, field: str) -> Path:
    """Stops where the model is no run; `field` is where the user may name another workdir."""
    if subject.kind != "run":
        raise ConfigError(
            f"{subject.path} is no run with a design of its own; name the workdir of one or a "
            f"folder of records in {field}"
        )
    path = Path(subject.path)
    if path.parent.name == "checkpoints":
        return path.parent.parent
    return path.parent if path.name == "checkpoints" else path
