"""One job of several processes: each joins it before it looks at a device, and all end with one."""

from collections.abc import Iterator
import contextlib
import importlib.util
import os
from pathlib import Path
import re
import socket
import subprocess
import sys
import time
import traceback

from icl_jax.cli import STOPPED
from icl_jax.config import ConfigError

_SILENCE = 30  # seconds: a process that is silent for longer ends all others of the job
_LAST_WORDS = 3  # seconds: the first process keeps what the others hear of an error by
_LOST_CODE = 134  # as where JAX notices it first, and aborts
# In what JAX says when another process is gone.
_LOST = re.compile(
    r"gloo|heartbeat|coordination.?service|connection (closed|reset)|preempted", re.I
)
_GO_ON = "What was saved is kept: start all processes again with the same command, it goes on there"
# Reads until the process that holds the other end is gone; an orderly end sends a word before.
_WITNESS = "import sys\nsys.stdin.buffer.read() or print(sys.argv[1], file=sys.stderr)"


@contextlib.contextmanager
def ends_with_job() -> Iterator[None]:
    """Whoever fails inside leaves the job at once and says why, so that all others end too.

    Else the others would wait for it, and it for them: JAX ends a job together or not at all.
    """
    witness = _call_witness()
    try:
        yield
    except BaseException as error:
        if witness is None:  # one process: nobody waits
            raise
        code = _tell(error)
        witness.communicate(b"ended")
        sys.stdout.flush()
        sys.stderr.flush()
        if code:
            time.sleep(_LAST_WORDS if job_place() == 0 else 0)
            os._exit(code)
        raise
    if witness is not None:
        witness.communicate(b"ended")


def _call_witness() -> subprocess.Popen | None:
    """Of a job, a small process that tells if this one is killed, or ended by JAX in C++."""
    if job_size() == 1:
        return None
    told = (
        f"error: process {job_place()} of {job_size()} on {socket.gethostname()} "
        "is gone: it was killed (for lack of memory?), or another process of the job was, and all "
        f"end with it. {_GO_ON}"
    )
    command = [sys.executable, "-I", "-S", "-c", _WITNESS, told]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _tell(error: BaseException) -> int:
    """Says why this process leaves its job, unless that was said; its exit code, 0 if all do."""
    if isinstance(error, SystemExit):
        return 0 if error.code == STOPPED else error.code  # all stop at the same step
    if _LOST.search(str(error)):
        why = " ".join(str(error).split())[:200]
        print(
            "error: another process of this job is gone, so this one ends too; its own output "
            f"says why. {_GO_ON} ({why})",
            file=sys.stderr,
        )
        return _LOST_CODE
    traceback.print_exception(error)
    return 1


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
