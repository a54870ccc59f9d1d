"""Files that grow during a run (metrics, TensorBoard), for a store that cannot append."""

import contextlib
import logging
from pathlib import Path
import tempfile
import threading

from etils import epath

from icl_jax.config import StageError
from icl_jax.files import remote as storage

UPLOAD_SECONDS = 30  # the URL is at most this far behind


class LiveFolder:
    """Where a run's growing files are written: `path`, a local folder.

    At a URL, `path` is a temporary folder, and a thread sends the files that have changed there:
    from time to time, when `keep` asks for it, and at the end. A failure to send is logged, and the
    file is sent the next time; a failure at the end is an error.
    """

    def __init__(self, folder: epath.Path):
        self._url = str(folder) if storage.is_remote(folder) else None
        self.path = Path(folder)
        if self._url is None:
            return
        self._temporary = tempfile.TemporaryDirectory(prefix="icl_jax-")
        self.path = Path(self._temporary.name)
        self._sent: dict[str, tuple[int, int]] = {}  # size and time of change
        self._asked, self._ended = threading.Event(), False
        self._thread = threading.Thread(target=self._send_on, daemon=True)
        self._thread.start()

    def fetch(self, name: str) -> Path:
        """The local place of a file, with the content that it has at the URL, if any."""
        if self._url is not None:
            with contextlib.suppress(FileNotFoundError):
                storage.download(f"{self._url}/{name}", self.path / name)
        return self.path / name

    def keep(self) -> None:
        """Sends what has changed soon, in the background: call it with every checkpoint."""
        if self._url is not None:
            self._asked.set()

    def close(self) -> None:
        """Sends the rest; call it when the files are closed."""
        if self._url is None:
            return
        self._ended = True
        self._asked.set()
        self._thread.join()
        try:
            self._send()
        finally:
            self._temporary.cleanup()

    def _send_on(self) -> None:
        while True:
            self._asked.wait(UPLOAD_SECONDS)
            if self._ended:
                return
            self._asked.clear()
            try:
                self._send()
            except (StageError, OSError) as error:
                logging.warning("%s", error)

    def _send(self) -> None:
        for file in sorted(path for path in self.path.rglob("*") if path.is_file()):
            if file.name.endswith(".partial"):
                continue
            name, stat = file.relative_to(self.path).as_posix(), file.stat()
            version = (stat.st_size, stat.st_mtime_ns)
            if self._sent.get(name) != version:
                # What is in it now: it may grow while it is sent.
                storage.write_bytes(f"{self._url}/{name}", file.read_bytes()[: stat.st_size])
                self._sent[name] = version
