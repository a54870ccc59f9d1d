"""`explain` prints what a record holds, and the true reason why it holds no more."""

import json
import os
import re
import shutil
import sys

import numpy as np
import pytest

from icl_jax.config import CorpusConfig, ExamplesConfig, SearchConfig, TokenizerConfig
from icl_jax.corpus.sentence_table import SentenceTable
from icl_jax.data.shards import Shards, find_shards
from icl_jax.design.explain.explain import ArmRecords, show_record
from icl_jax.design.explain.explain import main as explain
from icl_jax.design.explain.reasons import Candidate
from icl_jax.design.folders import DesignFolders
from icl_jax.design.sentences import Sentences
from icl_jax.design.stage import design
from icl_jax.design.strategies import neighbours
from icl_jax.retrieval.neighbours import Neighbours
from icl_jax.retrieval.show import main as show
from icl_jax.retrieval.show import print_found
from icl_jax.retrieval.vectors import Vectors
from tests.design.small_build import small_config

LIMIT = 62
ARMS = (
    "contiguous", "task_only", "neighbours_in_context", "random_in_context",
    "neighbours_in_batch", "document_path", "shared_entity",
)  # fmt: skip


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain")
    config = small_config(
        folder,
        corpus=CorpusConfig(files=(str(folder / "people.jsonl"),), max_sentence_tokens=60),
        search=SearchConfig(min_similarity=0.35, neighbours=2),
        examples=ExamplesConfig(arms=ARMS, max_tokens=LIMIT, card_samples=0, max_related_share=1.0),
    )
    long = " ".join(f"On day {n} the surveyor of Tarn walked {n} miles." for n in range(9))
    with (folder / "people.jsonl").open("a") as file:
        file.write(json.dumps({"title": "page of a walk", "text": long}) + "\n")
    design(config, folder / "run")
    return folder / "run"


@pytest.fixture
def printed(workdir, capsys):
    def run(arm: str, *flags: str) -> str:
        capsys.readouterr()
        explain([f"--workdir={workdir}", f"--arm={arm}", *flags])
        return capsys.readouterr().out

    return run


def records_of(workdir, arm: str) -> Shards:
    return Shards(find_shards(str(DesignFolders(workdir).arms / arm)))


def groups_of(record: dict) -> list[tuple[list[int], int]]:
    """(sentence ids, tokens) of each group of a row."""
    of_sentence = record["group"][record["sentence_starts"]]
    return [(record["sentence_ids"][of_sentence == group].tolist(),
             int((record["group"] == group).sum()))
            for group in np.unique(record["group"])]  # fmt: skip


def reasons_of(text: str) -> list[str]:
    return re.findall(r"no more: (.*?)(?:\n\n|\Z)", text.replace("\n\n", "\0").replace("\n", " ")
                      .replace("\0", "\n\n"))  # fmt: skip


def test_a_record_is_shown_with_place_text_scores_and_tokens(workdir, printed):
    records, sentences = records_of(workdir, "neighbours_in_context"), Sentences.open(workdir)
    text = printed("neighbours_in_context", "--index=1")
    record = records[1]
    assert text.startswith(f"neighbours_in_context, record 1 of {len(records)}\n")
    assert records.place(1) in text
    assert f"{len(record['tokens'])} tokens of at most 256" in text
    joined = " ".join(text.split())
    for i, id in enumerate(record["sentence_ids"].tolist()):
        assert " ".join(sentences.text(id).split()) in joined
        assert f"#{id}  page " in text and "people.jsonl" in text
        assert f"{len(sentences.tokens(id))} tokens from {record['sentence_starts'][i]}" in text
        if record["similarities"][i] != 1:
            assert f"{record['similarities'][i]:.3f}  #{id}" in text
    assert text.count("query  #") == len(groups_of(record))
    assert text.count("<|endoftext|>") == len(groups_of(record))


