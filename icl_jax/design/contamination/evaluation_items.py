"""Reads evaluation files into items, to look for them in the corpus: one item per line.

Every string of a JSON line is a field; fields of a .csv are separated by commas, or by tabs if its
first line has one; any other text is tab-separated. Each may be a .gz.

A .json may be one value for the whole file: then an item is an object in a list. If such lists are
nested (articles, paragraphs, questions, answers), it is one of the last list but one (a question
with its answers), together with the strings around it (its paragraph).
"""

from collections.abc import Iterator, Sequence
import contextlib
import csv
import json
from typing import NamedTuple

from icl_jax.config import ConfigError, CorpusConfig
from icl_jax.corpus.files import find_files, read_file
from icl_jax.files.remote import NoFileError

_FIELD = "design.examples.evaluation_files"
_JSON = (".jsonl", ".json", ".ndjson")
_TEXT = (".txt", ".text", ".tokens", ".md", ".tsv", ".csv")
_DEEP = 100  # levels of a JSON value


class Item(NamedTuple):
    """One question of an evaluation."""

    place: str  # in its file
    text: str  # as in the file
    fields: list[str]


def find_evaluation_files(patterns: Sequence[str]) -> list[str]:
    """The files that are named, in their order; those of a folder or glob are sorted."""
    found: dict[str, None] = {}
    for pattern in patterns:
        try:
            files = find_files(CorpusConfig(files=(pattern,), format="text"))
        except NoFileError as error:
            raise ConfigError(f"{_FIELD}: {error}") from None
        except ConfigError:
            raise ConfigError(
                f"{_FIELD}: nothing found at '{pattern}'; expected a file, a folder with files, or "
                "a glob that matches some"
            ) from None
        for file in files:
            if not _plain_name(file).endswith(_JSON + _TEXT):
                raise ConfigError(
                    f"{_FIELD}: the name of {file} does not show its format; known endings are "
                    f"{', '.join(_JSON + _TEXT)}, each also with .gz. Choose the files by a glob, "
                    "or rename it"
                )
            found[file] = None
    return list(found)


def read_items(file: str) -> list[Item]:
    """All items of one file; empty lines are skipped."""
    text = _decode(file, read_file(file, _FIELD))
    if _plain_name(file).endswith(".json"):
        with contextlib.suppress(ValueError, RecursionError):  # else it is JSON lines
            return list(_items_of(json.loads(text)))
    lines = [line.rstrip("\r") for line in text.split("\n")]
    split = _splitter(file, lines)
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    return [Item(f"line {number}", line, split(number, line)) for number, line in numbered]


def _decode(file: str, content: bytes) -> str:
    if b"\0" in content:
        raise _wrong(file, "a NUL byte: no text", "leave it out, or convert it to text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        got = f"invalid UTF-8 in line {line}, byte {error.start}"
        raise _wrong(file, got, "convert it to UTF-8") from None


def _splitter(file: str, lines: list[str]):
    name = _plain_name(file)
    if name.endswith(_JSON):
        return lambda number, line: _json_strings(file, number, line)
    if name.endswith(".csv") and lines and "\t" not in lines[0]:
        return lambda _, line: next(csv.reader([line]))
    return lambda _, line: line.split("\t")


def _json_strings(file: str, number: int, line: str) -> list[str]:
    try:
        return list(_strings(json.loads(line)))
    except (ValueError, RecursionError):
        fix = "expected a JSON value on each line"
        raise _wrong(file, f"no JSON in line {number}", fix) from None


def _items_of(value: object) -> Iterator[Item]:
    """The items of one JSON value."""
    list(_strings(value))  # stops if it is too deep
    levels = _levels(value)
    found = _entries(value, levels - 1 if levels > 1 else levels, [])
    if not levels and isinstance(value, list):
        found = ((entry, []) for entry in value)
    for number, (entry, around) in enumerate(found, 1):
        text = json.dumps(entry, ensure_ascii=False)
        yield Item(f"item {number}", _clean(text), [*_strings(entry), *around])


def _levels(value: object) -> int:
    """How deep lists of objects are nested."""
    return max((_levels(part) + is_entry for part, is_entry in _parts(value)), default=0)


def _entries(
    value: object, level: int, around: list[str]
) -> Iterator[tuple[object, Sequence[str]]]:
    """Objects this many lists deep, or the deepest there are; with the strings around each."""
    deeper = [(part, is_entry) for part, is_entry in _parts(value) if is_entry or _levels(part)]
    if level == 0 or not deeper:
        yield value, around
        return
    inner = {id(part) for part, _ in deeper}
    own = [text for part, _ in _parts(value) if id(part) not in inner for text in _strings(part)]
    for part, is_entry in deeper:
        yield from _entries(part, level - is_entry, [*around, *own])


def _parts(value: object) -> list[tuple[object, bool]]:
    """The parts of a value, and whether each is an object in a list."""
    if isinstance(value, dict):
        return [(part, False) for part in value.values()]
    if isinstance(value, list):
        return [(part, isinstance(part, dict)) for part in value]
    return []


def _strings(value: object, depth: int = 0) -> Iterator[str]:
    if depth > _DEEP:
        raise ValueError("too deep")
    if isinstance(value, str):
        yield _clean(value)
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part, depth + 1)


def _clean(text: str) -> str:
    return text.encode(errors="replace").decode()  # half a surrogate pair is no text


def _plain_name(file: str) -> str:
    return file.lower().removesuffix(".gz")


def _wrong(file: str, got: str, fix: str) -> ConfigError:
    return ConfigError(f"{_FIELD}: expected lines of UTF-8 text in {file}, got {got}; {fix}")
