"""The index of a shard: facts about every record from one full scan, in `<shard>.index.npz`."""

import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
import dataclasses
import io
import logging
import threading
import zipfile

from etils import epath
import google_crc32c
import numpy as np
from tqdm import tqdm

from icl_jax.config import StageError
from icl_jax.data.tfrecord import RecordError, damage, decode_example, scan_records
from icl_jax.files.remote import is_remote, read_bytes, read_range, retry
from icl_jax.files.step_folder import beside

SUFFIX = ".index.npz"
_VERSION = 1
_EDGE_BYTES = 1 << 16
_THREADS = 8  # hide the latency of remote files; parsing itself holds the interpreter's lock
_WRITE_AGAIN = "write these records again"


@dataclasses.dataclass(frozen=True)
class ShardIndex:
    """Facts about one shard; the arrays have one entry per record."""

    size: int  # of the shard, bytes
    edges: int  # CRC of its first and last 64 KiB: reveals a rewritten shard of the same size
    checksum: int  # CRC of all payloads
    smallest_token: int  # id; without records, one that leaves minimum and maximum unchanged
    largest_token: int
    offset: np.ndarray  # int64: where the record's frame begins
    length: np.ndarray  # int64: of the payload, bytes
    tokens: np.ndarray  # int32: how many
    batch_group: np.ndarray  # int64: records that must share a batch; -1: none

    def __len__(self) -> int:
        return len(self.offset)


def load_indexes(paths: Sequence[epath.Path], show_progress: bool = True) -> list[ShardIndex]:
    """The indexes of all shards; builds those that are missing or do not match their shard.

    Raises one RecordError that names the first damage of every damaged shard.
    """
    lock = threading.Lock()
    label = {"desc": "indexing records", "unit": "B", "unit_scale": True, "delay": 2}
    with (
        ThreadPoolExecutor(min(_THREADS, max(1, len(paths)))) as pool,
        tqdm(total=0, disable=not show_progress, **label) as bar,
    ):

        def progress(done: int, more: int = 0) -> None:
            with lock:
                bar.total += more
                bar.update(done)

        futures = [pool.submit(_load_or_build, path, progress) for path in paths]
        try:
            errors = [error for future in futures if (error := future.exception())]
        except BaseException:  # Ctrl-C: do not start on the waiting shards
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for error in errors:
        if not isinstance(error, RecordError):
            raise error
    if errors:
        raise RecordError("\n".join(map(str, errors)))
    return [future.result() for future in futures]


def _load_or_build(path: epath.Path, progress: Callable) -> ShardIndex:
    size = retry(lambda: path.stat().length, "looked at", path)
    edges = _edges(path, size)
    index = _load(path)
    if index is None or (index.size, index.edges) != (size, edges):
        progress(0, size)
        index = _build(path, size, edges, progress)
        _save(path, index)
    return index


def _build(path: epath.Path, size: int, edges: int, progress: Callable) -> ShardIndex:
    facts = array.array("q")
    checksum = reported = 0
    group, groups = -1, set()
    for offset, payload in scan_records(path):
        tokens, batch_group, smallest, largest = _facts(path, offset, payload)
        facts.extend((offset, len(payload), tokens, batch_group, smallest, largest))
        if batch_group not in (-1, group) and batch_group in groups:
            expected = f"the records of batch_group {batch_group} one after another"
            raise damage(path, offset, expected, "others in between", _WRITE_AGAIN)
        group = batch_group
        groups.add(group)
        checksum = google_crc32c.extend(checksum, payload)
        if offset - reported > 1 << 20:
            progress(offset - reported)
            reported = offset
    progress(size - reported)
    table = np.array(facts, np.int64).reshape(-1, 6).T
    offset, length, tokens, batch_group = (column.copy() for column in table[:4])
    smallest, largest = int(table[4].min(initial=2**62)), int(table[5].max(initial=-(2**62)))
    return ShardIndex(
        size, edges, checksum, smallest, largest,
        offset, length, tokens.astype(np.int32), batch_group,
    )  # fmt: skip


def _facts(path: epath.Path, offset: int, payload: bytes) -> tuple[int, int, int, int]:
    """Number of tokens, batch group, smallest and largest token id of a valid record."""

    def wrong(expected: str, got: object) -> RecordError:
        return damage(path, offset, expected, str(got), _WRITE_AGAIN)

    try:
        features = decode_example(payload)
    except ValueError as error:
        raise wrong("a tf.train.Example", f"{len(payload)} bytes that are none ({error})") from None
    tokens = features.get("tokens")
    if tokens is None:
        raise wrong("a feature 'tokens' of int64", f"the features {sorted(features)}")
    if tokens.dtype != np.int64 or not tokens.size:
        raise wrong("at least one int64 in 'tokens'", f"{tokens.size} of {tokens.dtype}")
    group = features.get("group", tokens)
    if group.dtype != np.int64 or group.size != tokens.size:
        got = f"{group.size} of {group.dtype}"
        raise wrong(f"an int64 in 'group' for each of {tokens.size} tokens", got)
    if group is not tokens and not 0 <= group.min() <= group.max() < 2**31:
        got = f"ids from {group.min()} to {group.max()}"
        raise wrong("'group' ids of at least 0 (0: padding) that fit int32", got)
    batch_group = features.get("batch_group", np.array([-1]))
    if batch_group.dtype != np.int64 or batch_group.size != 1 or batch_group[0] < -1:
        got = f"{batch_group.tolist()}"
        raise wrong("one int64 in 'batch_group' of at least 0 (-1: none)", got)
    return tokens.size, int(batch_group[0]), int(tokens.min()), int(tokens.max())


def _edges(path: epath.Path, size: int) -> int:
    if is_remote(path):
        last = max(0, size - _EDGE_BYTES)
        head, tail = (read_range(path, at, min(size, _EDGE_BYTES)) for at in (0, last))
        return google_crc32c.value(head + tail)
    with path.open("rb") as file:
        head = file.read(_EDGE_BYTES)
        file.seek(max(0, size - _EDGE_BYTES))
        return google_crc32c.value(head + file.read(_EDGE_BYTES))


def _load(path: epath.Path) -> ShardIndex | None:
    """The stored index; None if there is none, or this version cannot read it."""
    try:
        stored = np.load(io.BytesIO(read_bytes(_place(path))), allow_pickle=False)
        if stored["version"] != _VERSION:
            return None
        fields = {field.name: stored[field.name] for field in dataclasses.fields(ShardIndex)}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    return ShardIndex(**{k: v if v.ndim else int(v) for k, v in fields.items()})


def _save(path: epath.Path, index: ShardIndex) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, version=_VERSION, **dataclasses.asdict(index))
    place = _place(path)
    try:  # several hosts may build the same index at once: each writes its own file
        with beside(place) as partial:
            partial.write_bytes(buffer.getvalue())
    except (OSError, StageError) as error:
        logging.info("%s is kept in memory only: %s", place, error)


def _place(path: epath.Path) -> epath.Path:
    return path.parent / f"{path.name}{SUFFIX}"
