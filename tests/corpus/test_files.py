"""Which files a corpus is made of, and how they are cut into shards."""

import os

import pytest

from icl_jax.config import ConfigError, CorpusConfig
from icl_jax.config.tree import validate
from icl_jax.corpus import files, shards
from icl_jax.corpus.files import describe_files, find_files
from icl_jax.corpus.shards import plan_shards
from tests.corpus import corpora


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.txt", "text"), ("a.TXT.gz", "text"), ("wiki.valid.tokens", "text"), ("a.ndjson", "jsonl"),
     ("a.json.gz", "jsonl"), ("b.parquet", "parquet"), ("wiki_07", "wikiextractor"),
     ("wiki_123.gz", "wikiextractor")],
)  # fmt: skip
def test_the_name_of_a_file_shows_its_format(tmp_path, name, kind):
    file = str(corpora.write(tmp_path / name, b"x"))
    assert find_files(CorpusConfig(files=(file,))) == {file: kind}


def test_a_name_that_shows_no_format_stops_with_the_known_ones(tmp_path):
    file = str(corpora.write(tmp_path / "notes.doc", b"x"))
    with pytest.raises(ConfigError, match=r"design\.corpus\.format.*notes\.doc.*\.jsonl.*wiki_NN"):
        find_files(CorpusConfig(files=(file,)))
    assert find_files(CorpusConfig(files=(file,), format="text")) == {file: "text"}


def test_folders_and_globs_give_sorted_files_once(tmp_path):
    for name in ("b/z.txt", "b/a/y.txt", "a.txt", ".hidden.txt", "_SUCCESS"):
        corpora.write(tmp_path / name, b"x")
    expected = [str(tmp_path / name) for name in ("a.txt", "b/a/y.txt", "b/z.txt")]
    assert list(find_files(CorpusConfig(files=(str(tmp_path),)))) == expected
    globs = (f"{tmp_path}/**/*.txt", f"{tmp_path}/a.txt")
    assert list(find_files(CorpusConfig(files=globs))) == expected


@pytest.mark.parametrize("missing", ["nothing.txt", "*.jsonl", "empty"])
def test_a_pattern_without_files_is_named(tmp_path, missing):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=missing.replace("*", r"\*")):
        find_files(CorpusConfig(files=(f"{tmp_path}/{missing}",)))


def test_a_list_of_files_in_one_string_gets_the_right_way_to_write_it(tmp_path):
    with pytest.raises(ConfigError, match=r"--config\.design\.queries\.files=\"\('a\.txt'"):
        find_files(CorpusConfig(files=("a.txt,b.txt",)), field="design.queries")


def test_a_file_named_in_two_ways_is_read_once_under_its_first_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpora.write(tmp_path / "a.txt", b"x")
    corpora.write(tmp_path / "b.txt", b"x")
    names = ("a.txt", "./*.txt", f"{tmp_path}/b.txt")
    assert list(find_files(CorpusConfig(files=names))) == ["a.txt", "./b.txt"]


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    with open(os.fsencode(tmp_path) + b"/caf\xe9.txt", "wb"):
        pass
    with pytest.raises(ConfigError, match=r"caf\\udce9\.txt' is not UTF-8"):
        find_files(CorpusConfig(files=(str(tmp_path),)))


def test_errors_name_the_field_that_the_files_come_from(tmp_path):
    file = str(corpora.write(tmp_path / "notes.doc", b"x"))
    for wrong in ((), ("nothing.txt",), (file,)):
        with pytest.raises(ConfigError, match=r"design\.queries\.f") as stop:
            describe_files(CorpusConfig(files=wrong), field="design.queries")
        assert "design.corpus" not in str(stop.value)


def test_a_file_is_read_once_for_its_description(tmp_path, monkeypatch):
    config = CorpusConfig(files=(str(corpora.write(tmp_path / "a.txt", b"x" * 100)),))
    first = describe_files(config)
    monkeypatch.setattr(files.google_crc32c, "extend", None)
    assert describe_files(config) == first


