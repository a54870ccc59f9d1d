"""The public data set synthseq/flipflop: its splits made anew, and Parquet files of its form.

`datasets.Dataset.from_generator(rows, gen_kwargs={"split": "val_dense"})` is such a split. A file
has one column, `text`: 512 letters w, r, i, 0 and 1 without spaces.
"""

from collections.abc import Iterator
import itertools
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from icl_jax.config import ConfigError
from icl_jax.files.step_folder import beside
from icl_jax.sandboxes.flip_flop.language import Language, Mixture, ffl, from_text, to_text

COLUMN = "text"
DRAWN_AT_ONCE = 1024  # rows; those of a seed are the same whatever the count


class Split(NamedTuple):
    """A part of the public set."""

    rows: int
    language: Language


SPLITS = {
    "train": Split(1_600_000, ffl(512, 0.8)),
    "val": Split(16_000, ffl(512, 0.8)),
    "val_dense": Split(4_000, ffl(512, 0.1)),
    "val_sparse": Split(160_000, ffl(512, 0.98)),
}


def rows(
    split: str | Language | Mixture, count: int | None = None, seed: int = 0
) -> Iterator[dict[str, str]]:
    """New rows of a split, as many as it has unless told; or of any language, without end."""
    language, size = _open(split)
    count = size if count is None else count
    if count is not None and count < 1:
        raise ConfigError(f"expected a count of at least 1 row, got {count}")
    return itertools.islice(_endless(language, seed), count)


def write_parquet(
    file: Path, split: str | Language | Mixture, count: int | None = None, seed: int = 0
) -> int:
    """Writes such rows to a file; how many."""
    if count is None and _open(split)[1] is None:
        raise ConfigError("expected a count: only the splits of the public set have a size")
    schema, written = pa.schema([(COLUMN, pa.string())]), 0
    found = rows(split, count, seed)
    with beside(Path(file)) as partial, pq.ParquetWriter(partial, schema) as writer:
        while part := list(itertools.islice(found, DRAWN_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(part, schema))
            written += len(part)
    return written


def read_parquet(file: Path) -> Iterator[np.ndarray]:
    """The rows of a file as tokens, int32 (at most 1024 rows, tokens); stops on a wrong one."""
    file = Path(file)
    if not file.is_file():
        raise ConfigError(f"{file} does not exist; expected a Parquet file")
    try:
        opened = pq.ParquetFile(file)
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{file} is no Parquet file: {error}") from None
    columns = {field.name: field.type for field in opened.schema_arrow}
    if columns.get(COLUMN) not in (pa.string(), pa.large_string()):
        got = ", ".join(f"{name} ({kind})" for name, kind in columns.items())
        raise ConfigError(f"{file} needs a column '{COLUMN}' of strings, got {got or 'no column'}")
    return _parts(opened)


def _parts(opened: pq.ParquetFile) -> Iterator[np.ndarray]:
    done = 0
    for part in opened.iter_batches(DRAWN_AT_ONCE, columns=[COLUMN]):
        yield from_text([text or "" for text in part.column(0).to_pylist()], done)
        done += part.num_rows


def _open(split: str | Language | Mixture) -> tuple[Language | Mixture, int | None]:
    if not isinstance(split, str):
        return split, None
    if split not in SPLITS:
        raise ConfigError(f"expected a split of {', '.join(SPLITS)}, got '{split}'")
    return SPLITS[split].language, SPLITS[split].rows


def _endless(language: Language | Mixture, seed: int) -> Iterator[dict[str, str]]:
    @jax.jit
    def draw(part):
        return language.sample(jax.random.fold_in(jax.random.key(seed), part), DRAWN_AT_ONCE)

    for part in itertools.count():
        for text in to_text(jax.device_get(draw(part))):
            yield {COLUMN: text}
