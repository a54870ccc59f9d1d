"""Files at URLs (gs://...): what fails for a moment is tried again; no partial file is read.

All URLs that `epath` knows are of object stores, where an object appears whole when its upload is
complete. So a file for a URL is made here, on the disk, and then sent; if that fails, nothing is
left behind. The client libraries try requests again by themselves (gcsfs six times, tensorstore,
which reads and writes the arrays of checkpoints, 32 times). This module covers the rest: time-outs,
connections that break outside of a request, uploads and downloads that arrive incomplete.
"""

from collections.abc import Callable
import contextlib
import errno
import io
import logging
import os
from pathlib import Path
import random
import stat
import sys
import time
from typing import TypeVar
import uuid

from etils import epath

from icl_jax.config import ConfigError, StageError

TRIES = 5
FIRST_WAIT = 1.0  # seconds; doubled each time
BLOCK_BYTES = 8 << 20  # requested at once when a file is read from its beginning
_TRANSIENT_STATUS = {408, 429, *range(500, 505)}
_TRANSIENT_ERRNO = {
    errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.EPIPE, errno.ETIMEDOUT,
    errno.EAGAIN, errno.EIO, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTUNREACH,
}  # fmt: skip
_CLIENTS = {"gcsfs": 6, "aiohttp": 6, "requests": 6, "botocore": 5, "aiobotocore": 5, "azure": 3}
_CLIENT_OF = {"gs": "gcsfs (pip install gcsfs)", "s3": "s3fs", "az": "adlfs"}

_OTHER_KINDS = {
    stat.S_ISFIFO: "named pipe (FIFO)",
    stat.S_ISSOCK: "socket",
    stat.S_ISCHR: "device",
    stat.S_ISBLK: "device",
}

T = TypeVar("T")


class NoFileError(ConfigError):
    """The path is there, but is no file."""


class StorageError(StageError):
    """A file at a URL could not be read or written, although it was tried several times."""


def is_remote(path: epath.PathLike) -> bool:
    """Whether it is a URL."""
    return "://" in os.fspath(path)


def check_is_file(path: epath.PathLike) -> None:
    """Stops if the path is there but is no file: opening a pipe would wait forever."""
    if is_remote(path):
        return
    mode = os.stat(path).st_mode
    kind = next((name for is_kind, name in _OTHER_KINDS.items() if is_kind(mode)), None)
    if kind:
        raise NoFileError(
            f"expected a file, but {path} is a {kind}; write its content to a file and name that"
        )


def check_files_in(folder: epath.PathLike) -> None:
    """The same for all in a folder of this machine, which other libraries are about to open."""
    for path in sorted(Path(folder).glob("*")):
        if path.exists():  # no link that leads nowhere
            check_is_file(path)


def retry(work: Callable[[], T], what: str, path: epath.PathLike) -> T:
    """`work()`; after a passing error again, after waits that double, up to `TRIES` times."""
    tried = 0
    while True:
        tried += 1
        try:
            return work()
        except Exception as error:
            if isinstance(error, StageError) or not is_remote(path):
                raise
            if isinstance(error, ImportError):
                raise _no_client(path, error) from None
            before = _tries_of_client(error)
            if not before and not _is_transient(error):
                raise _with_number(error, path) from error
            reason = f"{type(error).__name__}: {error}".strip(": ")
            if before or tried == TRIES:
                raise StorageError(
                    f"{path} could not be {what}: {before or tried} tries failed, the last with "
                    f"{reason}. What was finished is kept; rerun the command later"
                ) from error
            # With a random part, so that the hosts of a run do not all come back at once.
            wait = FIRST_WAIT * 2 ** (tried - 1) * (1 + random.random() / 2)
            logging.warning(
                "%s could not be %s (%s); try %d of %d in %.1f s",
                path, what, reason, tried + 1, TRIES, wait,
            )  # fmt: skip
            time.sleep(wait)


def file_system(url: epath.PathLike):
    """The client for a URL, and the name that it calls the URL by."""
    import fsspec

    try:
        client, name = fsspec.core.url_to_fs(os.fspath(url))
    except ImportError as error:
        raise _no_client(url, error) from None
    _tell_retries()
    return client, name


def size_and_time(url: epath.PathLike) -> tuple[int, float]:
    """Of the object at a URL: its bytes, and when it was written (seconds; 0: not known)."""
    client, name = file_system(url)
    return facts(retry(lambda: client.info(name), "looked at", url))


def facts(info: dict) -> tuple[int, float]:
    """The same, from what a client says about an object."""
    when = next((info[key] for key in ("mtime", "LastModified", "last_modified")
                 if key in info), 0)  # fmt: skip
    return info["size"] or 0, when.timestamp() if hasattr(when, "timestamp") else 0


def read_bytes(path: epath.PathLike) -> bytes:
    """The whole content of a file anywhere."""
    if not is_remote(path):
        check_is_file(path)
        return Path(path).read_bytes()
    client, name = file_system(path)
    return retry(lambda: client.cat_file(name), "read", path)


def read_text(path: epath.PathLike) -> str:
    """The same as text."""
    return read_bytes(path).decode()


def read_range(url: epath.PathLike, offset: int, size: int) -> bytes:
    """Bytes from the middle of an object; fewer only where it ends."""
    client, name = file_system(url)

    def read() -> bytes:
        content = client.cat_file(name, start=offset, end=offset + size)
        if len(content) != size and offset + len(content) < client.info(name)["size"]:
            raise ConnectionError(f"got {len(content)} of {size} bytes from {offset} on")
        return content

    return retry(read, "read", url)


