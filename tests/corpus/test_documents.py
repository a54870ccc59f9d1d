"""Documents in every format, and bad ones among them."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icl_jax.config import CorpusConfig, StageError
from icl_jax.corpus import shards
from icl_jax.corpus.documents import MAX_LINE_CHARACTERS, BadDocument, Document, read_documents
from tests.corpus import corpora

DOCUMENTS = corpora.make_documents()
LONG = "x" * (MAX_LINE_CHARACTERS + 1)


def write_text_files(path, documents):
    for i, document in enumerate(documents):
        corpora.write(path / f"{i:03d}.txt", document["text"].encode())
    return path


def write_lines(path, documents):
    return corpora.write(path, "\n".join(d["text"].replace("\n", " ") for d in documents).encode())


FORMATS = {
    "jsonl": ("a.jsonl", corpora.write_jsonl, "file"),
    "jsonl_gz": ("a.jsonl.gz", corpora.write_jsonl, "file"),
    "wikiextractor": ("AA/wiki_00", corpora.write_wikiextractor, "file"),
    "wikiextractor_gz": ("AA/wiki_00.gz", corpora.write_wikiextractor, "file"),
    "wikiextractor_json": ("AA/wiki_00", corpora.write_jsonl, "file"),
    "parquet": ("a.parquet", corpora.write_parquet, "file"),
    "text_file": ("texts", write_text_files, "file"),
    "text_block": ("a.txt", corpora.write_blocks, "block"),
    "text_block_gz": ("a.txt.gz", corpora.write_blocks, "block"),
    "text_line": ("a.txt", write_lines, "line"),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("shard_bytes", [1, 700, 1 << 20])
def test_every_format_gives_the_same_documents_however_it_is_cut(tmp_path, kind, shard_bytes):
    name, write, text_documents = FORMATS[kind]
    write(tmp_path / name, DOCUMENTS)
    config = CorpusConfig(files=(str(tmp_path),), text_documents=text_documents)
    found = corpora.read_all(config, shard_bytes)
    assert all(isinstance(document, Document) for document in found)
    for document, expected in zip(found, DOCUMENTS, strict=True):
        text = expected["text"] if kind != "text_line" else expected["text"].replace("\n", " ")
        title = f"{expected['title']}\n\n" if kind in ("wikiextractor", "wikiextractor_gz") else ""
        assert document.text.strip() == title + text
        if not kind.startswith("text"):
            assert (document.title, document.name) == (expected["title"], expected["id"])


BAD_LINES = {
    "invalid UTF-8": b'{"text": "\xff\xfe"}',
    "a NUL character": b'{"text": "a \\u0000 b"}',
    "half a surrogate pair": b'{"text": "a \\ud800 b"}',
    "empty": b'{"text": " \\n "}',
    "no field 'text'": b'{"body": "x"}',
    "field 'text' is no string but int": b'{"text": 3}',
    "not JSON": b'{"text": "x"',
    "not a JSON object": b'["text"]',
    "a line of more than 1,000,000 characters": json.dumps({"text": LONG}).encode(),
}


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_every_bad_json_line_is_reported_and_its_neighbours_stay(tmp_path, name):
    good = b'{"text": "A good one."}'
    lines = [line for bad in BAD_LINES.values() for line in (bad, good)]
    corpora.write(tmp_path / name, b"\n".join(lines))
    found = corpora.read_all(CorpusConfig(files=(str(tmp_path / name),)))
    assert [d.text for d in found[1::2]] == ["A good one."] * len(BAD_LINES)
    for i, (document, reason) in enumerate(zip(found[::2], BAD_LINES, strict=True)):
        assert document == BadDocument(str(tmp_path / name), f"line {2 * i + 1}", reason)


def test_bad_text_is_reported_with_its_line_or_with_its_byte_where_the_file_was_cut(tmp_path):
    blocks = [b"One. Two.", b"a\0b", b"\xff", b"start\n" + LONG.encode() + b"\nend", b"Last one."]
    path = corpora.write(tmp_path / "a.txt", b"\n\n".join(blocks))
    config = CorpusConfig(files=(str(path),), text_documents="block")
    whole = corpora.read_all(config, 1 << 30)
    reasons = ["a NUL character", "invalid UTF-8", "a line of more than 1,000,000 characters"]
    assert [d.place for d in whole] == ["line 1", "line 3", "line 5", "line 7", "line 11"]
    assert [d.reason for d in whole[1:4]] == reasons
    cut = corpora.read_all(config, 1)
    assert [d.reason for d in cut[1:4]] == reasons
    assert cut[-1].text == "Last one." and cut[-1].place == f"byte {path.stat().st_size - 9}"


def test_a_ten_megabyte_line_is_one_bad_document(tmp_path):
    path = corpora.write(tmp_path / "a.txt", b"First line.\n" + b"x" * 10_000_000 + b"\nLast line.")
    config = CorpusConfig(files=(str(path),), text_documents="line")
    first, bad, last = corpora.read_all(config)
    assert (first.text, last.text) == ("First line.", "Last line.")
    assert bad.place == "line 2" and "1,000,000" in bad.reason


def test_a_broken_wikiextractor_document_does_not_swallow_its_neighbours(tmp_path):
    lines = [
        "stray text", "more of it", '<doc id="1" url="" title="A">', "A", "No end.",
        '<doc id="2" url="" title="B &quot;x&quot;">', "B", "Good.", "</doc>",
        '<doc id="3" url="" title="C">', "cut off",
    ]  # fmt: skip
    corpora.write(tmp_path / "wiki_00", "\n".join(lines).encode())
    found = corpora.read_all(CorpusConfig(files=(str(tmp_path / "wiki_00"),)))
    bad = [(d.place, d.reason) for d in found if isinstance(d, BadDocument)]
    assert bad == [
        ("line 1", "text outside of <doc>"), ("line 3", "no </doc>"), ("line 10", "no </doc>"),
    ]  # fmt: skip
    assert found[2].text == "B\nGood." and found[2].name == "2"


@pytest.mark.parametrize("shard_bytes", [1, 1 << 20])
def test_a_truncated_gzip_keeps_what_can_be_read_and_is_one_bad_document(tmp_path, shard_bytes):
    documents = corpora.make_documents(400)
    content = corpora.write_jsonl(tmp_path / "a.jsonl.gz", documents).read_bytes()
    (tmp_path / "a.jsonl.gz").write_bytes(content[: len(content) * 2 // 3])
    found = corpora.read_all(CorpusConfig(files=(str(tmp_path / "a.jsonl.gz"),)), shard_bytes)
    *good, bad = found
    assert isinstance(bad, BadDocument)
    assert bad.reason.startswith("damaged gzip") and "whatever followed" in bad.reason
    assert 0 < len(good) < len(documents)
    assert [d.name for d in good] == [d["id"] for d in documents[: len(good)]]


def test_what_is_no_gzip_at_all_is_one_bad_document(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(b"not packed")
    corpora.write_jsonl(tmp_path / "b.jsonl.gz", DOCUMENTS[:2])
    found = corpora.read_all(CorpusConfig(files=(str(tmp_path),)))
    assert [type(d) for d in found] == [BadDocument, Document, Document]


def test_an_unreadable_parquet_row_group_is_reported_and_the_others_are_read(tmp_path):
    path = corpora.write_parquet(tmp_path / "a.parquet", DOCUMENTS, rows=10)
    column = pq.ParquetFile(path).metadata.row_group(1).column(2)
    start, size = column.dictionary_page_offset, column.total_compressed_size
    content = path.read_bytes()
    path.write_bytes(content[:start] + b"\xff" * size + content[start + size :])
    found = corpora.read_all(CorpusConfig(files=(str(path),)))
    bad = [d for d in found if isinstance(d, BadDocument)]
    assert len(bad) == 1 and bad[0].place == "rows from 10 on" and "Parquet" in bad[0].reason
    assert bad[0].count == 10
    names = [d.name for d in found if isinstance(d, Document)]
    assert names == [d["id"] for d in DOCUMENTS[:10] + DOCUMENTS[20:]]


def test_a_file_that_is_no_parquet_is_one_bad_document(tmp_path):
    corpora.write(tmp_path / "a.parquet", b"PAR1 and nothing")
    (bad,) = corpora.read_all(CorpusConfig(files=(str(tmp_path),)))
    assert "unreadable Parquet" in bad.reason


def test_parquet_rows_of_a_stated_size_of_nothing_are_read():
    assert [(p.start, p.stop) for p in shards._ranges("a", "parquet", 5, 3, 0, 0)] == [(5, 8)]
    assert not list(shards._ranges("a", "parquet", 5, 0, 0, 0))


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_file_that_went_away_stops_the_run_and_is_no_bad_document(tmp_path, name):
    write = corpora.write_parquet if name.endswith("parquet") else corpora.write_jsonl
    config = CorpusConfig(files=(str(write(tmp_path / name, DOCUMENTS)),))
    (shard,) = shards.plan_shards(config, 1 << 20)
    (tmp_path / name).unlink()
    with pytest.raises(StageError, match=f"{name} cannot be read .*No such file"):
        list(read_documents(shard, config))


def test_a_parquet_file_that_may_not_be_opened_stops_the_plan(tmp_path, monkeypatch):
    path = corpora.write_parquet(tmp_path / "a.parquet", DOCUMENTS)

    def fail(_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(shards.pq, "ParquetFile", fail)
    with pytest.raises(StageError, match=r"a\.parquet cannot be read .*Too many open files"):
        shards.plan_shards(CorpusConfig(files=(str(path),)), 1 << 20)


@pytest.mark.parametrize("rest", [">", ' name="x">', ' name="the "x">">'])
def test_the_title_of_a_wikiextractor_document_ends_before_what_follows(tmp_path, rest):
    tag = f'<doc id="7" url="u" title="The "X" of Y"{rest}'
    corpora.write(tmp_path / "wiki_00", f"{tag}\nSome text.\n</doc>\n".encode())
    (document,) = corpora.read_all(CorpusConfig(files=(str(tmp_path / "wiki_00"),)))
    assert (document.name, document.title) == ("7", 'The "X" of Y')


def test_parquet_rows_without_text_or_with_invalid_text_are_bad_one_by_one(tmp_path):
    broken = pa.array([b"Good text.", b"\xff\xff", None], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": broken}), tmp_path / "a.parquet")
    good, invalid, missing = corpora.read_all(CorpusConfig(files=(str(tmp_path),)))
    assert good.text == "Good text." and good.place == "row 0"
    assert (invalid.place, invalid.reason) == ("row 1", "invalid UTF-8")
    assert (missing.place, missing.reason) == ("row 2", "no field 'text'")
    absent = corpora.read_all(CorpusConfig(files=(str(tmp_path),), text_field="body"))
    assert [d.reason for d in absent] == ["no field 'body'"] * 3


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    corpora.write(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"text": "One."}\n')
    (document,) = corpora.read_all(CorpusConfig(files=(str(tmp_path),)))
    assert document.text == "One."


def test_other_fields_can_hold_text_and_title(tmp_path):
    corpora.write(tmp_path / "a.jsonl", b'{"body": "One.", "head": "H", "id": 7}')
    config = CorpusConfig(files=(str(tmp_path),), text_field="body", title_field="head")
    (document,) = corpora.read_all(config)
    assert (document.text, document.title, document.name) == ("One.", "H", "7")


def test_gzip_members_one_after_the_other_are_one_file(tmp_path):
    parts = [gzip.compress(json.dumps(d).encode() + b"\n") for d in DOCUMENTS[:3]]
    (tmp_path / "a.jsonl.gz").write_bytes(b"".join(parts))
    found = corpora.read_all(CorpusConfig(files=(str(tmp_path),)))
    assert [d.name for d in found] == ["100", "101", "102"]
