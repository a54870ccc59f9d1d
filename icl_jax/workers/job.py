"""A job of several processes: all run the same program, wait for each other, and end together.

Each process joins the job before it looks at a device. Work that must be done once is done by the
first process (`on_first`), shards are dealt to all (`workers/shards.py`), and what one of them
wrote is in files that all of them see. They wait for each other at barriers of JAX's coordination
service, for as long as it takes: if a process dies, JAX ends those that wait.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
import contextlib
import importlib.util
import itertools
import os
from pathlib import Path
import re
import socket
import subprocess
import sys
import time
import traceback
from typing import TypeVar
import zlib

from icl_jax.cli import STOPPED
from icl_jax.config import ConfigError, StageError

T = TypeVar("T")

_SILENCE = 30  # seconds: a process that is silent for longer ends all others of the job
_PATIENCE = 7 * 24 * 3600  # seconds at a barrier: a step may take long, and a death ends the wait
_LAST_WORDS = 3  # seconds: time for the others to hear of an error before the first process leaves
_LOST_CODE = 134  # the same as when JAX is first to notice, and aborts
# In what JAX says when another process is gone.
_LOST = re.compile(
    r"gloo|heartbeat|coordination.?service|connection (closed|reset)|preempted", re.I
)
_CONTINUE = (
    "Everything that was saved is kept: start all processes again with the same command to continue"
)
# Reads until the process that holds the other end is gone; an orderly end sends a word before.
_WITNESS = "import sys\nsys.stdin.buffer.read() or print(sys.argv[1], file=sys.stderr)"

_barriers = itertools.count()  # in step on all processes, which all run the same program
_alone = False  # while the first process works and the others wait


def job_size() -> int:
    """How many processes work together here; 1 without a job, and inside `on_first`."""
    if _alone or "jax" not in sys.modules:  # to join a job takes JAX
        return 1
    import jax

    return jax.process_count() if jax.distributed.is_initialized() else 1


def job_place() -> int:
    """Which of them this process is, from 0."""
    if job_size() == 1:
        return 0
    import jax

    return jax.process_index()


def barrier(name: str) -> None:
    """Returns once every process of the job is here; `name` must be the same on all of them."""
    gather(name, 0)


def gather(name: str, number: int) -> list[int]:
    """A barrier, too: the number that each process of the job gives (32 bits), in their order."""
    if job_size() == 1:
        return [number]
    from jax.experimental import multihost_utils
    import numpy as np
    from orbax.checkpoint import multihost

    wait, key = multihost.get_barrier_sync_fn(), f"icl_jax/{next(_barriers)}"
    thread = ThreadPoolExecutor(1)  # so that this one hears Ctrl-C meanwhile
    thread.submit(wait, key=key, timeout_ms=1000 * _PATIENCE).result()
    thread.shutdown()
    given = np.array([job_place(), zlib.crc32(name.encode()) >> 1, number], np.int32)
    held = sorted(multihost_utils.process_allgather(given).tolist())
    if len({where for _, where, _ in held}) > 1:
        raise RuntimeError(f"the processes of this job are out of step; this one is at '{name}'")
    return [number for _, _, number in held]


def agree(name: str, seen: bool) -> bool:
    """`seen`; stops where one process of the job sees something that another does not."""
    if len({*gather(name, int(seen))}) > 1:
        raise StageError(
            f"the hosts of this job do not see the same files ({name}); expected a --workdir that "
            "all of them share (NFS: mount it with lookupcache=positive)"
        )
    return seen


def on_first(name: str, work: Callable[..., T], *arguments) -> T | None:
    """The first process calls `work` as if it were alone, while the others wait.

    It returns what `work` does, the others None: what they need of it they read from files.
    """
    global _alone
    if job_size() == 1:
        return work(*arguments)
    barrier(f"{name}: begin")
    result = None
    if job_place() == 0:
        _alone = True
        try:
            result = work(*arguments)
        finally:
            _alone = False
    barrier(f"{name}: end")
    return result


@contextlib.contextmanager
def ends_with_job() -> Iterator[None]:
    """A process that fails inside reports why and leaves the job at once, which ends the others.

    Without this the others would wait for it, and it for them: JAX ends a job together or not at
    all. Only the first process prints to standard output.
    """
    witness = _call_witness()
    try:
        with _quiet(job_place() > 0):
            yield
    except BaseException as error:
        if witness is None:  # one process: nobody waits
            raise
        code = _report(error)
        witness.communicate(b"ended")
        sys.stdout.flush()
        sys.stderr.flush()
        if code:
            time.sleep(_LAST_WORDS if job_place() == 0 else 0)
            os._exit(code)
        raise
    if witness is not None:
        witness.communicate(b"ended")


@contextlib.contextmanager
def _quiet(silent: bool) -> Iterator[None]:
    if not silent:
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _call_witness() -> subprocess.Popen | None:
    """In a job, a small process that reports if this one is killed, or ended by JAX in C++."""
    if job_size() == 1:
        return None
    report = (
        f"error: process {job_place()} of {job_size()} on {socket.gethostname()} is gone: it was "
        "killed (for lack of memory?), or another process of the job was, which ends all of them. "
        f"{_CONTINUE}"
    )
    command = [sys.executable, "-I", "-S", "-c", _WITNESS, report]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _report(error: BaseException) -> int:
    """Says why this process leaves its job, unless that was said; its exit code, 0 if all do."""
    if isinstance(error, SystemExit):
        return 0 if error.code == STOPPED else error.code  # all stop at the same step
    if _LOST.search(str(error)) and not isinstance(error, OSError):  # which JAX never raises
        why = " ".join(str(error).split())[:200]
        print(
            "error: another process of this job is gone, so this one ends too; the output of that "
            f"process says why. {_CONTINUE} ({why})",
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
            "and under Slurm leave all of them out"
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
    import jax  # a wrong flag is reported without waiting for it

    try:
        jax.distributed.initialize(heartbeat_timeout_seconds=_SILENCE, **job)
    except (RuntimeError, ValueError) as error:  # the second if JAX does not find a job at all
        raise ConfigError(
            f"the processes of the job did not find each other: {error}; under Slurm start them "
            "with srun, elsewhere with --coordinator, --num_processes and --process_id"
        ) from None


def _on_tpu() -> bool:
    """Whether there is a TPU to run on; nothing is opened for it."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if importlib.util.find_spec("libtpu") is None or (platforms and "tpu" not in platforms):
        return False
    return any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*"))


def _tasks_of_slurm() -> int:
    return int(os.environ.get("SLURM_NTASKS", 1)) if "SLURM_PROCID" in os.environ else 1