def open_to_read(path: epath.PathLike) -> io.BufferedIOBase:
    """The bytes of a file anywhere."""
    if not is_remote(path):
        check_is_file(path)
        return Path(path).open("rb")
    return io.BufferedReader(_Object(path), BLOCK_BYTES)


def write_bytes(url: epath.PathLike, content: bytes) -> None:
    """Writes a whole object."""
    client, name = file_system(url)

    def write() -> None:
        client.pipe_file(name, content)
        _check_arrived(client, name, len(content))

    retry(write, "written", url)


def create(url: epath.PathLike, content: bytes) -> bool:
    """Writes an object that is not there yet; False: it is there, and stays as it was.

    If the store wrote it but the answer got lost, the next try finds it: then False, too.
    """
    client, name = file_system(url)

    def write() -> bool:
        try:
            client.pipe_file(name, content, mode="create")
        except Exception as error:
            if isinstance(error, FileExistsError) or _status(error) == "412":
                return False
            raise
        return True

    return retry(write, "created", url)


def upload(file: Path, url: epath.PathLike) -> tuple[int, float]:
    """Sends a finished file; the size and time of the object."""
    client, name = file_system(url)

    def send() -> dict:
        client.put_file(str(file), name)
        return _check_arrived(client, name, file.stat().st_size)

    return facts(retry(send, "written", url))


def download(url: epath.PathLike, file: Path) -> None:
    """Fetches an object; `file` is there once all of it is."""
    client, name = file_system(url)
    partial = file.with_name(f"{file.name}.{uuid.uuid4().hex}.partial")

    def fetch() -> None:
        client.get_file(name, str(partial))
        _check_arrived(client, name, partial.stat().st_size)

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        retry(fetch, "read", url)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def remove(url: epath.PathLike) -> None:
    """Deletes an object, if it is there."""
    client, name = file_system(url)
    with contextlib.suppress(FileNotFoundError):
        retry(lambda: client.rm_file(name), "deleted", url)


def copy(url: epath.PathLike, to: epath.PathLike) -> None:
    """Copies an object within its store; its content does not come here."""
    client, name = file_system(url)
    _, other = file_system(to)

    def send() -> None:
        client.cp_file(name, other)
        _check_arrived(client, other, client.info(name)["size"])

    retry(send, "copied", url)


def files_below(folder: epath.PathLike) -> list[str]:
    """All files below a folder anywhere."""
    if is_remote(folder):
        return [f"{os.fspath(folder)}/{name}" for name in list_objects(folder)]
    return [os.fspath(path) for path in Path(folder).rglob("*") if path.is_file()]


def list_objects(url: epath.PathLike) -> dict[str, dict]:
    """All objects below a folder: what the client says about each, by its name below the folder."""
    client, name = file_system(url)
    found = retry(lambda: client.find(name, detail=True), "listed", url)
    start = name.rstrip("/") + "/"
    return {place[len(start) :]: info for place, info in found.items() if place.startswith(start)}


class _Object(io.RawIOBase):
    """An object to read at any place, block by block, each with its own retries."""

    def __init__(self, url: epath.PathLike):
        self._url, self._at = url, 0
        self._size, _ = size_and_time(url)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As of any file."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """As of any file."""
        return self._at

    def readinto(self, buffer) -> int:
        """As of any file."""
        count = max(0, min(len(buffer), self._size - self._at))
        if count:
            content = read_range(self._url, self._at, count)
            count = len(content)
            buffer[:count] = content
        self._at += count
        return count


def _check_arrived(client, name: str, size: int) -> dict:
    info = client.info(name)
    if info["size"] != size:
        raise ConnectionError(f"{info['size']} of {size} bytes arrived")
    return info


def _no_client(url: epath.PathLike, error: ImportError) -> ConfigError:
    scheme = os.fspath(url).split("://")[0]
    needed = _CLIENT_OF.get(scheme, "another package")
    return ConfigError(f"{url}: to open {scheme}:// install {needed} ({error})")


def _is_transient(error: Exception) -> bool:
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if type(error).__name__ == "ChecksumError":  # of gcsfs, which tries only requests again
        return True
    return isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO


def _tries_of_client(error: Exception) -> int:
    """How often the client has tried before it gave up; 0: it does not try such again."""
    status = _status(error)
    if status.isdigit() and int(status) not in _TRANSIENT_STATUS:
        return 0
    if type(error).__name__ == "ChecksumError":
        return 0
    return _CLIENTS.get(type(error).__module__.split(".")[0], 0)


def _status(error: Exception) -> str:
    """What the store answered, as "404"; other errors have none."""
    return str(getattr(error, "status", None) or getattr(error, "code", None))


def _with_number(error: Exception, path: epath.PathLike) -> Exception:
    """An error as the operating system would give it, which says whether a file is missing."""
    status = _status(error)
    if isinstance(error, FileNotFoundError) or status == "404":
        return FileNotFoundError(errno.ENOENT, "there is no such object", os.fspath(path))
    if str(error).startswith("Forbidden") or status in ("401", "403"):
        reason = " ".join(str(error).split())
        return PermissionError(errno.EACCES, f"no permission ({reason})", os.fspath(path))
    return error


class _Retries(logging.Filter):
    """Lets through what gcsfs logs about its retries, but none of its details."""

    def filter(self, record: logging.LogRecord) -> bool:
        if "retrying after exception" in record.msg:
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            return True
        # Its last words come as an error that names the path.
        return record.levelno >= logging.WARNING and "exception:" not in record.msg


def _tell_retries() -> None:
    if "gcsfs" in sys.modules:
        logger = logging.getLogger("gcsfs")
        if not any(isinstance(known, _Retries) for known in logger.filters):
            logger.setLevel(logging.DEBUG)
            logger.addFilter(_Retries())
