"""Overlap with evaluation files: what counts, exactly, and which files are refused."""

import gzip
import json
import os
from pathlib import Path
import re

import numpy as np
import pyarrow as pa
import pytest

from icl_jax.config import ConfigError, ExamplesConfig, StageError
from icl_jax.design.contamination import word_runs
from icl_jax.design.contamination.evaluation_items import read_items
from icl_jax.design.contamination.overlap import check_evaluation_files, find_overlap
from icl_jax.design.contamination.word_runs import collect_runs, find_runs
from icl_jax.design.folders import DesignFolders
from icl_jax.design.sentences import Sentences
from icl_jax.design.stage import find_related
from icl_jax.workers.local import Runner
from tests.design.test_find_related import experiment

DOCUMENTS = [
    "The old miller of Kersk sold nine sacks of flour to the baker. Then he went home.",
    "Nobody in Ulmund had seen such a winter. The harbour froze, and ships lay still for weeks!",
    "A weaver's daughter from Tarn learned to read. She wrote the chronicle of the guild.",
]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overlap")
    file = folder / "documents.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    config = experiment(file, shard_megabytes=0.0001)
    find_related(config, folder, neighbours=False)
    return folder


def overlap(workdir: Path, files: list[Path], words: int = 5, workers: int = 1) -> dict:
    sentences = Sentences.open(workdir, has_queries=False)
    assert sentences.corpus.num_shards > 1
    examples = ExamplesConfig(evaluation_files=tuple(map(str, files)), overlap_words=words)
    folder = DesignFolders(workdir).overlap
    for file in folder.glob("*"):
        file.unlink()
    return find_overlap(workdir, examples, sentences, Runner(workers))["files"]


def write(file: Path, *lines: str) -> Path:
    file.write_text("".join(line + "\n" for line in lines))
    return file


def test_five_words_in_a_row_overlap_and_four_do_not(workdir, tmp_path):
    file = write(
        tmp_path / "items.txt",
        "who sold NINE SACKS, of flour... and to whom",  # five in common
        "he sold nine sacks of wheat to the baker",  # four and three
        "ships lay still and so did the harbour",
        "",
        "the harbour froze and ships",  # as long as a run
    )
    found = overlap(workdir, [file])[str(file)]
    assert (found["items"], found["overlapping"], found["by_long_run"]) == (4, 2, 2)
    first, second = found["samples"]
    assert (first["place"], first["words"]) == ("line 1", "sold nine sacks of flour")
    assert "sold nine sacks" in Sentences.open(workdir, has_queries=False).text(first["sentence"])
    assert (second["place"], second["words"]) == ("line 5", "the harbour froze and ships")


def test_a_run_continues_into_the_next_sentence_but_not_into_the_next_document(workdir, tmp_path):
    file = write(
        tmp_path / "items.txt",
        "flour to the baker then he went away",
        "then he went home nobody in Ulmund had",
    )
    found = overlap(workdir, [file], words=6)[str(file)]
    assert [sample["place"] for sample in found["samples"]] == ["line 1"]
    assert "sacks of flour" in Sentences.open(workdir, has_queries=False).text(
        found["samples"][0]["sentence"]
    )


def test_a_short_field_counts_as_a_whole_from_four_words_on(workdir, tmp_path):
    file = write(
        tmp_path / "items.jsonl",
        json.dumps({"question": "where?", "answers": ["in it", "learned to read, she"]}),
        json.dumps({"question": "learned to read", "answers": []}),  # three words
        json.dumps(["learned to read it", {"deep": ["no text in common at all"]}]),
        json.dumps("froze"),
    )
    found = overlap(workdir, [file], words=13)[str(file)]
    assert (found["overlapping"], found["by_long_run"], found["too_short"]) == (1, 0, 2)
    assert found["samples"][0]["words"] == "learned to read she"


def test_of_several_runs_of_an_item_the_longest_is_reported(workdir, tmp_path):
    fields = ["he went home.", "then he went home", "had seen such a winter", "ships lay still for"]
    file = write(tmp_path / "items.jsonl", json.dumps(fields))
    found = overlap(workdir, [file])[str(file)]
    assert (found["overlapping"], found["by_long_run"]) == (1, 1)
    assert found["samples"][0]["words"] == "had seen such a winter"


def test_fields_of_a_table_stand_apart(workdir, tmp_path):
    tabs = write(
        tmp_path / "a.tsv", "x\tships lay still\tfor weeks", "x\tships lay still for weeks"
    )
    commas = write(
        tmp_path / "b.csv", '1,"ships lay still, for weeks",y', "ships lay still,for weeks"
    )
    tabbed = write(
        tmp_path / "c.csv", "1\tships lay still, for weeks", "ships lay still\tfor weeks"
    )
    packed = tmp_path / "d.txt.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbfships lay still for weeks\r\nnothing\r\n"))
    found = overlap(workdir, [tabs, commas, tabbed, packed])
    assert [[sample["place"] for sample in counts["samples"]] for counts in found.values()] == [
        ["line 2"], ["line 1"], ["line 1"], ["line 1"],
    ]  # fmt: skip


