"""Rows that `datasets` takes as they are, and Parquet files of the public set's form."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icl_jax.config import ConfigError
from icl_jax.sandboxes.flip_flop import Mixture, ffl, read_parquet, rows, write_parquet
from icl_jax.sandboxes.flip_flop.language import IGNORE, from_text
from icl_jax.sandboxes.flip_flop.public_format import DRAWN_AT_ONCE, SPLITS


def texts(*arguments, **options):
    return [row["text"] for row in rows(*arguments, **options)]


@pytest.mark.parametrize("split", SPLITS)
def test_rows_of_a_split_are_512_letters_of_its_language(split):
    found = texts(split, 50)
    assert {len(text) for text in found} == {512} and " " not in found[0]
    ignored = (from_text(found)[:, 2:-2:2] == IGNORE).mean()
    assert abs(ignored - SPLITS[split].language.ignore) < 0.02


def test_a_split_has_its_size_and_a_language_has_no_end():
    assert sum(1 for _ in rows("val_dense")) == 4000
    more = DRAWN_AT_ONCE + 3
    endless = [row["text"] for row in itertools.islice(rows(ffl(24, 0.3)), more)]
    assert len(set(endless)) == more  # parts differ
    assert texts(ffl(24, 0.3), 5) == endless[:5]
    assert texts(ffl(24, 0.3), 5, seed=1) != endless[:5]


def test_a_file_gives_the_rows_that_were_written(tmp_path):
    language, count = Mixture((ffl(10, 0.1), ffl(10, 0.9))), DRAWN_AT_ONCE + 7
    file = tmp_path / "rows.parquet"
    assert write_parquet(file, language, count) == count
    table = pq.read_table(file)
    assert table.schema.names == ["text"] and table.schema.field("text").type == pa.string()
    assert table.column("text").to_pylist() == texts(language, count)
    parts = list(read_parquet(file))
    assert [part.shape for part in parts] == [(DRAWN_AT_ONCE, 10), (7, 10)]
    np.testing.assert_array_equal(np.concatenate(parts), from_text(texts(language, count)))


def test_a_file_of_another_program_is_read_and_checked(tmp_path):
    file = tmp_path / "rows.parquet"
    good = ["w0i1r0", "w1i1r1"]
    pq.write_table(pa.table({"id": [1, 2], "text": good}), file)
    (part,) = read_parquet(file)
    np.testing.assert_array_equal(part, from_text(good))
    pq.write_table(pa.table({"text": [*["w0r0"] * DRAWN_AT_ONCE, "w0r0", "w0r1"]}), file)
    with pytest.raises(ConfigError, match=f"row {DRAWN_AT_ONCE + 1}, place 3: a read gives anoth"):
        list(read_parquet(file))
    pq.write_table(pa.table({"text": ["w0r0", None]}), file)
    with pytest.raises(ConfigError, match="row 1 has 0"):
        list(read_parquet(file))


def test_what_there_is_not_is_refused_at_once(tmp_path):
    other, torn = tmp_path / "other.parquet", tmp_path / "torn.parquet"
    pq.write_table(pa.table({"text": [1, 2]}), other)
    torn.write_text("w0r0")
    for call, words in (
        (lambda: rows("test"), "a split of train, val, val_dense, val_sparse, got 'test'"),
        (lambda: rows("val", 0), "at least 1 row, got 0"),
        (lambda: write_parquet(tmp_path / "x", ffl(8, 0.5)), "expected a count"),
        (lambda: read_parquet(tmp_path / "none"), "does not exist; expected a Parquet file"),
        (lambda: read_parquet(other), r"a column 'text' of strings, got text \(int64\)"),
        (lambda: read_parquet(torn), "torn.parquet is no Parquet file"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()
    assert not (tmp_path / "x").exists()


def test_datasets_takes_the_rows_as_they_are(tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    settings = {"split": "val_sparse", "count": 5}
    found = datasets.Dataset.from_generator(rows, gen_kwargs=settings, cache_dir=str(tmp_path))
    assert found.features["text"].dtype == "string"
    assert found["text"][:] == texts(**settings)
    file = tmp_path / "rows.parquet"
    found.to_parquet(file)
    assert len(np.concatenate(list(read_parquet(file)))) == 5
