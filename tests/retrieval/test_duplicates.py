import numpy as np
import pyarrow as pa
import pytest

from icl_jax.retrieval.duplicates import (
    Signatures,
    exact_duplicates,
    load_signatures,
    near_duplicates,
    sign,
)
from tests.retrieval.made_up import jaccard, made_up


def signatures(*texts):
    return Signatures([sign(pa.array(texts, pa.large_string()))])


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ("The cat sat.", "  the CAT, sat", True),
        ("Ünïcode “quotes” … and dashes", "ünïcode quotes and dashes", True),
        ("the cat sat", "the sat cat", False),
        ("the cat sat", "the cats at", False),
        ("a b", "ab", False),
        ("the cat sat", "the cat sat sat", False),
        ("…", "?!", True),
        ("…", "a", False),
    ],
)
def test_sentences_are_equal_when_their_words_are(a, b, equal):
    hashes = signatures(a, b).hashes
    assert (hashes[0] == hashes[1]) == equal


def test_hashes_are_the_same_in_every_run_and_company():
    alone, among = signatures("One fine day."), signatures("else", "One fine day.", "")
    assert alone.hashes[0] == among.hashes[1]
    assert alone.shingles(np.array([0])).tolist() == among.shingles(np.array([1])).tolist()
    assert hex(alone.hashes[0]) == "0x858d7e52c4f90952"


def test_near_duplicates_are_those_of_the_exact_jaccard_index():
    table, _ = made_up(150)
    both = Signatures([sign(table.texts(shard)) for shard in range(table.num_shards)])
    a, b = (x.ravel() for x in np.indices((150, 150)))
    expected = np.array([jaccard(table.all[i], table.all[j]) for i, j in zip(a, b, strict=True)])
    for least in (0.2, 0.6, 1.0, 1.5):
        assert (near_duplicates(both, a, both, b, least) == (expected >= least)).all()
    assert ((expected >= 0.6) & (expected < 1)).sum() > 20


def test_long_sentences_that_fill_the_sketch_are_compared_exactly():
    words = [f"w{i}" for i in range(400)]
    texts = signatures(" ".join(words), " ".join(words[:300]), " ".join(reversed(words)))
    pairs = np.array([0, 0]), np.array([1, 2])
    assert near_duplicates(texts, pairs[0], texts, pairs[1], 0.7).tolist() == [True, False]
    assert near_duplicates(texts, pairs[0], texts, pairs[1], 0.8).tolist() == [False, False]


def test_the_first_of_equal_sentences_stands_for_all_and_has_a_twin_in_another_document():
    hashes = np.array([7, 9, 7, 7, 9, 5, 5], np.uint64)
    documents = np.array([0, 0, 0, 1, 0, 1, 2])
    first, twin_of, twins = exact_duplicates(hashes, documents, np.arange(7))
    assert first.tolist() == [0, 1, 5]
    assert (twin_of.tolist(), twins.tolist()) == ([0, 5], [3, 6])
    first, twin_of, twins = exact_duplicates(hashes, documents, np.array([1, 2, 3]))
    assert (first.tolist(), twin_of.tolist(), twins.tolist()) == ([1, 2], [2], [3])
    assert [len(x) for x in exact_duplicates(hashes, documents, np.arange(0))] == [0, 0, 0]


def test_signatures_on_disk_are_computed_once_and_by_shard(tmp_path):
    table, _ = made_up(40)
    loaded = load_signatures(table, tmp_path, workers=2)
    (tmp_path / "signatures-00001.arrow").unlink()
    table.texts = {1: table.texts(1)}.__getitem__  # the others must not be asked for again
    again = load_signatures(table, tmp_path)
    assert again.hashes.tolist() == loaded.hashes.tolist()
    ids = np.array([39, 0, 20, 20])
    assert again.shingles(ids).tolist() == loaded.shingles(ids).tolist()
    assert len(list(tmp_path.glob("*.arrow"))) == table.num_shards
