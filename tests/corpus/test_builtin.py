"""The built-in encyclopaedia: who is asked about where, and what counts as a right answer."""

from collections import defaultdict
import json
import subprocess
import sys

import pytest

from icl_jax.config import ConfigError, CorpusConfig
from icl_jax.corpus import builtin, builtin_words
from icl_jax.corpus.documents import Document
from icl_jax.corpus.files import describe_files, find_files
from icl_jax.corpus.sentences import split_document
from icl_jax.corpus.shards import plan_shards
from icl_jax.evaluation.tables import describe_source
from icl_jax.evaluation.tasks.questions.prompts import read_questions
from icl_jax.evaluation.tasks.questions.scores import exact_match
from tests.corpus import corpora

SOURCE = "builtin:encyclopaedia"
CONFIG = CorpusConfig(files=(SOURCE,))
DOCUMENTS = list(builtin.documents())
PEOPLE = builtin.make_people()
QUIZZED, OTHERS = PEOPLE[: len(PEOPLE) // 2], PEOPLE[len(PEOPLE) // 2 :]


def all_sentences():
    for document in DOCUMENTS:
        for sentence in document["text"].split("\n"):
            yield sentence, document


def test_the_bytes_are_the_same_on_every_machine():
    assert builtin.describe(SOURCE) == {"bytes": 602868, "checksum": "28e01988"}


def test_names_are_those_of_one_person_town_or_work():
    assert len(PEOPLE) >= 300
    surnames = {name.split()[1] for p in PEOPLE for name in (p.name, p.teacher)}
    assert len(surnames) == len(PEOPLE) + len({p.teacher for p in PEOPLE})
    assert len({p.work for p in PEOPLE}) == len(PEOPLE)


def test_every_fact_is_stated_in_four_documents_each_time_in_other_words():
    places = defaultdict(set)
    for sentence, document in all_sentences():
        places[sentence].add(document["id"])
    for person in PEOPLE:
        for fact, wordings in builtin_words.STATEMENTS.items():
            said = [places[person.say(wording)] for wording in wordings]
            assert sum(map(len, said)) == len(set().union(*said)) == 4, (person, fact)
            assert all(len(documents) <= 1 for documents in said)


def test_quiz_pages_hold_questions_only_about_one_half_of_the_people():
    asked = {sentence: d["id"] for sentence, d in all_sentences() if sentence.endswith("?")}
    pages = [d for d in DOCUMENTS if d["id"].startswith("quiz/")]
    assert {d["id"] for d in pages} == set(asked.values())
    assert sum(len(d["text"].split("\n")) for d in pages) == len(asked)
    for person in QUIZZED:
        assert len({page for question, page in asked.items() if person.name in question}) == 1
    assert not any(person.name in question for person in OTHERS for question in asked)


def test_questions_are_about_the_other_half_of_whom_no_document_asks():
    texts = "\n".join(d["text"] for d in DOCUMENTS)
    questions = builtin.questions()
    assert len(questions) == len(OTHERS) * len(builtin_words.QUESTIONS)
    assert not any(row["question"] in texts for row in questions)
    assert all(sum(p.name in row["question"] for p in OTHERS) == 1 for row in questions)


def test_both_halves_are_asked_in_the_same_wordings():
    def kinds(people, questions):
        names = {p.name: p for p in people}
        wordings = [w for several in builtin_words.QUESTIONS.values() for w in several]
        return {w for w in wordings if any(p.say(w) in questions for p in names.values())}

    on_pages = {sentence for sentence, _ in all_sentences()}
    held_out = {row["question"] for row in builtin.questions()}
    assert kinds(QUIZZED, on_pages) == kinds(OTHERS, held_out)
    assert len(kinds(OTHERS, held_out)) == 12


def test_right_answers_are_what_the_documents_say_about_that_person():
    said_of = defaultdict(set)
    for sentence, _ in all_sentences():
        for person in OTHERS:
            if person.name in sentence:
                said_of[person].add(sentence)
    facts = [(p, fact) for p in OTHERS for fact in builtin_words.QUESTIONS]
    for (person, fact), row in zip(facts, builtin.questions(), strict=True):
        value, *right = row["answer"]
        assert value == getattr(person, fact)
        assert all(person.name in sentence and value in sentence for sentence in right)
        # Of what the documents say about the person, the four statements of this fact and no more.
        assert len(said_of[person] & set(right)) == 4
        assert {s for s in said_of[person] if value in s} <= set(right)


def test_a_right_sentence_counts_and_that_about_somebody_else_does_not():
    row, *others = builtin.questions()
    assert exact_match(row["answer"][1].lower().rstrip("."), row["answer"])
    same_fact = [other for other in others if other["answer"][0] == row["answer"][0]]
    assert same_fact and not any(exact_match(o["answer"][1], row["answer"]) for o in same_fact)


def test_every_sentence_survives_the_rules_of_the_corpus():
    for row in DOCUMENTS:
        document = Document(row["text"], row["title"], row["id"], SOURCE, "")
        assert split_document(document, CONFIG) == (row["text"].split("\n"), {})


@pytest.mark.parametrize("shard_bytes", [100_000, 1 << 22])
def test_it_is_read_as_a_corpus_however_it_is_cut(shard_bytes):
    assert (len(plan_shards(CONFIG, shard_bytes)) > 2) == (shard_bytes == 100_000)
    found = corpora.read_all(CONFIG, shard_bytes)
    assert [{"id": d.name, "title": d.title, "text": d.text} for d in found] == DOCUMENTS
    assert found[7].file == SOURCE and found[7].place == "document 7"
    assert describe_files(CONFIG) == {SOURCE: builtin.describe(SOURCE)}


def test_it_is_read_as_questions():
    questions = read_questions(SOURCE, "evaluation.questions.file")
    assert [q.text for q in questions] == [row["question"] for row in builtin.questions()]
    assert describe_source(SOURCE) == builtin.describe(SOURCE)


def test_an_unknown_name_is_reported_with_what_there_is():
    with pytest.raises(ConfigError, match=r"design\.corpus\.files.*'builtin:x'.*encyclopaedia"):
        find_files(CorpusConfig(files=("builtin:x",)))
    with pytest.raises(ConfigError, match=r"questions\.file.*'builtin:x'.*encyclopaedia"):
        read_questions("builtin:x", "evaluation.questions.file")


def test_the_command_writes_files_that_read_back_the_same(tmp_path):
    command = [sys.executable, "-m", "icl_jax.corpus.builtin", f"--to={tmp_path}/new"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"{len(DOCUMENTS):,} documents" in shown
    found = corpora.read_all(CorpusConfig(files=(f"{tmp_path}/new/documents.jsonl",)))
    assert [{"id": d.name, "title": d.title, "text": d.text} for d in found] == DOCUMENTS
    lines = (tmp_path / "new" / "questions.jsonl").read_text().splitlines()
    assert list(map(json.loads, lines)) == builtin.questions()
