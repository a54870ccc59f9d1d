"""Sentences that mention the same rare name: terms, scores and rules, against plain loops."""

import dataclasses
import json
import math
from pathlib import Path
import shutil

import numpy as np
import pyarrow as pa
import pytest

from icl_jax.config import ExamplesConfig, SearchConfig, StageError, TokenizerConfig
from icl_jax.design.folders import DesignFolders
from icl_jax.design.sentences import Sentences
from icl_jax.design.stage import find_related
from icl_jax.design.strategies import shared_entity
from icl_jax.design.strategies.entity_terms import NAME_WEIGHT, WORD_SHARE, find_terms, split_words
from icl_jax.design.strategies.shared_entity import make_related_by_entity
from icl_jax.workers.local import Runner
from tests.design.made_up import WORDS, experiment
from tests.retrieval.made_up import jaccard, words_of

NAMES = [f"{a}{b}" for a in ("Zor", "Quin", "Bal", "Ters", "Ulm") for b in ("ak", "ova", "ein")]


def terms_of(text):
    return find_terms(split_words(pa.array([text]))[0])


@pytest.mark.parametrize(
    ("text", "names", "words"),
    [
        ("He met Ada Lovelace in Paris.", {"ada lovelace", "ada", "lovelace", "paris"}, {"met"}),
        ("The old bridge fell.", set(), {"old", "bridge"}),  # merely the first word
        ("Marie Curie won.", {"curie"}, {"won"}),
        ("In New York it rained.", {"new york", "york"}, {"rained"}),
        ("He met Anna, Bela's aunt.", {"anna", "bela"}, {"aunt"}),  # punctuation parts names
        ("He met Jean-Paul Sartre.", {"jean paul sartre"}, {"met"}),
        ("He saw THE WHOLE TEXT WAS WRITTEN LOUD.", {"whole", "loud"}, {"saw"}),
        ("all is written small in zorak", set(), {"zorak", "small"}),
        ("他在柏林学习。", {"柏林", "学习"}, set()),
    ],
)
def test_terms_are_names_and_words(text, names, words):
    found = terms_of(text)
    assert names <= {term for term, vote in found.items() if vote == 1}
    assert words <= {term for term, vote in found.items() if vote == -1}
    assert not any(len(term) == 1 or term.isnumeric() for term in found)
    assert max(map(len, map(str.split, found)), default=0) <= 5


def write_names(path: Path, count: int, seed: int = 0) -> Path:
    """Documents that mention a few names, some in several; sentences that repeat others."""
    rng, said = np.random.RandomState(seed), []
    with path.open("w") as file:
        for n in range(count):
            sentences = []
            for _ in range(rng.randint(1, 6)):
                words = [WORDS[i] for i in rng.randint(0, len(WORDS), rng.randint(5, 12))]
                for name in rng.choice(NAMES, rng.randint(0, 3), replace=False):
                    words.insert(rng.randint(0, len(words)), f"{name}{rng.choice(['', n % 7])}")
                text = " ".join(words)
                if said and rng.random_sample() < 0.2:
                    text = said[rng.randint(len(said))] + rng.choice(["", " again"])
                said.append(text)
                sentences.append(text[0].upper() + text[1:] + ".")
            file.write(json.dumps({"title": f"Page {n}", "text": " ".join(sentences)}) + "\n")
    return path


def prepare(folder: Path, own_queries: bool = False, **search):
    """(workdir, config) of made-up documents."""
    file = write_names(folder / "documents.jsonl", 50)
    task = write_names(folder / "task.jsonl", 12, seed=5) if own_queries else None
    config = experiment(
        file, task, shard_megabytes=0.003, search=SearchConfig(**{"neighbours": 4} | search),
        examples=ExamplesConfig(entity_documents=9),
    )  # fmt: skip
    find_related(config, folder / "run", neighbours=False)
    return folder / "run", config.design


def make(workdir, design, workers=1, to=None):
    folder = to or DesignFolders(workdir).path / shared_entity.FOLDER
    sentences = Sentences.open(workdir, bool(design.queries.files))
    return make_related_by_entity(str(workdir), sentences, design, Runner(workers), folder)


