"""Sentences over the token limit."""

import numpy as np
import pytest

from icl_jax.config import CorpusConfig
from icl_jax.corpus.sentence_shards import split_sentence, tokenise_sentences
from icl_jax.corpus.train_tokenizer import train
from tests.corpus import corpora

TEXTS = [d["text"].replace("\n", " ") for d in corpora.make_documents(40)]
LONG = {
    "clauses": "The otter swims in the river, sleeps by day; it eats fish: trout and carp \u2013 "
    * 9,
    "words": "otters swim where the water is clear and cold " * 20,
    "no spaces": "abcdefghij" * 60,
    "numbers": "1,234,567,890" * 30,
    "chinese": "水獭住在河边，每天吃很多鱼；" * 30,  # noqa: RUF001
    "emoji": "😀👩‍👩‍👧" * 40,
    "one long word first": "x" * 300 + " and then some words follow",
}


@pytest.fixture(scope="module")
def tokenizer():
    return train(TEXTS, 400)


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("limit", [4, 7, 41])
def test_pieces_are_the_text_and_each_is_within_the_limit(tokenizer, kind, limit):
    pieces = split_sentence(LONG[kind], tokenizer, limit)
    assert "".join(pieces).replace(" ", "") == LONG[kind].replace(" ", "")
    assert all(0 < len(tokenizer.encode(piece)) <= limit for piece in pieces)
    fewest = len(tokenizer.encode(LONG[kind])) / limit
    assert fewest <= len(pieces) <= 4 * fewest + 1


def test_a_cut_is_made_at_the_last_clause_that_fits_else_at_a_space(tokenizer):
    text = "The badger digs in the mud, the heron waits for fish and never moves at all"
    size = len(tokenizer.encode("The badger digs in the mud, the heron waits"))
    assert split_sentence(text, tokenizer, size)[0] == "The badger digs in the mud,"
    plain = text.replace(",", "")
    size = len(tokenizer.encode("The badger digs in the mud the heron waits"))
    assert split_sentence(plain, tokenizer, size)[0] == "The badger digs in the mud the heron waits"


def test_a_character_of_more_tokens_than_the_limit_goes_and_the_rest_stays(tokenizer):
    assert split_sentence("a😀b", tokenizer, 1) == ["a", "b"]


def test_a_long_run_without_spaces_loses_nothing(tokenizer):
    text = "ab" * 9_001
    assert "".join(split_sentence(text, tokenizer, 128)) == text


@pytest.mark.parametrize("mode", ["split", "drop"])
def test_long_sentences_are_split_or_dropped_in_their_place_and_counted(tokenizer, mode):
    sentences = [TEXTS[0], LONG["words"], TEXTS[1], LONG["clauses"]]
    limit = max(len(tokenizer.encode(text)) for text in TEXTS)
    config = CorpusConfig(max_sentence_tokens=limit, long_sentences=mode)
    found = tokenise_sentences(sentences, tokenizer, config)
    assert (found.split, found.dropped) == ((2, 0) if mode == "split" else (0, 2))
    assert found.origins.tolist() == sorted(found.origins.tolist())
    if mode == "drop":
        assert found.texts == [TEXTS[0], TEXTS[1]] and found.origins.tolist() == [0, 2]
    else:
        for i, sentence in enumerate(sentences):
            parts = [t for t, origin in zip(found.texts, found.origins, strict=True) if origin == i]
            assert "".join(parts).replace(" ", "") == sentence.replace(" ", "")
    lengths = np.diff(found.offsets)
    assert len(lengths) == len(found.texts) and lengths.max() <= limit
    for i, text in enumerate(found.texts):
        own = found.tokens[found.offsets[i] : found.offsets[i + 1]]
        assert own.tolist() == tokenizer.encode(text).tolist()
