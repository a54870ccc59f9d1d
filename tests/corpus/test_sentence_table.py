"""The sentence table: the same whatever is in its way, and clear about what it cannot take."""

from collections import Counter
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

from icl_jax.config import CorpusConfig, StageError
from icl_jax.corpus import sentence_shards, sentence_table
from icl_jax.corpus.sentence_shards import TokenisedSentences, make_shard
from icl_jax.corpus.sentence_table import SentenceTable, build_table
from icl_jax.corpus.sentences import split_document
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.corpus.train_tokenizer import sample_sentences, train
from icl_jax.workers.local import Runner
from tests.corpus import corpora

DOCUMENTS = corpora.make_documents(41)
SHARD_BYTES = 1500


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> CorpusConfig:
    file = corpora.write_jsonl(tmp_path_factory.mktemp("corpus") / "a.jsonl", DOCUMENTS)
    return CorpusConfig(files=(str(file),), max_sentence_tokens=11)


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory, corpus) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train(sample_sentences(corpus, SHARD_BYTES), 400).save(folder)
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory, corpus, tokenizer_folder) -> SentenceTable:
    folder = tmp_path_factory.mktemp("table")
    return build_table(corpus, tokenizer_folder, folder, SHARD_BYTES, Runner(1))


def contents(folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    files.pop("cost.json", None)  # time and memory
    return files


def test_sentences_are_those_of_the_documents_in_order(corpus, table, tokenizer_folder):
    tokenizer = Tokenizer.open(tokenizer_folder)
    assert table.num_shards > 3 and len(table) == table.starts[-1]
    parts: dict[int, list[str]] = {}
    for i in range(len(table)):
        own = table.tokens(i)
        assert own.dtype == np.int32 and own.tolist() == tokenizer.encode(table.text(i)).tolist()
        assert 0 < len(own) <= 11
        assert table.positions[i] == len(parts.setdefault(int(table.documents[i]), []))
        parts[int(table.documents[i])].append(table.text(i))
    documents = corpora.read_all(corpus)
    assert table.num_documents == len(documents) == len(parts)
    for i, document in enumerate(documents):
        info = table.document(i)
        assert (info.file, info.name, info.title) == (document.file, document.name, document.title)
        sentences = "".join(split_document(document, corpus)[0]).replace(" ", "")
        assert "".join(parts[i]).replace(" ", "") == sentences


def test_random_access_equals_reading_shard_by_shard(table):
    in_order = [text for s in range(table.num_shards) for text in table.texts(s).to_pylist()]
    ids = np.random.default_rng(0).permutation(len(table))
    assert table.text_of(ids) == [in_order[i] for i in ids]
    assert [len(table.texts(s)) for s in range(table.num_shards)] == np.diff(table.starts).tolist()
    for wrong in (-1, len(table)):
        with pytest.raises(IndexError, match="expected an id from 0"):
            table.text(wrong)


def test_shards_are_one_record_batch_without_copies(table):
    file = pa.ipc.open_file(pa.memory_map(str(table.folder / "sentences-00000.arrow")))
    assert file.num_record_batches == 1
    types = {field.name: str(field.type) for field in file.schema}
    assert types == {
        "text": "string", "tokens": "list<item: int32>", "document": "int32", "position": "int32",
    }  # fmt: skip
    before = pa.total_allocated_bytes()
    assert len(SentenceTable.open(table.folder).texts(0)) and pa.total_allocated_bytes() == before


def test_the_results_count_everything(corpus, table):
    results = json.loads((table.folder / "results.json").read_text())
    assert results["documents"] == 41 and results["bad_documents"] == {}
    assert results["sentences"] == len(table) == sum(results["shard_sentences"])
    assert results["tokens"] == sum(len(table.tokens(i)) for i in range(len(table)))
    assert results["long_split"] > 0 and results["fingerprint"] == table.fingerprint


def test_any_number_of_workers_gives_the_same_bytes(corpus, table, tokenizer_folder, tmp_path):
    build_table(corpus, tokenizer_folder, tmp_path, SHARD_BYTES, Runner(3))
    assert contents(tmp_path) == contents(table.folder)


@pytest.mark.parametrize("kind", ["jsonl.gz", "parquet", "wiki"])
def test_every_format_gives_the_same_sentences(corpus, table, tokenizer_folder, tmp_path, kind):
    if kind == "parquet":
        file = corpora.write_parquet(tmp_path / "a.parquet", DOCUMENTS)
    elif kind == "wiki":
        file = corpora.write_wikiextractor(tmp_path / "wiki_00", DOCUMENTS)
    else:
        file = corpora.write_jsonl(tmp_path / "a.jsonl.gz", DOCUMENTS)
    config = CorpusConfig(files=(str(file),), max_sentence_tokens=11)
    other = build_table(config, tokenizer_folder, tmp_path / "table", SHARD_BYTES, Runner(1))
    assert other.text_of(range(len(other))) == table.text_of(range(len(table)))
    assert other.documents.tolist() == table.documents.tolist()


def test_a_failure_between_shards_costs_only_what_was_not_finished(
    corpus, table, tokenizer_folder, tmp_path, monkeypatch
):
    made = []

    def failing(*task):
        if task[-1] == 2 and 2 not in made:
            made.append(2)
            raise OSError("the disk went away")
        made.append(task[-1])
        return make_shard(*task)

    monkeypatch.setattr(sentence_table, "make_shard", failing)
    with pytest.raises(OSError, match="went away"):
        build_table(corpus, tokenizer_folder, tmp_path, SHARD_BYTES, Runner(1))
    with pytest.raises(StageError, match="no complete sentence table"):
        SentenceTable.open(tmp_path)
    (tmp_path / "sentences-00002.arrow.abc.partial").write_bytes(b"half")
    (tmp_path / "sentences-00003.arrow").write_bytes(b"of a shard whose summary is not there")
    build_table(corpus, tokenizer_folder, tmp_path, SHARD_BYTES, Runner(1))
    assert made == [0, 1, 2, 2, *range(3, table.num_shards)]
    assert contents(tmp_path) == contents(table.folder)


KILLED = """
import sys, time
from pathlib import Path
from icl_jax.config import CorpusConfig
from icl_jax.corpus import sentence_table
from icl_jax.corpus.sentence_shards import make_shard
from icl_jax.workers.local import Runner

def slow(*task):
    time.sleep(0.2)
    return make_shard(*task)

sentence_table.make_shard = slow
config = CorpusConfig(files=(sys.argv[1],), max_sentence_tokens=11)
tokenizer, folder = Path(sys.argv[2]), Path(sys.argv[3])
sentence_table.build_table(config, tokenizer, folder, int(sys.argv[4]), Runner(1))
"""


def test_a_killed_build_continues_to_the_same_bytes(corpus, table, tokenizer_folder, tmp_path):
    arguments = [corpus.files[0], str(tokenizer_folder), str(tmp_path), str(SHARD_BYTES)]
    process = subprocess.Popen([sys.executable, "-c", KILLED, *arguments])
    while not (tmp_path / "shard-00001.json").exists() and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "results.json").exists()
    build_table(corpus, tokenizer_folder, tmp_path, SHARD_BYTES, Runner(1))
    assert contents(tmp_path) == contents(table.folder)


