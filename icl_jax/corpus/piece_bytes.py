"""The bytes and lines of a piece of a file, decompressed if it is a .gz."""

import codecs
from collections.abc import Iterator
import contextlib
import threading
from typing import NamedTuple

from icl_jax.corpus.files import file_version, is_gzip, open_file
from icl_jax.corpus.shards import Piece

_CHUNK = 1 << 20


class Line(NamedTuple):
    """One line without its end."""

    place: str
    start: int  # byte of the decompressed file
    content: bytes | None  # None: too long to keep


def read_lines(piece: Piece, limit: int) -> Iterator[Line]:
    """Every line; those of more than `limit` bytes come without their content."""
    number, start, parts, size = 1, piece.start, [], 0
    for chunk in _read_chunks(piece):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            parts.append(end)
            size += len(end)
            yield _line(piece, number, start, b"".join(parts) if size <= limit else None)
            number, start, parts, size = number + 1, start + size + 1, [], 0
        size += len(rest)
        parts = [*parts, rest] if size <= limit else []
    if size:
        yield _line(piece, number, start, b"".join(parts) if size <= limit else None)


def read_all(piece: Piece) -> Line:
    """A whole piece as if it were one line."""
    return _line(piece, 1, piece.start, b"".join(_read_chunks(piece)))


def place_of_byte(file: str, byte: int) -> str:
    """The line, counted from 1, and the byte, counted from 0."""
    key = (file, file_version(file))
    known, before, lines = vars(_counted).pop("lines", (None, 0, 0))
    if known != key or before > byte:
        before, lines = 0, 0
    with open_file(file) as opened:
        opened.seek(before)
        while before < byte and (chunk := opened.read(min(_CHUNK, byte - before))):
            before, lines = before + len(chunk), lines + chunk.count(b"\n")
    _counted.lines = (key, before, lines)  # the next place is usually further on
    return f"line {lines + 1}, byte {byte}"


def _line(piece: Piece, number: int, start: int, content: bytes | None) -> Line:
    place = f"line {number}" if piece.start == 0 else f"byte {start}"
    if start == 0 and content is not None and content.startswith(codecs.BOM_UTF8):
        start, content = len(codecs.BOM_UTF8), content.removeprefix(codecs.BOM_UTF8)
    return Line(place, start, content)


def _read_chunks(piece: Piece) -> Iterator[bytes]:
    position = piece.start
    with _open_at(piece.file, position) as file:
        while piece.stop is None or position < piece.stop:
            left = _CHUNK if piece.stop is None else min(_CHUNK, piece.stop - position)
            chunk = file.read1(left)
            if not chunk:
                return
            yield chunk
            position += len(chunk)


@contextlib.contextmanager
def _open_at(name: str, position: int):
    """The file at a place. A .gz continues where its last reader stopped, if that was earlier."""
    key = (name, file_version(name))
    held, file = vars(_left_open).pop("file", (None, None))
    if file is not None and held != key:
        file.close()
        file = None
    if file is not None and file.tell() > position:
        file.close()
        file = None
    file = file or open_file(name)
    try:
        file.seek(position)
        yield file
    except BaseException:
        file.close()
        raise
    if is_gzip(name):
        _left_open.file = (key, file)
    else:
        file.close()


_left_open = threading.local()  # `file`: (key, file), at most one for each thread
_counted = threading.local()  # `lines`: (key, byte, line ends before it)
