"""Reads the documents of a shard; unreadable ones are reported with their location, not raised.

A damaged file does stop the run, because nobody can know how much of it is missing.
"""

from collections.abc import Iterator
import json
import re
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from icl_jax.config import CorpusConfig
from icl_jax.corpus import builtin, tfds_source
from icl_jax.corpus.files import DamagedError, name_file
from icl_jax.corpus.piece_bytes import Line, place_of_byte, read_all, read_lines
from icl_jax.corpus.shards import Piece, Shard
from icl_jax.files.remote import open_to_read

# A longer line is not prose but a dump, a table, or a file that lost its line ends.
MAX_LINE_CHARACTERS = 1_000_000
_MAX_LINE_BYTES = 4 * MAX_LINE_CHARACTERS  # UTF-8 takes at most 4 bytes for a character
_MAX_JSON_BYTES = 1 << 28  # a JSON line holds a whole document, of many lines
_NAME_FIELD = "id"
_INVALID = "invalid UTF-8"
_DOC_TAG = re.compile(r'<doc id="(?P<name>[^"]*)".*? title="(?P<title>.*?)"(?: name=|>)')


class Document(NamedTuple):
    """One text and its location."""

    text: str
    title: str
    name: str  # the record's own id, or ""
    file: str
    place: str  # "line 12"; "row 3"; "byte 1234" (unpacked) where lines were not counted


class BadDocument(NamedTuple):
    """An unreadable document: its location and the reason."""

    file: str
    place: str
    reason: str


def read_documents(shard: Shard, config: CorpusConfig) -> Iterator[Document | BadDocument]:
    """All documents of a shard, readable or not, in order."""
    for piece in shard.pieces:
        with name_file(piece.file):
            yield from _READERS[piece.format](piece, config)


def _read_text(piece: Piece, config: CorpusConfig) -> Iterator[Document | BadDocument]:
    if config.text_documents == "file":
        yield _lines_document(piece, [read_all(piece)])
    elif config.text_documents == "line":
        for line in read_lines(piece, _MAX_LINE_BYTES):
            if _holds_text(line):
                yield _lines_document(piece, [line])
    else:
        yield from _read_blocks(piece)


def _read_blocks(piece: Piece) -> Iterator[Document | BadDocument]:
    lines = []
    for line in read_lines(piece, _MAX_LINE_BYTES):
        if _holds_text(line):
            lines.append(line)
        elif lines:
            yield _lines_document(piece, lines)
            lines = []
    if lines:
        yield _lines_document(piece, lines)


def _read_jsonl(piece: Piece, config: CorpusConfig) -> Iterator[Document | BadDocument]:
    # wikiextractor --json has its own fields, whatever those of the other files are.
    own = piece.format == "wikiextractor_json"
    fields = ("text", "title") if own else (config.text_field, config.title_field)
    for line in read_lines(piece, _MAX_JSON_BYTES):
        if line.content is None:
            reason = f"a record of more than {_MAX_JSON_BYTES:,} bytes"
            yield BadDocument(piece.file, line.place, reason)
        elif line.content.strip():
            yield _json_document(piece, line, fields)


def _json_document(piece: Piece, line: Line, fields: tuple[str, str]) -> Document | BadDocument:
    try:
        record = json.loads(line.content.decode())
    except UnicodeDecodeError as error:
        return _invalid_utf8(piece, line.start, error)
    except (ValueError, RecursionError):
        return BadDocument(piece.file, line.place, "not JSON")
    if not isinstance(record, dict):
        return BadDocument(piece.file, line.place, "not a JSON object")
    return _record(piece, line.place, record, fields)


def _read_wikiextractor(piece: Piece, _: CorpusConfig) -> Iterator[Document | BadDocument]:
    """`<doc id= url= title=>`, the lines of the text, `</doc>`."""
    held = None  # the lines of a document since its <doc>; None outside of one
    stray = False  # text outside is reported once, not for every line
    for line in read_lines(piece, _MAX_LINE_BYTES):
        content = line.content or b""
        if content.startswith(b"<doc "):
            if held is not None:
                yield BadDocument(piece.file, held[0].place, "no </doc>")
            held, stray = [line], False
        elif held is None:
            if not stray and _holds_text(line):
                yield BadDocument(piece.file, line.place, "text outside of <doc>")
                stray = True
        elif content.startswith(b"</doc>"):
            tag = _DOC_TAG.match(held[0].content.decode(errors="replace"))
            title, name = (tag["title"], tag["name"]) if tag else ("", "")
            yield _lines_document(piece, held[1:], held[0].place, title, name)
            held = None
        else:
            held.append(line)
    if held is not None:
        yield BadDocument(piece.file, held[0].place, "no </doc>")


