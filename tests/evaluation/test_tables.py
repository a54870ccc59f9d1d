"""Evaluation data in every format is the same rows; what cannot be read is named."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icl_jax.config import ConfigError
from icl_jax.evaluation.tables import describe_source, named_sources, read_table

ROWS = [
    {"question": 'who "is" it', "answer": "Zoë, they say"},
    {"question": "a\u2028b", "answer": "c"},
]


def write(folder, name):
    path = folder / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif ".tsv" in name:
        lines = ["question\tanswer", *(f"{row['question']}\t{row['answer']}" for row in ROWS)]
        path.write_bytes(pack(name, "\n".join(lines) + "\n"))
    elif ".csv" in name.lower():
        text = 'question,answer\r\n"who ""is"" it","Zoë, they say"\r\na\u2028b,c\r\n'
        path.write_bytes(pack(name, "\ufeff" + text))
    else:
        lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
        path.write_bytes(pack(name, "\n".join(lines) + "\n\n"))
    return str(path)


def pack(name, text):
    return gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()


@pytest.mark.parametrize(
    "name", ["a.tsv", "a.csv", "a.jsonl", "a.json.gz", "a.tsv.gz", "a.CSV", "a.parquet"]
)
def test_all_formats_are_the_same_rows(tmp_path, name):
    assert read_table(write(tmp_path, name), "here") == ROWS


def test_what_distinguishes_two_sources(tmp_path):
    first = describe_source(write(tmp_path, "a.jsonl"))
    assert first == describe_source(write(tmp_path, "b.jsonl"))
    (tmp_path / "c.jsonl").write_text("{}\n")
    assert first != describe_source(str(tmp_path / "c.jsonl"))


def test_a_folder_of_hugging_face_datasets_is_read(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", "test.jsonl")
    source = f"hf:{tmp_path / 'data'}:test"
    assert read_table(source, "here") == ROWS
    assert describe_source(source) == describe_source(source)
    with pytest.raises(ConfigError, match="could not be read"):
        read_table(f"hf:{tmp_path / 'data'}:nowhere", "here")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"x\ty\n1\n", r"line 2 of .*a\.tsv has 1 fields, but the header has 2 \(x, y\)"),
        ("a.jsonl", b'{"x": 1}\n{"x": \n', r"line 2 of .*a\.jsonl is not JSON"),
        ("a.jsonl", b"[1]\n", r"line 1 of .*a\.jsonl is not a JSON object"),
        ("a.csv", b"x\n\xff\n", r"a\.csv is not UTF-8 text \(line 2, byte 2: "),
        ("a.tsv.gz", b"x\n", r"a\.tsv\.gz is damaged at byte"),
        ("a.parquet", b"PAR0", "an unreadable Parquet"),
        ("a.xlsx", b"", r"does not show its format; known are \.csv, \.tsv"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        read_table(str(tmp_path / name), "evaluation.glue.files")
    assert str(error.value).startswith("evaluation.glue.files: ")


def test_named_sources():
    assert named_sources(("RTE=a=b.tsv", "MNLI=tfds:glue/mnli:x"), "here") == {
        "RTE": "a=b.tsv",
        "MNLI": "tfds:glue/mnli:x",
    }
    for wrong in (("RTE",), ("=a",), ("RTE=",), ("RTE=a", "RTE=b")):
        with pytest.raises(ConfigError, match="expected NAME=SOURCE, each name once"):
            named_sources(wrong, "here")
    with pytest.raises(ConfigError, match="there is no file"):
        read_table("nowhere.tsv", "here")