def test_the_reason_of_neighbours_is_the_limit_the_threshold_or_the_number(workdir, capsys):
    opened = ArmRecords(str(workdir), "neighbours_in_context")
    records = opened.records
    neighbours = Neighbours.open(DesignFolders(workdir).neighbours)
    lengths = Sentences.open(workdir).corpus.lengths
    seen = set()
    for index in range(len(records)):
        show_record(opened, index)
        told = reasons_of(capsys.readouterr().out)
        groups = groups_of(records[index])
        assert len(told) == len(groups)
        for (ids, tokens), reason in zip(groups, told, strict=True):
            reason = reason.split(" nearer, but left out: ")[0]
            found, scores = neighbours.of(ids[0])
            taken = len(ids) - 1
            assert found[:taken].tolist() == ids[1:]
            if taken < len(found):
                id, left = int(found[taken]), LIMIT - tokens
                assert lengths[id] + 1 > left
                assert reason.strip() == (
                    f"the next neighbour #{id} ({scores[taken]:.3f}) has {lengths[id]} tokens and "
                    f"a separator, but only {left} of {LIMIT} were left"
                )
                seen.add("limit")
                continue
            rule, next_id, cosine = the_next(workdir, ids[0], found, scores)
            assert reason.startswith(f'the next by similarity, #{next_id} ({cosine:.3f}, "')
            assert rule in reason
            seen.add(rule)
    assert seen >= {"limit", "neighbours = 2", "min_similarity = 0.35"}


def the_next(workdir, query: int, found, scores) -> tuple[str, int, float]:
    """The first sentence behind the last neighbour, by loops, and the rule that left it out."""
    folders = DesignFolders(workdir)
    vectors, table = Vectors.open(folders.corpus_vectors), SentenceTable.open(folders.corpus)
    cosines = vectors.take(np.arange(len(vectors))) @ vectors.take(np.array([query]))[0]
    for id in np.lexsort((np.arange(len(cosines)), -cosines)).tolist():
        if id == query or id in found or cosines[id] > scores[-1] + 1e-5:
            continue
        if cosines[id] <= 0.35:
            rule = "min_similarity = 0.35"
        elif table.text(id) == table.text(query):
            rule = "has the same words as the query"
        elif table.documents[id] == table.documents[query]:
            rule = "the query's own document"
        elif is_near(table.text(id), table.text(query)):
            rule = "is a near duplicate of the query"
        elif any(is_near(table.text(id), table.text(int(other))) for other in found):
            rule = "neighbour #"  # near to one of them, or of the same words
        else:
            rule = "neighbours = 2"
        return rule, id, float(cosines[id])


def is_near(a: str, b: str) -> bool:
    """By the share of common sequences of three words."""

    def shingles(text):
        words = ["<", *re.findall(r"\w+", text.lower()), ">"]
        return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}

    a, b = shingles(a), shingles(b)
    return len(a & b) / len(a | b) >= SearchConfig().duplicate_jaccard


def test_what_is_nearer_but_left_out_is_reported_with_its_rule(tmp_path):
    pages = [
        "The old miller of Kersk sold nine sacks of flour to the baker. "
        "The old miller of Kersk sold six sacks of flour to the smith.",
        "The old miller of Kersk sold nine sacks of flour to the baker!",
        "The old miller of Kersk sold nine sacks of flour to the bakers.",
        "The young miller of Kersk sold some sacks of flour to the baker.",
        "A young miller of Kersk sold some sacks of flour to the baker.",
        "Nobody in Ulmund had seen such a winter as that.",
    ]
    file = tmp_path / "pages.jsonl"
    file.write_text("".join(json.dumps({"text": page}) + "\n" for page in pages))
    config = small_config(
        tmp_path,
        corpus=CorpusConfig(files=(str(file),)),
        search=SearchConfig(min_similarity=0.1, neighbours=3, duplicate_jaccard=0.6),
        examples=ExamplesConfig(arms=("neighbours_in_context",), card_samples=0),
    )
    design(config, tmp_path / "run")
    reasons = ArmRecords(str(tmp_path / "run"), "neighbours_in_context").reasons
    nearby = reasons.nearby
    assert nearby.neighbours.of(0)[0].tolist() == [4]
    vectors = nearby.vectors.take(np.arange(7))
    candidates = [Candidate(id, float(vectors[id] @ vectors[0])) for id in (1, 2, 3, 5, 6)]
    assert [nearby.rule(0, candidate) for candidate in candidates] == [
        "is in the query's own document",
        "has the same words as the query",
        "is a near duplicate of the query",
        "is a near duplicate of the nearer neighbour #4",
        "is not above design.search.min_similarity = 0.1",
    ]
    told = reasons.explain(np.array([0, 4]), 30)
    assert re.match(r'the next by similarity, #\d \(0\.\d+, ".*"\), (is|has) ', told)
    assert re.search(r'\nnearer, but left out: #2 \(1.000, "The old.*"\), has the same words', told)


