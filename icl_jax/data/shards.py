"""The shards of a source, and random access to their records."""

from collections.abc import Sequence
import os
import re

from etils import epath
import numpy as np

from icl_jax.data.shard_index import SUFFIX, ShardIndex, load_indexes
from icl_jax.data.tfrecord import (
    FOOTER_BYTES,
    HEADER_BYTES,
    RecordError,
    decode_example,
    unframe,
)
from icl_jax.files.remote import check_is_file, is_remote, read_range, retry

_OPEN_FILES = 256  # kept open by one reader; many systems allow a process 1,024
_MAGIC = set("*?[")
_NUMBERED = re.compile(r"(.*-)(\d{5,})-of-(\d{5,})(.*)")


def find_shards(source: str) -> list[epath.Path]:
    """The sorted shards of a folder (its `*.tfrecord*` files), of a glob, or one file."""
    return retry(lambda: _find_shards(source), "listed", source)


def _find_shards(source: str) -> list[epath.Path]:
    path = epath.Path(source)
    if path.is_file():
        check_is_file(path)  # for `is_file`, a pipe is one
        return [path]
    if path.is_dir():
        looked, found = f"*.tfrecord* files in the folder {source}", path.glob("*.tfrecord*")
    elif _MAGIC & set(source):
        looked, found = f"files that match {source}", _glob(source)
    else:
        raise RecordError(f"expected a folder, a glob or a file, got {source}: it does not exist")
    shards = sorted(p for p in found if not p.name.endswith((SUFFIX, ".partial")) and p.is_file())
    if not shards:
        raise RecordError(f"expected {looked}, got none; build the records or correct the path")
    for shard in shards:
        check_is_file(shard)
    missing = _missing(shards)
    if missing:
        raise RecordError(
            f"expected the complete shards of {source}, got {len(shards)}; missing: "
            f"{', '.join(missing[:5])}{f' and {len(missing) - 5} more' * (len(missing) > 5)}; "
            "build or copy them"
        )
    return shards


def _glob(pattern: str) -> list[epath.Path]:
    parts = epath.Path(pattern).parts
    fixed = next(i for i, part in enumerate(parts) if _MAGIC & set(part))
    return list(epath.Path(*parts[:fixed]).glob("/".join(parts[fixed:])))


def _missing(shards: list[epath.Path]) -> list[str]:
    """Names implied by `-00000-of-00004` that are missing (a glob may exclude some)."""
    families = {
        (shard.parent, match[1], len(match[2]), int(match[3]), match[4])
        for shard in shards
        if (match := _NUMBERED.fullmatch(shard.name))
    }
    missing = []
    for folder, before, digits, count, after in sorted(families):
        names = {f"{before}{i:0{digits}}-of-{count:0{digits}}{after}" for i in range(count)}
        names -= {shard.name for shard in shards if shard.parent == folder}
        missing += sorted(name for name in names if not (folder / name).exists())
    return missing


class Shards:
    """All records of several shards as one sequence; a record is a dict of features.

    Threads may read concurrently. A copy sent to another process opens its own files.
    """

    def __init__(self, paths: Sequence[epath.PathLike], indexes: list[ShardIndex] | None = None):
        self._paths = [epath.Path(path) for path in paths]
        indexes = load_indexes(self._paths) if indexes is None else indexes
        self._offsets = [index.offset for index in indexes]
        self._lengths = [index.length for index in indexes]
        self._ends = np.cumsum([len(index) for index in indexes])
        self._files: dict[int, int] = {}

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, record: int) -> dict[str, np.ndarray]:
        shard, i = self._find(record)
        path, offset, length = self._paths[shard], self._offsets[shard][i], self._lengths[shard][i]
        framed = self._read(shard, int(offset), HEADER_BYTES + int(length) + FOOTER_BYTES)
        return decode_example(unframe(path, int(offset), int(length), framed))

    def place(self, record: int) -> str:
        """File and byte offset, for messages."""
        shard, i = self._find(record)
        return f"{self._paths[shard]} at byte {self._offsets[shard][i]}"

    def _find(self, record: int) -> tuple[int, int]:
        if not 0 <= record < len(self):
            raise IndexError(f"expected a record from 0 to {len(self) - 1}, got {record}")
        shard = int(np.searchsorted(self._ends, record, side="right"))
        return shard, int(record - self._ends[shard] + len(self._offsets[shard]))

    def _read(self, shard: int, offset: int, size: int) -> bytes:
        path = self._paths[shard]
        if is_remote(path):
            return read_range(path, offset, size)
        file = self._files.get(shard)
        if file is not None:
            return os.pread(file, size, offset)
        file = os.open(path, os.O_RDONLY)
        try:
            return os.pread(file, size, offset)
        finally:
            # Another thread may have opened the same shard meanwhile: keep one of the two.
            full = len(self._files) >= _OPEN_FILES
            if full or self._files.setdefault(shard, file) != file:
                os.close(file)

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_files": {}}

    def __del__(self):
        for file in getattr(self, "_files", {}).values():
            os.close(file)