def _read_parquet(piece: Piece, config: CorpusConfig) -> Iterator[Document | BadDocument]:
    row = piece.start
    try:
        with open_to_read(piece.file) as opened:
            for record in _parquet_rows(pq.ParquetFile(opened), piece, config):
                fields = (config.text_field, config.title_field)
                yield _record(piece, f"row {row}", record, fields)
                row += 1
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise DamagedError(piece.file, f"from row {row} on", error) from error


def _parquet_rows(file: pq.ParquetFile, piece: Piece, config: CorpusConfig) -> Iterator[dict]:
    group, first = 0, 0
    while first + (rows := file.metadata.row_group(group).num_rows) <= piece.start:
        group, first = group + 1, first + rows
    wanted = (config.text_field, config.title_field, _NAME_FIELD)
    names = [name for name in wanted if name in file.schema_arrow.names]
    if config.text_field not in names:
        yield from ({} for _ in range(piece.start, piece.stop))
        return
    for batch in file.iter_batches(1024, row_groups=[group], columns=names):
        table = {name: _as_bytes(batch.column(name)) for name in names}
        for i in range(max(0, piece.start - first), min(len(batch), piece.stop - first)):
            yield {name: column[i].as_py() for name, column in table.items()}
        first += len(batch)
        if first >= piece.stop:
            return


def _as_bytes(column: pa.Array) -> pa.Array:
    """Text as bytes, because a column may hold invalid UTF-8, which Arrow would refuse."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_string_view(column.type):
        return column.cast(pa.binary())
    return column.cast(pa.large_binary()) if pa.types.is_large_string(column.type) else column


def _read_tfds(piece: Piece, config: CorpusConfig) -> Iterator[Document | BadDocument]:
    fields = (config.text_field, config.title_field)
    examples = tfds_source.read(piece.file, piece.start, piece.stop)
    for i, record in enumerate(examples, piece.start):
        yield _record(piece, f"example {i}", record, fields)


def _read_builtin(piece: Piece, _: CorpusConfig) -> Iterator[Document | BadDocument]:
    for i, record in enumerate(builtin.read(piece.file, piece.start, piece.stop), piece.start):
        yield _record(piece, f"document {i}", record, ("text", "title"))


_READERS = {
    "text": _read_text,
    "jsonl": _read_jsonl,
    "wikiextractor": _read_wikiextractor,
    "wikiextractor_json": _read_jsonl,
    "parquet": _read_parquet,
    "tfds": _read_tfds,
    "builtin": _read_builtin,
}


def _record(
    piece: Piece, place: str, record: dict, fields: tuple[str, str]
) -> Document | BadDocument:
    text, title, name = (record.get(field) for field in (*fields, _NAME_FIELD))
    if text is None:
        return BadDocument(piece.file, place, f"no field '{fields[0]}'")
    if not isinstance(text, str | bytes):
        kind = type(text).__name__
        return BadDocument(piece.file, place, f"field '{fields[0]}' is not a string but {kind}")
    return _document(piece, place, text, _as_str(title), _as_str(name))


def _lines_document(
    piece: Piece, lines: list[Line], place: str = "", title: str = "", name: str = ""
) -> Document | BadDocument:
    """The document made of some lines; its location is that of the first, or `place`."""
    contents = [line.content for line in lines]
    text = None if None in contents else b"\n".join(contents)
    start = lines[0].start if lines else None
    return _document(piece, place or lines[0].place, text, title, name, start)


def _document(
    piece: Piece,
    place: str,
    text: str | bytes | None,
    title: str = "",
    name: str = "",
    start: int | None = None,
) -> Document | BadDocument:
    """The document, or why it is unreadable; a text of None had a line too long to keep.

    `start` is the byte where the text begins in the file; None: it is a field of a record.
    """
    reason = ""
    try:
        text = text.decode() if isinstance(text, bytes) else text
        (title + name + (text or "")).encode()
    except UnicodeDecodeError as error:
        if start is not None:
            return _invalid_utf8(piece, start, error)
        place, reason = f"{place}, byte {error.start} of its text", _INVALID
    except UnicodeEncodeError:
        reason = "half a surrogate pair"
    else:
        if text is None or _has_long_line(text):
            reason = f"a line of more than {MAX_LINE_CHARACTERS:,} characters"
        elif "\0" in text:
            reason = "a NUL character"
        elif not text.strip():
            reason = "empty"
    if reason:
        return BadDocument(piece.file, place, reason)
    return Document(text, title, name, piece.file, place)


def _invalid_utf8(piece: Piece, start: int, error: UnicodeDecodeError) -> BadDocument:
    """The location of the wrong byte, wherever the document begins."""
    return BadDocument(piece.file, place_of_byte(piece.file, start + error.start), _INVALID)


def _holds_text(line: Line) -> bool:
    return line.content is None or bool(line.content.strip())


def _has_long_line(text: str) -> bool:
    return len(text) > MAX_LINE_CHARACTERS and any(
        len(line) > MAX_LINE_CHARACTERS for line in text.splitlines()
    )


def _as_str(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)