def test_a_complete_table_is_only_opened(corpus, table, tokenizer_folder, monkeypatch):
    monkeypatch.setattr(sentence_table, "make_shard", None)
    again = build_table(corpus, tokenizer_folder, table.folder, SHARD_BYTES, Runner(1))
    assert again.fingerprint == table.fingerprint


def test_another_file_or_setting_is_named_and_never_mixed_in(tokenizer_folder, tmp_path):
    file = corpora.write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    config = CorpusConfig(files=(str(file),))
    build_table(config, tokenizer_folder, tmp_path / "table", SHARD_BYTES, Runner(1))
    with pytest.raises(StageError, match=r"corpus\.language: 'en' there, 'fr' here"):
        other = CorpusConfig(files=(str(file),), language="fr")
        build_table(other, tokenizer_folder, tmp_path / "table", SHARD_BYTES, Runner(1))
    corpora.write_jsonl(file, DOCUMENTS[1:])
    with pytest.raises(StageError, match=r"a\.jsonl\.bytes"):
        build_table(config, tokenizer_folder, tmp_path / "table", SHARD_BYTES, Runner(1))


def test_the_fingerprint_changes_with_any_sentence(table, tokenizer_folder, tmp_path):
    changed = [dict(document) for document in DOCUMENTS]
    changed[17]["text"] = changed[17]["text"].replace("river", "brook").replace("eats", "hunts")
    file = corpora.write_jsonl(tmp_path / "a.jsonl", changed)
    config = CorpusConfig(files=(str(file),), max_sentence_tokens=11)
    other = build_table(config, tokenizer_folder, tmp_path / "table", SHARD_BYTES, Runner(1))
    assert other.fingerprint != table.fingerprint