def test_a_search_that_missed_a_sentence_is_reported_as_the_cause(workdir):
    reasons = ArmRecords(str(workdir), "neighbours_in_context").reasons
    nearby = reasons.nearby
    query = next(i for i in range(100) if len(nearby.neighbours.of(i)[0]) == 2)
    found, cosines = nearby.neighbours.of(query)
    missed = Candidate(int(found[0]), float(cosines[0]))
    nearby.neighbours.of = lambda row: (found[1:], cosines[1:])
    assert "was not found by the search" in nearby.rule(query, missed)


def test_what_the_neighbours_were_made_with_is_shown_without_a_config(workdir, tmp_path, capsys):
    shutil.copytree(workdir, tmp_path / "run")
    (tmp_path / "run" / "design" / "config.json").unlink()  # of a build that was killed
    for arm in ARMS:
        explain([f"--workdir={tmp_path}/run", f"--arm={arm}", "--index=0"])
    assert "no more: " in capsys.readouterr().out


def test_the_query_of_a_task_is_compared_by_its_own_words(tmp_path, capsys):
    task = tmp_path / "task.txt"
    task.write_text("Mar7ek was born in the harbour town of Kersk.\nMar12ek first saw light.\n")
    queries = CorpusConfig(files=(str(task),), text_documents="line", clean=False)
    arms = ("neighbours_in_context", "random_in_context")
    search = SearchConfig(min_similarity=0.1, neighbours=2)
    examples = ExamplesConfig(arms=arms, card_samples=0, max_related_share=1.0)
    design(small_config(tmp_path, queries=queries, search=search, examples=examples), tmp_path)
    for arm in arms:
        capsys.readouterr()
        explain([f"--workdir={tmp_path}", f"--arm={arm}", "--index=0"])
        told = capsys.readouterr().out
        assert "task.txt" in told and "the next by similarity, #" in told
    nearby = ArmRecords(str(tmp_path), arms[0]).reasons.nearby
    same = Candidate(int(nearby.neighbours.of(1)[0][0]), 0.9)
    assert "own document" not in nearby.rule(0, same)


def test_a_corpus_too_large_to_compare_is_reported_with_what_to_do(workdir, monkeypatch):
    monkeypatch.setattr(neighbours, "MOST_COMPARED", 10)
    reasons = ArmRecords(str(workdir), "neighbours_in_context").reasons
    found = Neighbours.open(DesignFolders(workdir).neighbours).of(0)[0]
    told = reasons.explain(np.array([0, *found]), 20)
    assert (
        f"all {len(found)} that were stored" in told
        and f"show --workdir={workdir} --query=" in told
    )


@pytest.mark.parametrize("command", [explain, show])
def test_a_reader_that_has_seen_enough_is_no_error(workdir, monkeypatch, capfd, command):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        arm = ["--arm=task_only"] * (command is explain)
        command([f"--workdir={workdir}", "--sentence=0", *arm])
    assert "Error" not in capfd.readouterr().err


def test_random_names_what_it_stands_for(workdir, printed):
    neighbours = Neighbours.open(DesignFolders(workdir).neighbours)
    record = records_of(workdir, "random_in_context")[0]
    for (ids, _), reason in zip(
        groups_of(record), reasons_of(printed("random_in_context", "--index=0")), strict=True
    ):
        found, _ = neighbours.of(ids[0])
        dealt, rest = reason.split(" no more of its own: ")
        assert "dealt at random" in dealt
        assert re.findall(r"#(\d+)", dealt) == [str(i) for i in found[: len(ids) - 1]]
        assert rest.startswith(("the next neighbour #", "the next by similarity, #"))


