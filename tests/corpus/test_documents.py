"""Documents in every format, and bad ones among them."""

import codecs
import gzip
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icl_jax.config import ConfigError, CorpusConfig, StageError
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
    "field 'text' is not a string but int": b'{"text": 3}',
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
        place = f"line {2 * i + 1}" + (", byte 10" if reason == "invalid UTF-8" else "")
        assert document == BadDocument(str(tmp_path / name), place, reason)


def test_bad_text_is_reported_with_its_line_or_with_its_byte_where_the_file_was_cut(tmp_path):
    blocks = [b"One. Two.", b"a\0b", b"\xff", b"start\n" + LONG.encode() + b"\nend", b"Last one."]
    path = corpora.write(tmp_path / "a.txt", b"\n\n".join(blocks))
    config = CorpusConfig(files=(str(path),), text_documents="block")
    whole = corpora.read_all(config, 1 << 30)
    reasons = ["a NUL character", "invalid UTF-8", "a line of more than 1,000,000 characters"]
    places = ["line 1", "line 3", "line 5, byte 16", "line 7", "line 11"]
    assert [d.place for d in whole] == places
    assert [d.reason for d in whole[1:4]] == reasons
    cut = corpora.read_all(config, 1)
    assert [d.reason for d in cut[1:4]] == reasons
    assert cut[2].place == "line 5, byte 16"
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


@pytest.mark.parametrize("text_documents", ["file", "block", "line"])
@pytest.mark.parametrize("start", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_invalid_utf8_is_named_with_its_own_line_and_byte(tmp_path, name, start, text_documents):
    before = start + b"One.\n\nTwo.\nThree, "
    path = corpora.write(tmp_path / name, before + b"\xff bad.\nFour.\n\nFive.\n\xff\n")
    config = CorpusConfig(files=(str(path),), text_documents=text_documents)
    for shard_bytes in (1, 1 << 20):
        bad = [d for d in corpora.read_all(config, shard_bytes) if isinstance(d, BadDocument)]
        found = [(d.file, d.place, d.reason) for d in bad]
        first = (str(path), f"line 4, byte {len(before)}", "invalid UTF-8")
        last = (str(path), f"line 8, byte {len(before) + 20}", "invalid UTF-8")
        assert found == [first] + [last] * (text_documents != "file")


def test_invalid_utf8_of_a_wikiextractor_document_is_named_with_its_line_and_byte(tmp_path):
    content = b'<doc id="1" url="" title="A">\nA\n\nText \xff.\n</doc>\n'
    corpora.write(tmp_path / "wiki_00", content)
    (bad,) = corpora.read_all(CorpusConfig(files=(str(tmp_path / "wiki_00"),)))
    assert bad.place == f"line 4, byte {content.index(0xFF)}"


def damage_gzip(content: bytes, kind: str) -> bytes:
    middle = len(content) // 2
    return {
        "cut in the middle": content[:middle],
        "cut before its checksum": content[:-8],
        "bytes overwritten": content[:middle] + b"\xff" * 40 + content[middle + 40 :],
        "no gzip at all": b"not packed",
        "empty": b"",
    }[kind]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "wiki_00.gz", "a.txt.gz"])
@pytest.mark.parametrize(
    "kind",
    [
        "cut in the middle",
        "cut before its checksum",
        "bytes overwritten",
        "no gzip at all",
        "empty",
    ],
)
def test_a_damaged_gzip_stops_the_run_before_all_work(tmp_path, name, kind):
    write = corpora.write_wikiextractor if "wiki" in name else corpora.write_jsonl
    corpora.write_jsonl(tmp_path / "0.jsonl", DOCUMENTS)
    path = tmp_path / name
    write(path, corpora.make_documents(400))
    path.write_bytes(damage_gzip(path.read_bytes(), kind))
    for text_documents in ("file", "block", "line"):
        config = CorpusConfig(files=(str(tmp_path),), text_documents=text_documents)
        with pytest.raises(StageError, match=rf"{name} is damaged at byte .*gzip -t .*remove it"):
            shards.plan_shards(config, 700)


def test_a_gzip_that_is_damaged_after_the_plan_stops_whoever_reads_it(tmp_path):
    path = corpora.write_jsonl(tmp_path / "a.jsonl.gz", corpora.make_documents(400))
    config = CorpusConfig(files=(str(path),))
    (shard,) = shards.plan_shards(config, 1 << 20)
    path.write_bytes(damage_gzip(path.read_bytes(), "cut in the middle"))
    with pytest.raises(StageError, match=r"a\.jsonl\.gz is damaged at byte"):
        list(read_documents(shard, config))


def test_an_unreadable_parquet_row_group_stops_the_run_with_its_row(tmp_path):
    path = corpora.write_parquet(tmp_path / "a.parquet", DOCUMENTS, rows=10)
    column = pq.ParquetFile(path).metadata.row_group(1).column(2)
    start, size = column.dictionary_page_offset, column.total_compressed_size
    content = path.read_bytes()
    path.write_bytes(content[:start] + b"\xff" * size + content[start + size :])
    with pytest.raises(StageError, match=r"a\.parquet is damaged from row 10 on"):
        corpora.read_all(CorpusConfig(files=(str(path),)))


@pytest.mark.parametrize("cut", [True, False])
def test_a_file_that_is_no_whole_parquet_stops_the_plan(tmp_path, cut):
    path = corpora.write_parquet(tmp_path / "a.parquet", DOCUMENTS)
    path.write_bytes(path.read_bytes()[:-100] if cut else b"PAR1 and nothing")
    with pytest.raises(StageError, match=r"a\.parquet is damaged as a whole"):
        shards.plan_shards(CorpusConfig(files=(str(tmp_path),)), 1 << 20)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz", "a.parquet"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    for files in (str(tmp_path / name), str(tmp_path), str(tmp_path / "a.*")):
        with pytest.raises(ConfigError, match=rf"{name} is a named pipe .*write its content"):
            shards.plan_shards(CorpusConfig(files=(files,)), 1 << 20)


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
    assert (invalid.place, invalid.reason) == ("row 1, byte 0 of its text", "invalid UTF-8")
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
