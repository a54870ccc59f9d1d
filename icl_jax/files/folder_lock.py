"""One process at a time works in a folder: a second one is refused, with the name of the first.

On a disk the operating system holds the lock, and releases it when the process ends, however it
ends. At a URL the holder is the last of the numbered objects in `lock/`. Each is created only if it
is not there yet, so only one of two processes gets the number; its holder rewrites it every
`BEAT_SECONDS`. An object that is no longer rewritten belongs to a dead process: the next number is
then taken, at once if that process ran on this machine, else after `DEAD_SECONDS` of watching (the
clocks of two machines need not agree).
"""

from collections.abc import Iterator
import contextlib
import datetime
import errno
import fcntl
import json
import logging
import os
from pathlib import Path
import socket
import sys
import threading
import time
import uuid

from etils import epath

from icl_jax.config import ConfigError, StageError
from icl_jax.files import mirror
from icl_jax.files import remote as storage
from icl_jax.workers.job import gather, job_size, on_first

BEAT_SECONDS = 15
DEAD_SECONDS = 90  # without a beat; the same for a process that cannot reach its lock
_LOOK_SECONDS = 5  # how long a process of a job looks for the name of the first
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}  # some network disks


@contextlib.contextmanager
def alone_in(path: epath.PathLike) -> Iterator[None]:
    """Holds a folder, on a disk or at a URL, for this process; for a local copy also its URL.

    The first process of a job holds it for all of them, which must see the folder.
    """
    with contextlib.ExitStack() as held:
        remote = storage.is_remote(path)
        url = os.fspath(path) if remote else mirror.shown(Path(path))

        def hold() -> None:
            if not remote:
                held.enter_context(_held_here(Path(path)))
            if storage.is_remote(url):
                held.enter_context(_RemoteLock(url.rstrip("/")))

        on_first("lock a folder", hold)
        if job_size() > 1 and not storage.is_remote(url):
            _check_seen(Path(path))
        yield


def _check_seen(folder: Path) -> None:
    """Stops if a process of the job does not see what the first one wrote: who holds the folder."""
    holder = gather("who holds the folder", os.getpid())[0]
    deadline = time.monotonic() + _LOOK_SECONDS
    while not (seen := _holder_of(folder) == holder) and time.monotonic() < deadline:
        time.sleep(0.1)
    found = gather("who sees the folder", int(seen))
    blind = [str(place) for place, sees in enumerate(found) if not sees]
    if blind:
        raise StageError(
            f"process {', '.join(blind)} of this job cannot see what process 0 writes to "
            f"{folder}; expected a --workdir on a disk that all hosts share, under the same path"
        )


def _holder_of(folder: Path) -> int | None:
    try:
        return _parsed((folder / "lock").read_text()).get("process")
    except OSError:
        return None


@contextlib.contextmanager
def _held_here(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a+")  # it may hold the name of the process at work
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written to ({error.strerror}); choose another folder"
        ) from None
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise _refusal(mirror.shown(folder), _parsed(file.read())) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            logging.warning("%s cannot be locked (%s); start no second command there", folder,
                            error.strerror)  # fmt: skip
        file.truncate(0)
        file.write(json.dumps(_describe_this_process()) + "\n")
        file.flush()
        yield  # the lock ends with the process, however it ends
        file.truncate(0)