def test_few_bad_documents_are_listed_and_many_stop_the_run(tokenizer_folder, tmp_path):
    file = corpora.write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    with file.open("ab") as end:
        end.write(b'{"body": 1}\n\xff\n{"text": ""}\n')
    strict = CorpusConfig(files=(str(file),), max_bad_share=0.05)
    with pytest.raises(StageError, match=r"3 of 44 documents are bad.*1 x no field 'text'") as stop:
        build_table(strict, tokenizer_folder, tmp_path / "table", SHARD_BYTES, Runner(1))
    listed = tmp_path / "table" / "bad_documents.jsonl"
    assert str(listed) in str(stop.value) and "max_bad_share" in str(stop.value)
    lenient = CorpusConfig(files=(str(file),), max_bad_share=0.1)
    found = build_table(lenient, tokenizer_folder, tmp_path / "table", SHARD_BYTES, Runner(1))
    assert found.num_documents == 41
    entries = [json.loads(line) for line in listed.read_text().splitlines()]
    assert [e["reason"] for e in entries] == ["no field 'text'", "invalid UTF-8", "empty"]
    results = json.loads((tmp_path / "table" / "results.json").read_text())
    assert results["bad_documents"] == {"empty": 1, "invalid UTF-8": 1, "no field 'text'": 1}


def test_too_many_bad_documents_are_reported_with_their_field(tokenizer_folder, tmp_path):
    lines = [json.dumps(document) for document in DOCUMENTS[:31]] + ["no JSON"] * 10
    path = corpora.write(tmp_path / "a.jsonl", "\n".join(lines).encode())
    config = CorpusConfig(files=(str(path),), max_bad_share=0.2)
    with pytest.raises(StageError, match=r"10 of 41 documents .* design\.queries\.max_bad") as stop:
        build_table(
            config, tokenizer_folder, tmp_path / "t", 1 << 20, Runner(1), field="design.queries"
        )
    assert "10 x not JSON" in str(stop.value) and "design.corpus" not in str(stop.value)


def test_a_table_of_other_rules_is_not_taken(corpus, table, tokenizer_folder, monkeypatch):
    monkeypatch.setattr(sentence_table, "RULES_VERSION", 0)
    with pytest.raises(StageError, match="rules: 1 there, 0 here"):
        build_table(corpus, tokenizer_folder, table.folder, SHARD_BYTES, Runner(1))


