"""`explain` prints what a record holds, and the true reason why it holds no more."""

import json
import re

import numpy as np
import pytest

from icl_jax.config import CorpusConfig, ExamplesConfig, SearchConfig, TokenizerConfig
from icl_jax.data.shards import Shards, find_shards
from icl_jax.example_design.build import design
from icl_jax.example_design.explain import ArmRecords, show_record
from icl_jax.example_design.explain import main as explain
from icl_jax.example_design.sentences import Sentences
from icl_jax.retrieval.find_related import DesignFolders
from icl_jax.retrieval.neighbours import Neighbours
from tests.example_design.small_build import small_config

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
        search=SearchConfig(min_similarity=0.2, neighbours=2),
        examples=ExamplesConfig(arms=ARMS, max_tokens=LIMIT, card_samples=0),
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
    assert f"{len(record['tokens'])} tokens of at most {LIMIT}" in text
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
            elif taken == 2:
                assert "design.search.neighbours = 2" in reason
                seen.add("number")
            else:
                assert f"no further neighbour above 0.2 was stored ({taken} found)" in reason
                seen.add("threshold")
    assert seen >= {"limit", "number"}


def test_random_names_what_it_stands_for(workdir, printed):
    neighbours = Neighbours.open(DesignFolders(workdir).neighbours)
    record = records_of(workdir, "random_in_context")[0]
    for (ids, _), reason in zip(
        groups_of(record), reasons_of(printed("random_in_context", "--index=0")), strict=True
    ):
        found, _ = neighbours.of(ids[0])
        assert "dealt at random" in reason
        assert re.findall(r"#(\d+)", reason) == [str(i) for i in found[: len(ids) - 1]]


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
    assert f"#{sentence} stands {len(counts[sentence])} times" in text


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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--arm=nonsense", "--index=0"], "there is no arm 'nonsense'.*contiguous, document_path"),
        (["--arm=random_in_batch", "--index=0"], "no arm 'random_in_batch'.*design.examples.arms"),
        (["--arm=contiguous", "--index=99999"], "--index must be from 0 to .*, got 99999"),
        (["--arm=contiguous", "--index=-1"], "--index must be from 0 to .*, got -1"),
        (["--arm=contiguous", "--sentence=9999"], "--sentence must be from 0 to 168, got 9999"),
        (["--arm=contiguous", "--index=0", "--workdir=nowhere"], "there are: none"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(workdir, flags, message):
    with pytest.raises(SystemExit) as stopped:
        explain([f"--workdir={workdir}", *flags])
    assert re.search(message, str(stopped.value)) and "\n" not in str(stopped.value)
