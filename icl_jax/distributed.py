"""One job of several processes: each joins it before it looks at a device."""

import importlib.util
import os
from pathlib import Path
import re

from icl_jax.config import ConfigError

_SILENCE = 30  # seconds: a process that is silent for longer ends all others of the job


def join_job(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Joins the job that the flags name; without them, that of a TPU slice or of Slurm, if any.

    JAX finds the other hosts of a slice, and the tasks of a Slurm step, by itself.
    """
    given = {
        "--coordinator": coordinator,
        "--num_processes": num_processes,
        "--process_id": process_id,
    }
    missing = [flag for flag, value in given.items() if value is None]
    if len(missing) == len(given):
        if _on_tpu() or _tasks_of_slurm() > 1:
            _initialize()
        return
    if missing:
        raise ConfigError(
            f"{', '.join(given)} go together, {' and '.join(missing)} is missing; on a TPU slice "
            "and under Slurm leave out all of them"
        )
    if not re.fullmatch(r"[^\s:]+:\d{1,5}", coordinator):
        raise ConfigError(f"--coordinator must be HOST:PORT of process 0, got '{coordinator}'")
    if not 0 <= process_id < num_processes:
        raise ConfigError(
            f"--process_id must be from 0 to {num_processes - 1} (--num_processes - 1), got "
            f"{process_id}"
        )
    _initialize(coordinator_address=coordinator, num_processes=num_processes, process_id=process_id)


def _initialize(**job) -> None:
    import jax  # a wrong flag is told without waiting for it

    try:
        jax.distributed.initialize(heartbeat_timeout_seconds=_SILENCE, **job)
    except RuntimeError as error:
        raise ConfigError(f"the processes of the job did not find each other: {error}") from None


def _on_tpu() -> bool:
    """Whether there is a TPU to run on; nothing is opened for it."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if importlib.util.find_spec("libtpu") is None or (platforms and "tpu" not in platforms):
        return False
    return any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*"))


def _tasks_of_slurm() -> int:
    return int(os.environ.get("SLURM_NTASKS", 1)) if "SLURM_PROCID" in os.environ else 1


def job_size() -> int:
    """How many processes the job has; 1 where this process is alone."""
    return _state().num_processes or 1


def job_place() -> int:
    """Which of them this process is, from 0."""
    return _state().process_id or 0


def job_store():
    """The key-value store of the job, which all of its processes reach.

    It lies in process 0, and is what JAX, Orbax and the like tell each other things by.
    """
    return _state().client


def _state():
    from jax._src import distributed  # there is no public door to the store

    return distributed.global_state
