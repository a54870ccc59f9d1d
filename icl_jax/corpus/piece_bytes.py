"""The bytes and lines of a piece of a file, unpacked where it is a .gz."""

import codecs
from collections.abc import Iterator
import contextlib
import threading

from icl_jax.corpus.files import file_version, is_gzip
from icl_jax.corpus.shards import GZIP_ERRORS, Piece, open_file

_CHUNK = 1 << 20


class UnreadableError(Exception):
    """The rest of a piece cannot be read; holds the place and the reason."""


def read_lines(piece: Piece, limit: int) -> Iterator[tuple[str, bytes | None]]:
    """Place and content of every line; None for one of more than `limit` bytes."""
    number, start, parts, size = 1, piece.start, [], 0
    for chunk in read_chunks(piece):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            parts.append(end)
            size += len(end)
            place = f"line {number}" if piece.start == 0 else f"byte {start}"
            yield place, b"".join(parts) if size <= limit else None
            number, start, parts, size = number + 1, start + size + 1, [], 0
        size += len(rest)
        parts = [*parts, rest] if size <= limit else []
    if size:
        place = f"line {number}" if piece.start == 0 else f"byte {start}"
        yield place, b"".join(parts) if size <= limit else None


def read_chunks(piece: Piece) -> Iterator[bytes]:
    """The bytes of a piece; a damaged .gz gives what can be read, then an `UnreadableError`."""
    position = piece.start
    try:
        with _open_at(piece.file, position) as file:
            while piece.stop is None or position < piece.stop:
                left = _CHUNK if piece.stop is None else min(_CHUNK, piece.stop - position)
                chunk = file.read1(left)
                if not chunk:
                    return
                yield chunk.removeprefix(codecs.BOM_UTF8) if position == 0 else chunk
                position += len(chunk)
    except GZIP_ERRORS as error:
        reason = f"damaged gzip ({error}), and whatever followed"
        raise UnreadableError(f"byte {position}", reason) from error


@contextlib.contextmanager
def _open_at(name: str, position: int):
    """The file at a place. A .gz goes on where its last reader stopped, if that was before."""
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