def test_a_change_anywhere_changes_the_description(tmp_path):
    path = tmp_path / "a.txt"
    config = CorpusConfig(files=(str(path),))
    content = b"a" * 200_000
    seen = []
    middle = content[:100_000] + b"b" + content[100_001:]
    for changed in (content, b"b" + content[1:], content[:-1] + b"b", content + b"a", middle):
        path.write_bytes(changed)
        seen.append(str(describe_files(config)))
    assert len(set(seen)) == 5


def test_small_files_share_a_shard_and_large_ones_are_cut(tmp_path):
    for i in range(10):
        corpora.write(tmp_path / f"{i}.txt", b"x" * 100)
    large = corpora.write(tmp_path / "large.jsonl", b'{"text": "A line."}\n' * 500)
    plan = plan_shards(CorpusConfig(files=(str(tmp_path),)), 1000)
    assert [len(shard.pieces) for shard in plan][:1] == [10]
    assert len(plan) == 1 + 10 and {p.file for s in plan[1:] for p in s.pieces} == {str(large)}
    assert all(shard.bytes <= 1020 for shard in plan)


def test_only_the_first_megabytes_are_read_to_the_end_of_a_shard(tmp_path):
    corpora.write(tmp_path / "a.jsonl", b'{"text": "A line."}\n' * 500)
    corpora.write(tmp_path / "b.jsonl", b'{"text": "B line."}\n' * 500)
    files = (str(tmp_path),)
    whole = plan_shards(CorpusConfig(files=files), 1000)
    for megabytes, count in ((0.0001, 1), (0.005, 5), (1.0, len(whole))):
        plan = plan_shards(CorpusConfig(files=files, megabytes=megabytes), 1000)
        assert plan == whole[:count]
    with pytest.raises(ConfigError, match="megabytes must be at least 0"):
        validate(CorpusConfig(files=files, megabytes=-1.0))


def test_a_gzip_is_cut_into_few_pieces_that_cover_it(tmp_path):
    corpora.write(tmp_path / "a.jsonl.gz", b'{"text": "A line."}\n' * 5000)
    plan = plan_shards(CorpusConfig(files=(str(tmp_path),)), 1000)
    pieces = [piece for shard in plan for piece in shard.pieces]
    assert 8 <= len(pieces) <= shards.MAX_PIECES
    assert [p.start for p in pieces[1:]] == [p.stop for p in pieces[:-1]]
    assert pieces[0].start == 0 and pieces[-1].stop is None
    assert sum(p.bytes for p in pieces) == 20 * 5000


def test_a_gzip_has_more_pieces_where_few_would_be_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MAX_PIECE_BYTES", 2000)
    corpora.write(tmp_path / "a.jsonl.gz", b'{"text": "A line."}\n' * 5000)
    plan = plan_shards(CorpusConfig(files=(str(tmp_path),)), 500)
    sizes = [piece.bytes for shard in plan for piece in shard.pieces]
    assert sum(sizes) == 20 * 5000 and 1000 < max(sizes) <= 2000 + 4 * 20


def test_a_gzip_is_unpacked_once_for_all_plans(tmp_path, monkeypatch):
    corpora.write(tmp_path / "a.jsonl.gz", b'{"text": "A line."}\n' * 50)
    config = CorpusConfig(files=(str(tmp_path),))
    first = plan_shards(config, 300)
    monkeypatch.setattr(shards, "open_file", None)
    assert plan_shards(config, 300) == first


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_text_file_too_large_for_one_document_stops_before_it_is_read(
    tmp_path, monkeypatch, name
):
    monkeypatch.setattr(shards, "MAX_DOCUMENT_BYTES", 1000)
    file = corpora.write(tmp_path / name, b"More than ten bytes." * 60)
    with pytest.raises(ConfigError, match=r"text_documents.*block"):
        plan_shards(CorpusConfig(files=(str(file),)), 1000)