def test_running_text_ends_with_its_document_or_at_the_limit(workdir, printed):
    corpus = Sentences.open(workdir).corpus
    seen = set()
    for arm in ("contiguous", "document_path"):
        records = records_of(workdir, arm)
        for index in range(0, len(records), 2):
            told = reasons_of(printed(arm, f"--index={index}"))
            for (ids, tokens), reason in zip(groups_of(records[index]), told, strict=True):
                last = ids[-1]
                whole = last + 1 == len(corpus) or corpus.positions[last + 1] == 0
                if "ends here" in reason:
                    assert whole
                    seen.add((arm, "end"))
                    continue
                id, needed, left = map(int, re.search(
                    r"#(\d+), has (\d+) tokens.* but only (\d+) of", reason).groups())  # fmt: skip
                assert corpus.positions[id] == 0 if whole else id == last + 1
                assert left == LIMIT - tokens < needed + 1
                seen.add((arm, "limit"))
    assert seen >= {("contiguous", "end"), ("contiguous", "limit"), ("document_path", "limit")}


def test_in_batch_shows_the_whole_group_and_which_record_is_meant(workdir, printed):
    records = records_of(workdir, "neighbours_in_batch")
    number = records[5]["batch_group"]
    mates = [i for i in range(len(records)) if records[i]["batch_group"] == number]
    text = printed("neighbours_in_batch", "--index=5")
    assert f"records {mates[0]} to {mates[-1]}, always in one batch" in text
    for mate in mates:
        assert f"#{records[mate]['sentence_ids'][0]}  page" in text
        assert f"record {mate}{' (this one)' * (mate == 5)}\n" in text
    assert text.count("query") == 1 and len(reasons_of(text)) == 1


def test_task_only_and_shared_entity_have_reasons_too(printed):
    assert "each query alone" in printed("task_only", "--index=0")
    assert re.search("rare name|design.search.neighbours = 2|were left",
                     " ".join(printed("shared_entity", "--index=0").split()))  # fmt: skip


def test_a_sentence_is_found_in_its_records(workdir, printed):
    records = records_of(workdir, "neighbours_in_context")
    counts = {}
    for index in range(len(records)):
        for id in records[index]["sentence_ids"].tolist():
            counts.setdefault(id, []).append(index)
    sentence = max(counts, key=lambda id: (len(counts[id]) <= 20, len(counts[id]), -id))
    text = printed("neighbours_in_context", f"--sentence={sentence}")
    assert re.findall(r"record (\d+), group", text) == [str(i) for i in counts[sentence]]
    assert f"#{sentence} occurs {len(counts[sentence])} times" in text


def test_control_characters_do_not_reach_the_terminal(tmp_path, capsys):
    file = tmp_path / "hostile.jsonl"
    file.write_text(
        '{"title": "a\\u001b[2J", "text": "The bell \\u0007 rang \\u001b[31m twice in Kersk."}\n'
        '{"title": "b", "text": "Nobody heard the bell of Kersk at all."}\n'
    )
    corpus = CorpusConfig(files=(str(file),))
    config = small_config(
        tmp_path,
        corpus=corpus,
        tokenizer=TokenizerConfig(vocab_size=257),
        examples=ExamplesConfig(arms=("contiguous",)),
    )
    design(config, tmp_path / "run")
    capsys.readouterr()
    explain([f"--workdir={tmp_path}/run", "--arm=contiguous", "--index=0"])
    out = capsys.readouterr().out
    assert "rang" in out and not set(out) & {"\x07", "\x1b"}
    table = SentenceTable.open(DesignFolders(tmp_path / "run").corpus)
    print_found(table, [0, 1], [0.5, 0.25])  # as `show` prints
    out = capsys.readouterr().out
    assert "rang" in out and " 0.250  #1  b, " in out and not set(out) & {"\x07", "\x1b"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--arm=nonsense", "--index=0"], "there is no arm 'nonsense'.*contiguous, document_path"),
        (["--arm=random_in_batch", "--index=0"], "no arm 'random_in_batch'.*design.examples.arms"),
        (["--arm=contiguous", "--index=99999"], "--index must be from 0 to .*, got 99999"),
        (["--arm=contiguous", "--index=-1"], "--index must be from 0 to .*, got -1"),
        (["--arm=contiguous", "--sentence=9999"], "--sentence must be from 0 to 168, got 9999"),
        (["--arm=contiguous", "--index=0", "--workdir=nowhere"], "available: none"),
    ],
)
def test_what_is_wrong_is_reported_in_one_line(workdir, flags, message):
    with pytest.raises(SystemExit) as stopped:
        explain([f"--workdir={workdir}", *flags])
    assert re.search(message, str(stopped.value)) and "\n" not in str(stopped.value)