class _RemoteLock:
    """The same for a folder at a URL."""

    def __init__(self, url: str):
        self._url, self._number = url, 0
        self._own = _describe_this_process() | {"id": uuid.uuid4().hex, "beats": 0}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, daemon=True)

    def __enter__(self):
        while not self._take():
            pass
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._ended.set()
        self._thread.join()
        # Its number stays taken: a process that looked earlier could take it while others hold it.
        storage.write_bytes(self._place(self._number), b"{}\n")

    def _take(self) -> bool:
        """Whether this process took the next number; False: others were faster, look again."""
        last = max(self._numbers(), default=0)
        if last and not self._is_free(last):
            return False
        if not storage.create(self._place(last + 1), self._content()):
            return False
        self._number, numbers = last + 1, self._numbers()
        if max(numbers) > self._number:  # `last` was long gone
            storage.remove(self._place(self._number))
            return False
        for number in numbers - {self._number}:
            storage.remove(self._place(number))
        return True

    def _is_free(self, number: int) -> bool:
        """Whether its process has ended; raises if it is alive; False: there is a later number.

        Finding out whether a process of another machine is alive takes a while.
        """
        seen, since = None, time.monotonic()
        while True:
            try:
                held = _parsed(storage.read_text(self._place(number)))
            except FileNotFoundError:
                return False
            if not held or held.get("id") == self._own["id"]:  # let go of; or created by a retry
                return True
            alive = _is_alive_here(held)
            if alive or (seen is not None and held != seen):
                raise _refusal(self._url, held)
            if alive is False or time.monotonic() - since >= DEAD_SECONDS:
                print(f"{self._url} was in use by {_name(held)}, which has ended without "
                      "releasing it; continuing from what it left", flush=True)  # fmt: skip
                return True
            if seen is None:
                print(f"{self._url} is in use by {_name(held)}; waiting up to {DEAD_SECONDS} s "
                      "for a sign that it is still running", flush=True)  # fmt: skip
            seen = held
            self._ended.wait(BEAT_SECONDS / 5)

    def _beat_on(self) -> None:
        reached = time.monotonic()
        while not self._ended.wait(BEAT_SECONDS):
            try:
                if max(self._numbers(), default=0) > self._number:
                    _leave(f"{self._url} was taken over by another process, because this one "
                           f"could not be seen for {DEAD_SECONDS} s")  # fmt: skip
                self._own["beats"] += 1
                storage.write_bytes(self._place(self._number), self._content())
                reached = time.monotonic()
            except (StageError, OSError) as error:
                logging.warning("the lock of %s could not be renewed for %.0f s: %s", self._url,
                                time.monotonic() - reached, error)  # fmt: skip

    def _numbers(self) -> set[int]:
        return {int(name) for name in storage.list_objects(f"{self._url}/lock") if name.isdigit()}

    def _place(self, number: int) -> str:
        return f"{self._url}/lock/{number:06d}"

    def _content(self) -> bytes:
        return (json.dumps(self._own) + "\n").encode()


def _leave(why: str) -> None:
    """Ends this process before it writes into a folder of another; a restart loses nothing."""
    print(f"error: {why}; this process ends at once", file=sys.stderr, flush=True)
    os._exit(1)


def _refusal(folder: str, held: dict) -> StageError:
    return StageError(
        f"{folder} is in use by {_name(held)}; wait for it, stop it, or choose another folder"
    )


def _name(held: dict) -> str:
    if not held:
        return "another process"
    return f"process {held.get('process')} on {held.get('host')}, since {held.get('since')}"


def _parsed(content: str) -> dict:
    """Empty if nothing is held, or no name was written yet."""
    try:
        held = json.loads(content)
    except ValueError:
        return {}
    return held if isinstance(held, dict) else {}


def _describe_this_process() -> dict:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    process = {"process": os.getpid(), "started": _start_of(os.getpid())}
    return {"host": socket.gethostname(), **process, "since": now, "machine": _machine()}


def _machine() -> str | None:
    """Identifies the machine that numbers our processes: the start of its kernel, the container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _is_alive_here(held: dict) -> bool | None:
    """Whether the process runs, if on this machine; None: it belongs to another machine."""
    if held.get("machine") is None or held["machine"] != _machine():
        return None
    started = _start_of(held["process"])
    return started is not None and started == held["started"]


def _start_of(process: int) -> int | None:
    """When a process was started, because its number may be reused; None: it has ended."""
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else int(words[19])