def test_folders_and_globs_give_their_files_once(workdir, tmp_path):
    (tmp_path / "set").mkdir()
    write(tmp_path / "set" / "a.txt", "one line")
    write(tmp_path / "set" / "b.txt", "two", "lines")
    found = overlap(workdir, [tmp_path / "set", tmp_path / "set" / "*.txt"])
    assert {Path(file).name: counts["items"] for file, counts in found.items()} == {
        "a.txt": 1, "b.txt": 2,
    }  # fmt: skip


def test_what_was_found_with_runs_of_another_length_is_refused(workdir, tmp_path):
    file = write(tmp_path / "items.txt", "who sold nine sacks of flour")
    overlap(workdir, [file], words=5)
    examples = ExamplesConfig(evaluation_files=(str(file),), overlap_words=6)
    with pytest.raises(StageError, match="overlap_words: 5 there, 6 here"):
        find_overlap(workdir, examples, Sentences.open(workdir, has_queries=False), Runner(1))


def test_the_result_depends_on_no_workers_and_is_kept(workdir, tmp_path):
    file = write(tmp_path / "items.txt", *(text[10:60] for text in DOCUMENTS))
    folder = DesignFolders(workdir).overlap

    def contents():
        return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "cost.json"}

    overlap(workdir, [file])
    alone = contents()
    assert overlap(workdir, [file], workers=2)[str(file)]["overlapping"] == 3
    assert contents() == alone
    (folder / "results.json").unlink()
    kept = folder / "overlap-00000.npy"
    kept_at = kept.stat().st_mtime_ns
    (folder / "overlap-00001.npy").unlink()
    examples = ExamplesConfig(evaluation_files=(str(file),), overlap_words=5)
    sentences = Sentences.open(workdir, has_queries=False)
    find_overlap(workdir, examples, sentences, Runner(1))  # continues
    assert contents() == alone and kept.stat().st_mtime_ns == kept_at
    file.write_text("other\n")
    with pytest.raises(StageError, match=r"made from other inputs.*items\.txt"):
        find_overlap(workdir, examples, sentences, Runner(1))


def test_words_whose_hash_is_that_of_a_run_are_not_taken_for_it(monkeypatch):
    def add_word(hashes, word):  # the same for any order of the words
        return hashes + word.astype(np.uint64)

    monkeypatch.setattr(word_runs, "_add_word", add_word)
    runs = collect_runs([["nine sacks of fine flour"]], 5)
    texts = pa.array(["flour of fine nine sacks", "The nine sacks of fine flour."])
    run, sentence = find_runs(runs, texts[:1], np.zeros(1, int))
    assert len(run) == len(sentence) == 0
    run, sentence = find_runs(runs, texts[1:], np.zeros(1, int))
    assert (run.tolist(), sentence.tolist()) == ([0], [0])


def test_runs_are_found_as_by_loops():
    rng = np.random.RandomState(0)
    words = ["ka", "lo", "Mi", "nu,"]

    def text(length):
        return " ".join(words[i] for i in rng.randint(0, 4, length))

    items = [[text(rng.randint(1, 12)) for _ in range(rng.randint(1, 4))] for _ in range(300)]
    texts = [text(rng.randint(0, 9)) for _ in range(60)] + ["...", ""]
    documents = np.sort(rng.randint(0, 15, len(texts)))
    runs = collect_runs(items, 7)
    run, row = find_runs(runs, pa.array(texts), documents)
    found = {int(i) for r in run for i in runs.items[runs.offsets[r] : runs.offsets[r + 1]]}

    def split(value):
        return re.findall(r"\w+", value.lower())

    streams = []
    for document in np.unique(documents):
        inside = np.flatnonzero(documents == document)
        streams.append(" " + " ".join(w for i in inside for w in split(texts[i])) + " ")
    expected = set()
    for item, fields in enumerate(items):
        for field in map(split, fields):
            size = min(7, len(field))
            parts = [field[i : i + size] for i in range(len(field) - size + 1)] if size >= 4 else []
            if any(f" {' '.join(part)} " in stream for part in parts for stream in streams):
                expected.add(item)
    assert found == expected and 20 < len(expected) < 200
    for r, sentence in zip(run[:50], row[:50]):
        first = runs.text(r).split()[0]
        assert first in split(texts[sentence])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("items.bin", b"x", r"items\.bin does not show its format; known endings are \.jsonl"),
        ("items.txt", b"a\nb\xff\n", r"invalid UTF-8 in line 2, byte 3; convert it"),
        ("items.txt", b"a\0b\n", r"a NUL byte: no text"),
        ("items.jsonl", b'{"a": "b"}\n{"a"\n', r"no JSON in line 2"),
        ("items.json", b"[" * 100_000, r"no JSON in line 1"),
        ("items.tsv.gz", b"no gzip", r"gz is damaged at byte"),
        ("items.tsv.gz", gzip.compress(b"x" * 1000, mtime=0)[:-9], r"gz is damaged at byte"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=r"design\.examples\.evaluation_files: .*" + message):
        check_evaluation_files(ExamplesConfig(evaluation_files=(str(tmp_path / name),)))


