"""The files of a corpus, their formats, and checksums that identify them."""

from collections.abc import Iterable, Iterator
import contextlib
import functools
import glob
import gzip
import hashlib
import io
import os
from pathlib import Path
import re
import shlex
import zlib

from etils import epath
import google_crc32c

from icl_jax.config import ConfigError, CorpusConfig, StageError
from icl_jax.corpus import builtin, tfds_source
from icl_jax.files.remote import check_is_file, is_remote, open_to_read, retry, size_and_time

# Format by the end of a file's name, without a `.gz`.
FORMAT_OF_NAME = {
    ".txt": "text",
    ".text": "text",
    ".tokens": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_WIKIEXTRACTOR_NAME = re.compile(r"wiki_\d+")
_READ_BYTES = 4 << 20


def find_files(config: CorpusConfig, field: str = "design.corpus") -> dict[str, str]:
    """File -> format, in the order of `config.files`; files of a folder or glob are sorted.

    `field` is the place of the config, for errors.
    """
    found: dict[str, str] = {}
    seen = set()  # of full names: ./a.txt and a.txt are one file
    for pattern in config.files:
        if tfds_source.is_tfds(pattern):
            found[pattern] = "tfds"
            continue
        if builtin.is_builtin(pattern):
            builtin.check(pattern, f"{field}.files")
            found[pattern] = "builtin"
            continue
        files = retry(lambda p=pattern: list(_expand(p)), "listed", pattern)
        if not files:
            raise ConfigError(_nothing_found(pattern, field))
        for file in files:
            _check_name(file, field)
            with name_file(file):
                check_is_file(file)
            full = file if is_remote(file) else os.path.abspath(file)
            if full not in seen:
                found[file] = _format_of(file, config.format, field)
            seen.add(full)
    if not found:
        raise ConfigError(f"{field}.files names no file, folder or glob: there is no corpus")
    return found


def describe_files(config: CorpusConfig, field: str = "design.corpus") -> dict[str, dict]:
    """File -> size and checksum, which show whether a corpus has changed."""
    describe = {"tfds": tfds_source.describe, "builtin": builtin.describe}
    return {
        file: describe.get(kind, describe_file)(file)
        for file, kind in find_files(config, field).items()
    }


def describe_file(file: str) -> dict:
    """Size and checksum of one file."""
    return _describe(file, file_version(file))


def files_checksum(files: Iterable[str | os.PathLike]) -> str:
    """One checksum of several large files; they are only read again if one has changed."""
    names = sorted(map(os.fspath, files))
    return _files_checksum(tuple((name, file_version(name)) for name in names))


def model_checksum(folder: str | os.PathLike) -> str:
    """Of the files of a model folder: its config and its weights."""
    return files_checksum([Path(folder) / "config.json", *Path(folder).glob("*.safetensors")])


def file_version(file: str) -> tuple[int, int]:
    """Size and time of the last change, which identify a version of a file."""
    if is_remote(file):
        size, when = size_and_time(file)
        return size, int(when)
    stat = os.stat(file)
    return stat.st_size, stat.st_mtime_ns


def is_gzip(file: str) -> bool:
    """Whether the file must be decompressed."""
    return file.endswith(".gz")


def open_file(file: str) -> io.BufferedIOBase:
    """The bytes of a file, decompressed; damage stops the run where it is found."""
    raw = open_to_read(file)
    if not is_gzip(file):
        return raw
    if not raw.peek(1):  # the library would take it for a packed file with nothing in it
        raw.close()
        raise DamagedError(file, "at byte 0", "it has no bytes")
    return _Gzip(raw, file)


def read_file(file: str, field: str) -> bytes:
    """The same, all at once; `field` is where the file is named, for errors."""
    try:
        with name_file(file), open_file(file) as opened:
            return opened.read()
    except DamagedError as error:
        raise ConfigError(f"{field}: {error}") from None


class DamagedError(StageError):
    """A truncated or corrupt file; nobody can know what is missing, so the run stops."""

    def __init__(self, file: str, where: str, why: object):
        whole = f" (gzip -t {shlex.quote(file)} checks it)" if is_gzip(file) else ""
        super().__init__(
            f"{file} is damaged {where} ({why}), and everything after that would be missing; copy "
            f"or download it again{whole}, or remove it from the files that you name"
        )


def _stops_on_damage(method):
    @functools.wraps(method)
    def call(self, *args):
        try:
            return method(self, *args)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            where = f"at byte {self._raw.tell():,}, after {self.tell():,} unpacked bytes"
            raise DamagedError(self._file, where, error) from error

    return call


class _Gzip(gzip.GzipFile):
    """A compressed file that reports damage with its name, and closes its underlying file, too."""

    def __init__(self, raw: io.BufferedIOBase, file: str):
        super().__init__(fileobj=raw)
        self._raw, self._file = raw, file

    read, read1, readline, seek = map(
        _stops_on_damage,
        (gzip.GzipFile.read, gzip.GzipFile.read1, gzip.GzipFile.readline, gzip.GzipFile.seek),
    )

    def close(self) -> None:
        super().close()
        self._raw.close()


@contextlib.contextmanager
def name_file(file: str):
    """Stops with the file's name if the operating system cannot read it.

    Errors without a number are Arrow's, and about the content.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise StageError(
            f"{file} cannot be read ({error}); fix this and rerun the command"
        ) from error


def _expand(pattern: str) -> Iterator[str]:
    path = epath.Path(pattern)
    if path.is_dir():
        yield from sorted(_files_below(path))
    elif path.exists():
        yield str(path)
    elif is_remote(pattern):
        fixed = next(i for i, part in enumerate([*path.parts, "*"]) if glob.has_magic(part))
        root = epath.Path(*path.parts[:fixed])
        rest = "/".join(path.parts[fixed:])
        yield from (
            sorted(str(file) for file in root.glob(rest) if not file.is_dir()) if rest else ()
        )
    else:
        names = sorted(glob.glob(pattern, recursive=True))
        yield from (name for name in names if not epath.Path(name).is_dir())


def _files_below(folder: epath.Path) -> Iterator[str]:
    for path in folder.iterdir():
        if path.name.startswith((".", "_")):  # left by file systems and other programs
            continue
        if path.is_dir():
            yield from _files_below(path)
        else:
            yield str(path)


def _nothing_found(pattern: str, field: str) -> str:
    several = f"; several are written --config.{field}.files=\"('a.txt','b.txt')\""
    return (
        f"{field}.files: nothing found at '{pattern}'; expected a file, a folder with files, or a "
        "glob that matches some" + (several if "," in pattern else "")
    )


def _check_name(file: str, field: str) -> None:
    try:
        file.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{field}.files: the name {file!r} is not UTF-8, and names go into files that are; "
            "rename it"
        ) from None


def _format_of(file: str, wanted: str, field: str) -> str:
    if wanted != "auto":
        return wanted
    name = file.rsplit("/", 1)[-1].removesuffix(".gz")
    if _WIKIEXTRACTOR_NAME.fullmatch(name):
        return "wikiextractor"
    for end, kind in FORMAT_OF_NAME.items():
        if name.lower().endswith(end):
            return kind
    raise ConfigError(
        f"{field}.format is auto, but the name of {file} does not show its format; known are "
        f"{', '.join(FORMAT_OF_NAME)} and wiki_NN, all except .parquet also with .gz. "
        f"Set {field}.format, or select the files by a glob"
    )


@functools.lru_cache(maxsize=1 << 16)
def _describe(file: str, version: tuple[int, int]) -> dict:
    """The checksum of the whole file, computed once per process: edits may keep the size."""
    checksum = 0
    with name_file(file), open_to_read(file) as opened:
        while chunk := opened.read(_READ_BYTES):
            checksum = google_crc32c.extend(checksum, chunk)
    return {"bytes": version[0], "checksum": f"{checksum:08x}"}


@functools.lru_cache(maxsize=4)
def _files_checksum(files: tuple[tuple[str, tuple[int, int]], ...]) -> str:
    digest = hashlib.sha256()
    for file, _ in files:
        with open_to_read(file) as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:32]
