"""Reads the tables that evaluation data comes in: one dict for each row, column -> value.

Files: .csv, .tsv (tab-separated, quotes are text), .jsonl, .parquet, all but the last also .gz. The
questions of builtin:encyclopaedia. TensorFlow Datasets: tfds:NAME:SPLIT or tfds:FOLDER:SPLIT.
Hugging Face's `datasets`: hf:OWNER/NAME:SPLIT, hf:OWNER/NAME/CONFIG:SPLIT or hf:FOLDER:SPLIT.
"""

from collections.abc import Iterator
import csv
import hashlib
import io
import json
from pathlib import Path

from icl_jax.config import ConfigError
from icl_jax.corpus import builtin, tfds_source
from icl_jax.corpus.files import describe_file, name_file, read_file

FORMATS = (".csv", ".tsv", ".jsonl", ".json", ".ndjson", ".parquet")
_HF = "hf:"


def read_table(source: str, field: str) -> list[dict]:
    """All rows of a source; `field` is where the user named it, for errors."""
    if tfds_source.is_tfds(source):
        count, _ = tfds_source.size(source)
        return [_plain(row) for row in tfds_source.read(source, 0, count)]
    if builtin.is_builtin(source):
        return builtin.read_questions(source, field)
    if source.startswith(_HF):
        return list(_open_hf(source, field))
    if not Path(source).is_file():
        raise ConfigError(f"{field}: there is no file {source}")
    name = source.lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        return _read_parquet(source, field)
    if name.endswith((".csv", ".tsv")):
        tabs = name.endswith(".tsv")
        return list(_read_fields(source, field, "\t" if tabs else ",", quoted=not tabs))
    if name.endswith((".jsonl", ".json", ".ndjson")):
        return list(_read_json_lines(source, field))
    raise ConfigError(
        f"{field}: the name of {source} does not show its format; known are {', '.join(FORMATS)}, "
        "tfds:NAME:SPLIT and hf:NAME:SPLIT"
    )


def describe_source(source: str) -> dict:
    """What identifies the data of a source."""
    if tfds_source.is_tfds(source):
        return tfds_source.describe(source)
    if builtin.is_builtin(source):
        return builtin.describe(source)
    if source.startswith(_HF):
        rows = json.dumps(read_table(source, "hf"), sort_keys=True, default=str)
        return {"checksum": hashlib.sha256(rows.encode()).hexdigest()[:32]}
    return describe_file(source)


def named_sources(files: tuple[str, ...], field: str) -> dict[str, str]:
    """NAME=SOURCE entries as a dict."""
    named = {}
    for entry in files:
        name, equals, source = entry.partition("=")
        if not (name and equals and source) or name in named:
            raise ConfigError(f"{field}: expected NAME=SOURCE, each name once, got '{entry}'")
        named[name] = source
    return named


def read_text(file: str, field: str) -> str:
    """A whole text file, unpacked; stops if it is not UTF-8."""
    content = read_file(file, field)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{field}: {file} is not UTF-8 text (line {line}, byte {error.start}: {error.reason}); "
            "convert it to UTF-8"
        ) from None


def _read_fields(file: str, field: str, delimiter: str, quoted: bool) -> Iterator[dict]:
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    lines = csv.reader(
        io.StringIO(read_text(file, field), newline=""), delimiter=delimiter, quoting=quoting
    )
    header = next(lines, [])
    for fields in lines:
        if not fields:
            continue
        if len(fields) != len(header):
            raise ConfigError(
                f"{field}: line {lines.line_num} of {file} has {len(fields)} fields, but the "
                f"header has {len(header)} ({', '.join(header)})"
            )
        yield dict(zip(header, fields, strict=True))


def _read_json_lines(file: str, field: str) -> Iterator[dict]:
    for number, line in enumerate(read_text(file, field).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{field}: line {number} of {file} is not JSON ({error})") from None
        if not isinstance(row, dict):
            raise ConfigError(
                f"{field}: line {number} of {file} is not a JSON object: {line[:60]!r}"
            )
        yield row


def _read_parquet(file: str, field: str) -> list[dict]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with name_file(file):
            return pq.read_table(file).to_pylist()
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{field}: {file} is an unreadable Parquet file ({error})") from None


def _open_hf(source: str, field: str):
    try:
        import datasets
    except ImportError:
        raise ConfigError(
            f"{field}: {source} is read by Hugging Face's library: pip install datasets"
        ) from None
    name, _, split = source.removeprefix(_HF).partition(":")
    parts = [name] if Path(name).is_dir() else name.split("/")
    path, config = "/".join(parts[:2]), "/".join(parts[2:]) or None
    try:
        return datasets.load_dataset(path, config, split=split or "test")
    except Exception as error:  # the library and its transports have no common one
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"{field}: {source} could not be read ({type(error).__name__}: {reason}); without "
            "a network, give a file"
        ) from error


def _plain(value):
    """Bytes as text, arrays as lists."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value