def test_a_missing_file_is_reported_before_any_work():
    with pytest.raises(ConfigError, match=r"evaluation_files: nothing found at 'nowhere/\*"):
        check_evaluation_files(ExamplesConfig(evaluation_files=("nowhere/*.txt",)))


def test_lines_end_at_line_feeds_alone(tmp_path):
    file = tmp_path / "items.jsonl"
    file.write_text('{"a": "one\u2028two"}\r\n\n["three"]\n', newline="")
    assert [(item.place, item.fields) for item in read_items(str(file))] == [
        ("line 1", ["one\u2028two"]), ("line 3", ["three"]),
    ]  # fmt: skip


def squad(indent: int | None) -> str:
    """As SQuAD comes: articles, paragraphs, questions, answers."""

    def question(text, *answers):
        return {"question": text, "answers": [{"text": t, "answer_start": 0} for t in answers]}

    paragraphs = [
        {"context": "Ships lay still for weeks.", "qas": [question("What lay?", "ships", "boats"),
                                                          question("Who sailed?")]},
        {"context": "Other text entirely.", "qas": [question("the harbour froze and ships", "x")]},
        {"context": "Nothing is asked.", "qas": []},
    ]  # fmt: skip
    data = [{"title": "Ulmund", "paragraphs": paragraphs}]
    return json.dumps({"version": "1.1", "data": data}, indent=indent)


@pytest.mark.parametrize("indent", [None, 2])
def test_a_question_with_its_paragraph_is_an_item_of_one_json_value(workdir, tmp_path, indent):
    file = tmp_path / "dev.json"
    file.write_text(squad(indent))
    items = read_items(str(file))
    assert [item.fields for item in items] == [
        ["What lay?", "ships", "boats", "1.1", "Ulmund", "Ships lay still for weeks."],
        ["Who sailed?", "1.1", "Ulmund", "Ships lay still for weeks."],
        ["the harbour froze and ships", "x", "1.1", "Ulmund", "Other text entirely."],
        ["Nothing is asked.", "1.1", "Ulmund"],
    ]
    found = overlap(workdir, [file])[str(file)]
    assert (found["items"], found["overlapping"]) == (4, 3)
    assert [sample["place"] for sample in found["samples"]] == ["item 1", "item 2", "item 3"]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ('["one", "two"]', [["one"], ["two"]]),
        ('{"data": [{"q": "a", "options": ["b", "c"]}, {"q": "d"}]}', [["a", "b", "c"], ["d"]]),
        ('[{"q": "a", "answers": [{"t": "b"}]}, {"q": "c", "answers": []}]', [["a", "b"], ["c"]]),
        ('{"p1": {"text": "a", "qa": [{"q": "b", "of": [{"c": "d"}]}]}}', [["b", "d", "a"]]),
        ('{"article": "a", "questions": ["b", "c"]}', [["a", "b", "c"]]),
        ('{"q": "a"}\n{"q": "b"}\n', [["a"], ["b"]]),  # JSON lines
    ],
)
def test_the_items_of_one_json_value_are_the_objects_of_its_lists(tmp_path, text, fields):
    (tmp_path / "items.json").write_text(text)
    assert [item.fields for item in read_items(str(tmp_path / "items.json"))] == fields


def test_runs_are_found_where_a_script_has_no_spaces_and_in_every_normal_form():
    runs = collect_runs(
        [["昨天去了北京大学"], ["the cafe\u0301 of old Ulm"], ["costs -5 or so"]], 5
    )
    texts = pa.array(["他昨天去了北京大学。", "In the CAFÉ of old Ulm.", "It costs 5 or so."])
    run, row = find_runs(runs, texts, np.arange(3))
    assert sorted(set(zip(runs.items[runs.offsets[run]].tolist(), row.tolist(), strict=True))) == [
        (0, 0), (1, 1),
    ]  # fmt: skip


def test_a_pipe_among_evaluation_files_is_refused(tmp_path):
    os.mkfifo(tmp_path / "items.txt")
    with pytest.raises(ConfigError, match=r"items\.txt is a named pipe"):
        check_evaluation_files(ExamplesConfig(evaluation_files=(str(tmp_path / "items.txt"),)))