def test_a_sample_takes_as_much_from_every_shard_it_reads(tmp_path):
    lines = [{"text": f"This is line number {i} of them all."} for i in range(1000)]
    file = corpora.write_jsonl(tmp_path / "a.jsonl.gz", lines)  # pieces are larger than asked for
    config = CorpusConfig(files=(str(file),))
    found = [int(text.split()[4]) for text in sample_sentences(config, 100, 8000)]
    fifths = Counter(i // 200 for i in found)
    assert len(fifths) == 5 and max(fifths.values()) < 2 * min(fifths.values())
    assert 8000 < sum(len(f"This is line number {i} of them all.") for i in found) < 9000


def test_a_sample_without_sentences_says_what_became_of_the_text(tmp_path):
    documents = [{"body": "Some text is here."}, {"text": "See also\nReferences"}]
    config = CorpusConfig(files=(str(corpora.write_jsonl(tmp_path / "a.jsonl", documents)),))
    with pytest.raises(StageError, match=r"2 by 'heading'.*1 x no field 'text'.*a\.jsonl, line 1"):
        train(sample_sentences(config, SHARD_BYTES), 400)


def test_a_shard_of_too_much_text_for_arrow_says_so(monkeypatch):
    texts = pa.chunked_array([["One."], ["Two."]])
    monkeypatch.setattr(sentence_shards.pa, "array", lambda *_: texts)
    tokenised = TokenisedSentences(["One."], np.zeros(1), np.arange(2), np.zeros(1, int), 0, 0)
    with pytest.raises(StageError, match=r"2 GB.*shard_megabytes"):
        sentence_shards._sentences(tokenised, [1])


def test_a_corpus_of_the_wrong_field_stops_after_its_first_shards(tokenizer_folder, tmp_path):
    corpora.write(tmp_path / "a.jsonl", b'{"body": "This is some text."}\n' * 4000)
    config = CorpusConfig(files=(str(tmp_path / "a.jsonl"),))
    with pytest.raises(StageError, match=r"documents are bad.*no field 'text'"):
        build_table(config, tokenizer_folder, tmp_path / "table", 3000, Runner(1))
    done = list((tmp_path / "table").glob("shard-*.json"))
    assert len(done) == sentence_table._FIRST_SHARDS < 4000 * 31 // 3000


def test_a_corpus_without_sentences_says_what_was_dropped(tokenizer_folder, tmp_path):
    documents = [{"text": "See also\nReferences"}, {"text": "* one item of a list."}]
    file = corpora.write_jsonl(tmp_path / "a.jsonl", documents)
    with pytest.raises(StageError, match=r"2 documents were read.*2 by 'heading', 1 by 'list'"):
        config = CorpusConfig(files=(str(file),))
        build_table(config, tokenizer_folder, tmp_path / "table", SHARD_BYTES, Runner(1))


@pytest.mark.parametrize("name", ["sentences-00001.arrow", "documents-00000.arrow"])
def test_a_truncated_shard_is_named(corpus, tokenizer_folder, tmp_path, name):
    build_table(corpus, tokenizer_folder, tmp_path, SHARD_BYTES, Runner(1))
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(StageError, match=rf"{name} is damaged.*delete"):
        SentenceTable.open(tmp_path)


@pytest.mark.parametrize("bad", [0, 2])
def test_the_step_ends_with_what_was_read_and_what_could_not_be(
    tokenizer_folder, tmp_path, capsys, bad
):
    lines = [json.dumps(document) for document in DOCUMENTS] + ["no JSON"] * bad
    file = corpora.write(tmp_path / "a.jsonl", "\n".join(lines).encode())
    config = CorpusConfig(files=(str(file),), max_bad_share=0.1)
    folder = tmp_path / "table"
    made = build_table(config, tokenizer_folder, folder, SHARD_BYTES, Runner(1))
    listed = f", listed in {folder / 'bad_documents.jsonl'}" if bad else ""
    said = (
        f"design.corpus: 41 documents, {len(made)} sentences; {bad} documents unreadable{listed}\n"
    )
    assert said in capsys.readouterr().out


def test_a_truncated_gzip_leaves_no_table(tokenizer_folder, tmp_path):
    file = corpora.write_jsonl(tmp_path / "a.jsonl.gz", corpora.make_documents(400))
    file.write_bytes(file.read_bytes()[:-2000])
    config = CorpusConfig(files=(str(file),), max_bad_share=1.0)
    with pytest.raises(StageError, match=r"a\.jsonl\.gz is damaged at byte"):
        build_table(config, tokenizer_folder, tmp_path / "table", SHARD_BYTES, Runner(1))
    assert not (tmp_path / "table" / "results.json").exists()
