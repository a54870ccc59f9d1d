"""A local copy of a folder at a URL, for steps that map their files into memory.

The URL is the truth. A finished file is sent there before it gets its name here (`push`), so every
file here is also there. When its step is opened (`pull`), files that are missing or different here
are fetched, and files that are no longer there are deleted here. So a machine whose disk is empty,
or one that continues after another, starts from what the URL holds.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
import functools
import hashlib
import os
from pathlib import Path
import time

from etils import epath

from icl_jax.files import remote as storage

PLACE = "ICL_JAX_MIRROR"  # environment: where the copies are; else in the user's cache folder
_MARKER = ".mirror"  # holds the URL of the folder that it is in
_OWN = (".", "lock")  # names begin so that belong to this machine alone
_PARTIAL = ".partial"
_RECORDS = ".tfrecord-"  # of a step these are read where they are, at the URL
_THREADS = 8  # hide the latency of the store
_CLOCK_SECONDS = 2  # as fine as any file system's times are


def local_folder(path: epath.PathLike) -> Path:
    """The folder itself; of one at a URL the local copy, whose place depends on the URL alone."""
    if not storage.is_remote(path):
        return Path(path)
    url = os.fspath(path).rstrip("/")
    home = os.environ.get(PLACE) or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "icl_jax", "mirror"
    )
    name = f"{url.rsplit('/', 1)[-1]}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    folder = Path(home).absolute() / name
    marker = folder / _MARKER
    if not marker.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{_MARKER}.{os.getpid()}{_PARTIAL}"
        partial.write_text(f"{url}\n")
        partial.replace(marker)
    return folder


def url_of(path: Path) -> str | None:
    """Where a file of a local copy is at the URL; None for every other file."""
    name = path.name
    return None if name.startswith(_OWN) or name.endswith(_PARTIAL) else _place_of(path)


def shown(path: Path) -> str:
    """The path to show to people: of a file or folder in a local copy, its URL."""
    return _place_of(path) or str(path)


def push(file: Path, path: Path) -> None:
    """Sends a finished file, about to become `path`, if that is in a local copy."""
    url = url_of(path)
    if url is not None:
        _note_version(file, storage.upload(file, url))


def pull(folder: Path, only: frozenset[str] | None = None) -> None:
    """Makes a folder of a local copy hold what its URL holds; does nothing for other folders.

    `only`: fetch just the files of these names.
    """
    url = _place_of(folder)
    if url is None:
        return
    begun, held = time.time(), storage.list_objects(url)
    steps = {name.rpartition("/")[0] for name in held if name.endswith("inputs.json")}
    wanted = []
    for name, info in held.items():
        parent, _, last = name.rpartition("/")
        if (_RECORDS in last and parent in steps) or name.endswith(("/", _PARTIAL)):
            continue
        if "lock" in parent.split("/"):  # says who works at the URL (`folder_lock`)
            continue
        if (only is None or last in only) and not _is_same(folder / name, storage.facts(info)):
            wanted.append(name)
    for path in [p for p in folder.rglob("*") if p.is_file()] if folder.exists() else ():
        name = path.relative_to(folder).as_posix()
        own = path.name.startswith(_OWN) or path.name.endswith(_PARTIAL)
        # A file that another process has just finished may have come after the list was made.
        if not own and name not in held and path.stat().st_ctime < begun - _CLOCK_SECONDS:
            path.unlink(missing_ok=True)

    def bring(name: str) -> None:
        storage.download(f"{url}/{name}", folder / name)
        _note_version(folder / name, storage.facts(held[name]))

    _in_order(bring, wanted)


def bring_in_sight(folder: Path) -> None:
    """Brings in sight what other hosts wrote into a folder.

    On a shared disk opening the folders is enough: NFS may remember for a while which files were
    missing. A local copy is brought up to date.
    """
    pull(folder)
    for _ in os.walk(folder):
        pass


def fetched(path: epath.PathLike) -> Path:
    """The folder itself; of one at a URL the local copy, with all that is there."""
    folder = local_folder(path)
    if storage.is_remote(path):
        fetch(folder)
    return folder


@functools.lru_cache(maxsize=1 << 12)
def fetch(folder: epath.PathLike, only: frozenset[str] | None = None) -> None:
    """As `pull`, but once in a process: for readers."""
    if not storage.is_remote(folder):
        pull(Path(folder), only)


def copy(url: str, to: str) -> None:
    """Copies the files of a step's folder that are not there yet, within their store."""
    there = {name: info["size"] for name, info in storage.list_objects(to).items()}
    held = storage.list_objects(url).items()
    _in_order(
        lambda name: storage.copy(f"{url}/{name}", f"{to}/{name}"),
        [name for name, info in held if there.get(name) != info["size"]],
    )


def remove(path: Path) -> None:
    """Deletes a file here, and at the URL if it is in a local copy."""
    url = url_of(path)
    if url is not None:
        storage.remove(url)
    path.unlink(missing_ok=True)


def _in_order(move: Callable[[str], None], names: Sequence[str]) -> None:
    """Several files at once; the file that marks a step as complete comes last."""
    last = {name for name in names if name.rpartition("/")[2] == "results.json"}
    for part in ([name for name in names if name not in last], last):
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(move, part):
                pass


def _is_same(path: Path, version: tuple[int, float]) -> bool:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    size, when = version
    return stat.st_size == size and (not when or abs(stat.st_mtime - when) < 1e-3)


def _note_version(path: Path, version: tuple[int, float]) -> None:
    """Gives a file the time of its object; an earlier one may have the same size."""
    if version[1]:
        os.utime(path, (version[1], version[1]))


def _place_of(path: Path) -> str | None:
    path = Path(os.path.abspath(path))
    found = _find_mirror(str(path))
    if found is None:
        return None
    root, url = found
    return "/".join((url, *path.relative_to(root).parts))


@functools.lru_cache(maxsize=1 << 12)
def _find_mirror(folder: str) -> tuple[Path, str] | None:
    for parent in (Path(folder), *Path(folder).parents):
        marker = parent / _MARKER
        if marker.exists():
            return parent, marker.read_text().strip()
    return None