def related_by_loops(sentences, design):
    """The definition, sentence by sentence."""
    corpus, own = sentences.corpus, sentences.queries is not None
    texts = corpus.text_of(range(len(corpus)))
    terms = [terms_of(text) for text in texts]
    documents, votes, known = {}, {}, set()
    for found, document in zip(terms, corpus.documents, strict=True):
        for term, vote in found.items():
            documents.setdefault(term, set()).add(document)
            votes[term] = votes.get(term, 0) + vote
            known |= {term} if vote else set()
    least, most = 1 if own else 2, design.examples.entity_documents
    weights = {}
    for term, holders in documents.items():
        if term not in known:  # it only begins sentences
            continue
        name = votes[term] > 0
        if least <= len(holders) <= (most if name else max(least, most // WORD_SHARE)):
            idf = math.log(1 + corpus.num_documents / len(holders))
            weights[term] = idf * (NAME_WEIGHT if name else 1)
    vectors = [{t: weights[t] for t in found if t in weights} for found in terms]
    queries = sentences.query_table.text_of(range(len(sentences.query_table)))
    results = []
    for q, text in enumerate(queries):
        vector = {t: weights[t] for t in terms_of(text) if t in weights}
        scored = []
        for i, other in enumerate(vectors):
            common = sum(weights[t] ** 2 for t in vector.keys() & other.keys())
            same_document = not own and corpus.documents[i] == corpus.documents[q]
            if not common or words_of(texts[i]) == words_of(text):
                continue
            if same_document and not design.search.same_document:
                continue
            squares = [sum(w**2 for w in v.values()) for v in (vector, other)]
            scored.append((-round(common / math.sqrt(squares[0] * squares[1]), 6), i))
        taken = []
        for score, i in sorted(scored):
            others = [text, *(texts[j] for j, _ in taken)]
            equal = any(words_of(texts[i]) == words_of(other) for other in others)
            near = any(
                jaccard(texts[i], other) >= design.search.duplicate_jaccard for other in others
            )
            if len(taken) < design.search.neighbours and not near and not equal:
                taken.append((i, -score))
        results.append(taken)
    return results


@pytest.mark.parametrize(
    ("own_queries", "search"),
    [(False, {}), (True, {}), (False, {"same_document": True, "duplicate_jaccard": 1.5})],
    ids=["corpus", "task", "same document"],
)
def test_related_sentences_are_those_of_the_definition(own_queries, search, tmp_path):
    workdir, design = prepare(tmp_path, own_queries, **search)
    sentences = Sentences.open(workdir, own_queries)
    found, expected = make(workdir, design), related_by_loops(sentences, design)
    assert len(found) == len(expected) == len(sentences.query_table)
    for query, wanted in enumerate(expected):
        ids, scores = found.of(query)
        np.testing.assert_allclose(scores, [score for _, score in wanted], atol=2e-6)
        assert ids.tolist() == [i for i, _ in wanted]
    counts = sum(map(len, expected))
    assert counts > 100 if not own_queries else counts > 30
    assert found.results["queries_with_neighbours"] == sum(map(bool, expected))
    assert sum(found.results["similarity_counts"]) == counts
    assert found.results["candidates_left_out"]["near_duplicate_of_neighbour"] > 0


def contents(folder: Path) -> dict[str, bytes]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.name: file.read_bytes() for file in files if file.name != "cost.json"}


def test_neither_parts_nor_blocks_nor_workers_nor_a_kill_change_a_byte(tmp_path, monkeypatch):
    workdir, design = prepare(tmp_path)
    whole, parts, again = (tmp_path / name for name in ("whole", "parts", "again"))
    make(workdir, design, to=whole)
    monkeypatch.setattr(shared_entity, "_PART_SENTENCES", 20)
    monkeypatch.setattr(shared_entity, "_PAIRS", 50)
    make(workdir, design, to=parts)
    assert len(list(parts.with_name("parts_terms").glob("rare-*"))) > 5
    assert contents(parts) == contents(whole)
    monkeypatch.undo()
    for name in ("", "_terms"):
        shutil.copytree(whole.with_name(f"whole{name}"), again.with_name(f"again{name}"))
    for name in ("again/neighbours-00000.arrow", "again/neighbours-00001.arrow",
                 "again/results.json", "again_terms/results.json",
                 "again_terms/terms-00002.arrow", "again_terms/rare-00000.arrow"):  # fmt: skip
        (tmp_path / name).unlink()
    make(workdir, design, workers=2, to=again)
    assert contents(again) == contents(whole)


def test_what_only_begins_sentences_is_no_name(tmp_path):
    file = tmp_path / "documents.jsonl"
    lines = ["The Ministry was slow to answer this.", "The Ministry never said one word then."]
    lines += ["Ada Zorak came late that very night.", "Nobody had seen Ada Zorak for many years."]
    lines += [f"Somewhere a ministry of kind {n} was closed, for Ada and Zorak." for n in range(6)]
    file.write_text("".join(json.dumps({"title": "", "text": line}) + "\n" for line in lines))
    config = experiment(
        file, tokenizer=TokenizerConfig(vocab_size=257), examples=ExamplesConfig(entity_documents=4)
    )
    find_related(config, tmp_path / "run", neighbours=False)
    found = make(tmp_path / "run", config.design)
    assert [found.of(i)[0].tolist() for i in range(4)] == [[], [], [3], [2]]


def test_a_term_in_too_many_documents_relates_nothing(tmp_path):
    file = tmp_path / "documents.jsonl"
    lines = [f"We all heard of Zorak and of number {n} too." for n in range(6)]
    lines += ["They spoke of Quinova at length here.", "Nobody knew where Quinova had gone to."]
    file.write_text("".join(json.dumps({"title": "", "text": line}) + "\n" for line in lines))
    config = experiment(
        file, tokenizer=TokenizerConfig(vocab_size=257), examples=ExamplesConfig(entity_documents=5)
    )
    find_related(config, tmp_path / "run", neighbours=False)
    found = make(tmp_path / "run", config.design)
    assert [found.of(i)[0].tolist() for i in range(8)] == [[]] * 6 + [[7], [6]]


def test_many_sentences_of_the_query_s_own_words_crowd_out_no_other(tmp_path):
    file = tmp_path / "documents.jsonl"
    lines = ["They spoke of Quinova at length here."] * 70
    lines += ["Nobody knew where Quinova had gone to."]
    file.write_text("".join(json.dumps({"title": "", "text": line}) + "\n" for line in lines))
    examples = ExamplesConfig(entity_documents=100)
    config = experiment(file, tokenizer=TokenizerConfig(vocab_size=257), examples=examples)
    find_related(config, tmp_path / "run", neighbours=False)
    found = make(tmp_path / "run", config.design)
    assert [found.of(i)[0].tolist() for i in range(71)] == [[70]] * 70 + [[0]]
    assert found.results["candidates_left_out"]["same_words"] == 70 * 69


def test_an_index_of_terms_that_may_be_less_rare_is_not_taken(tmp_path):
    workdir, design = prepare(tmp_path)
    make(workdir, design)
    rarer = dataclasses.replace(design, examples=ExamplesConfig(entity_documents=8))
    with pytest.raises(StageError, match=r"_terms was made from.*documents: 9 there, 8 here"):
        make(workdir, rarer)


def test_a_name_that_many_queries_of_a_task_have_is_lost_by_none(tmp_path):
    file, task = tmp_path / "documents.jsonl", tmp_path / "task.jsonl"
    lines = ["They spoke of Quinova at length here.", "Nobody knew where Quinova had gone to."]
    asked = [f"Somebody wrote a letter number {n} to Quinova." for n in range(10)]
    for place, texts in ((file, lines), (task, asked)):
        place.write_text("".join(json.dumps({"title": "", "text": t}) + "\n" for t in texts))
    config = experiment(
        file, task, tokenizer=TokenizerConfig(vocab_size=257),
        examples=ExamplesConfig(entity_documents=5),
    )  # fmt: skip
    find_related(config, tmp_path / "run", neighbours=False)
    found = make(tmp_path / "run", config.design)
    assert [sorted(found.of(i)[0].tolist()) for i in range(10)] == [[0, 1]] * 10
