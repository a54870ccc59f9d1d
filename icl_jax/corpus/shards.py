"""Cuts a corpus into shards: pieces of files that begin and end at document boundaries.

The cut depends only on the files and the shard size, never on the number of workers.
"""

from collections.abc import Callable, Iterator
import dataclasses
import functools
import io
import itertools

import pyarrow as pa
import pyarrow.parquet as pq

from icl_jax.config import ConfigError, CorpusConfig
from icl_jax.corpus import builtin, tfds_source
from icl_jax.corpus.files import (
    DamagedError,
    file_version,
    find_files,
    is_gzip,
    name_file,
    open_file,
)
from icl_jax.files.remote import open_to_read

# Reaching a piece may need decompressing from the start of a .gz, or decoding from the start of a
# Parquet row group: with 16 pieces that costs at most 8 more passes over the file. There are more
# pieces if one of 16 would be too large for the memory of a worker.
MAX_PIECES = 16
MAX_PIECE_BYTES = 1 << 28
MAX_DOCUMENT_BYTES = 1 << 30
_LINE_READ = 1 << 20
_SIZES = {"tfds": tfds_source.size, "builtin": builtin.size}  # sources that are not files


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of one file: bytes (decompressed if it is a .gz), rows or examples."""

    file: str
    format: str
    start: int
    stop: int | None  # None: to the end
    bytes: int  # approximate


@dataclasses.dataclass(frozen=True)
class Shard:
    """The pieces that one task reads."""

    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)


def plan_shards(
    config: CorpusConfig, shard_bytes: int, field: str = "design.corpus"
) -> list[Shard]:
    """The shards of a corpus, of about `shard_bytes` of text; small files share one."""
    shards = _all_shards(config, shard_bytes, field)
    ends = itertools.accumulate(shard.bytes for shard in shards)
    wanted = config.megabytes * 1e6 or float("inf")
    before = sum(end < wanted for end in ends)
    return shards[: before + 1]


def _all_shards(config: CorpusConfig, shard_bytes: int, field: str) -> list[Shard]:
    shards: list[Shard] = []
    held: list[Piece] = []
    size = 0
    for file, kind in find_files(config, field).items():
        with name_file(file):
            pieces = list(_pieces(file, kind, config, shard_bytes, field))
        for piece in pieces:
            if held and size + piece.bytes > shard_bytes:
                shards.append(Shard(tuple(held)))
                held, size = [], 0
            held.append(piece)
            size += piece.bytes
    return [*shards, Shard(tuple(held))]


def _pieces(file: str, kind: str, config: CorpusConfig, step: int, field: str) -> Iterator[Piece]:
    if kind in _SIZES:
        examples, size = _SIZES[kind](file)
        yield from _ranges(file, kind, 0, examples, size, -(-size // step))
    elif kind == "parquet":
        yield from _parquet_pieces(file, step)
    elif kind == "text" and config.text_documents == "file":
        yield Piece(file, kind, 0, None, _document_size(file, field))
    elif kind == "text" and config.text_documents == "block":
        yield from _byte_pieces(file, kind, step, _next_block)
    elif kind == "wikiextractor" and not _holds_json(file):
        yield from _byte_pieces(file, kind, step, _next_wiki_document)
    else:
        kind = "wikiextractor_json" if kind == "wikiextractor" else kind
        yield from _byte_pieces(file, kind, step, _next_line)


def _byte_pieces(file: str, kind: str, step: int, next_start: Callable) -> Iterator[Piece]:
    cuts, size = _find_cuts(file, file_version(file), step, next_start)
    if is_gzip(file):
        cuts = cuts[:: max(1, min(-(-len(cuts) // MAX_PIECES), MAX_PIECE_BYTES // step))]
    for start, stop in zip(cuts, [*cuts[1:], None], strict=True):
        yield Piece(file, kind, start, stop, (size if stop is None else stop) - start)


@functools.lru_cache(maxsize=1 << 16)  # it decompresses a .gz
def _find_cuts(
    file: str, version: tuple[int, int], step: int, next_start: Callable
) -> tuple[list[int], int]:
    """The beginnings of documents about `step` bytes apart, and the decompressed size."""
    cuts, size = [0], version[0]
    with open_file(file) as opened:
        while True:  # to the end of a .gz, so that a damaged one is found before any work
            opened.seek(cuts[-1] + step)
            _skip_line(opened)
            cut = next_start(opened)
            if cut is None:
                break
            cuts.append(cut)
        return cuts, opened.tell() if is_gzip(file) else size


def _next_line(file: io.BufferedIOBase) -> int | None:
    start = file.tell()
    return start if file.read(1) else None


def _next_block(file: io.BufferedIOBase) -> int | None:
    blank = False
    while True:
        start, line = file.tell(), _skip_line(file)
        if not line:
            return None
        if line.isspace():
            blank = True
        elif blank:
            return start


def _next_wiki_document(file: io.BufferedIOBase) -> int | None:
    while True:
        start, line = file.tell(), _skip_line(file)
        if not line:
            return None
        if line.startswith(b"<doc "):
            return start


def _skip_line(file: io.BufferedIOBase) -> bytes:
    """Moves to the next line; returns the beginning of the skipped one."""
    first = part = file.readline(_LINE_READ)
    while len(part) == _LINE_READ and not part.endswith(b"\n"):
        part = file.readline(_LINE_READ)
    return first


def _holds_json(file: str) -> bool:
    with open_file(file) as opened:
        return opened.read(1024).lstrip().startswith(b"{")


def _document_size(file: str, field: str) -> int:
    size, _ = now = file_version(file)
    if is_gzip(file):
        size = _find_cuts(file, now, MAX_DOCUMENT_BYTES, _next_line)[1]
    if size > MAX_DOCUMENT_BYTES:
        raise ConfigError(
            f"{field}.text_documents is file, but {file} has {size / 1e9:.1f} GB of text, too "
            "much for one document; set it to block (blank lines between documents) or line"
        )
    return size


def _parquet_pieces(file: str, step: int) -> Iterator[Piece]:
    try:
        with open_to_read(file) as opened:
            metadata = pq.ParquetFile(opened).metadata
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise DamagedError(file, "as a whole", error) from error
    start = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        size = group.total_byte_size
        parts = max(min(MAX_PIECES, -(-size // step)), -(-size // MAX_PIECE_BYTES))
        yield from _ranges(file, "parquet", start, group.num_rows, size, parts)
        start += group.num_rows


def _ranges(file: str, kind: str, first: int, count: int, size: int, parts: int) -> Iterator[Piece]:
    parts = min(max(parts, 1), count)
    cuts = [first + count * i // parts for i in range(parts + 1)] if parts else []
    for start, stop in itertools.pairwise(cuts):
        yield Piece(file, kind, start, stop, size // parts)
