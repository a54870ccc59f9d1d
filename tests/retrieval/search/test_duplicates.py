import numpy as np
import pyarrow as pa
import pytest

from icl_jax.config import SearchConfig
from icl_jax.files.step_folder import read_results
from icl_jax.retrieval.search import duplicates
from icl_jax.retrieval.search.duplicates import exact_duplicates, near_duplicates
from icl_jax.retrieval.search.pool import Pool
from icl_jax.retrieval.search.selection import Selection
from icl_jax.retrieval.search.signatures import Signatures, load_signatures, sign
from icl_jax.retrieval.vectors import Vectors
from icl_jax.workers.local import Runner
from tests.retrieval.made_up import jaccard, made_up

pytestmark = pytest.mark.delicate


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
        ("Caf\u00e9", "Cafe\u0301", True),
        ("It is written in C.", "It is written in C++.", False),
        ("It was -5 degrees.", "It was 5 degrees.", False),
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


def test_near_duplicates_are_found_where_a_script_has_no_spaces():
    one = "昨天下午我们一起去了市中心的大公园散步看花"
    texts = signatures(one, f"{one}了", "这本书讲的是一个住在海边的老渔夫的故事而已")
    pairs = np.array([0, 0]), np.array([1, 2])
    assert near_duplicates(texts, pairs[0], texts, pairs[1], 0.7).tolist() == [True, False]


def test_long_sentences_that_fill_the_sketch_are_compared_exactly():
    words = [f"w{i}" for i in range(400)]
    texts = signatures(" ".join(words), " ".join(words[:300]), " ".join(reversed(words)))
    pairs = np.array([0, 0]), np.array([1, 2])
    assert near_duplicates(texts, pairs[0], texts, pairs[1], 0.7).tolist() == [True, False]
    assert near_duplicates(texts, pairs[0], texts, pairs[1], 0.8).tolist() == [False, False]


def test_the_first_of_equal_sentences_stands_for_all_and_has_a_twin_in_another_document():
    hashes = np.array([7, 9, 7, 7, 9, 5, 5], np.uint64)
    documents = np.array([0, 0, 0, 1, 0, 1, 2])
    everyone = np.ones(7, bool)
    first, twin_of, twins = exact_duplicates(hashes, documents, everyone)
    assert first.tolist() == [0, 1, 5]
    assert (twin_of.tolist(), twins.tolist()) == ([0, 5], [3, 6])
    first, twin_of, twins = exact_duplicates(hashes, documents, np.isin(np.arange(7), [1, 2, 3]))
    assert (first.tolist(), twin_of.tolist(), twins.tolist()) == ([1, 2], [2], [3])
    assert [len(x) for x in exact_duplicates(hashes, documents, ~everyone)] == [0, 0, 0]


@pytest.mark.parametrize("at_once", [7, 101, 10_000])
def test_duplicates_are_the_same_however_many_hashes_are_sorted_at_once(at_once, monkeypatch):
    monkeypatch.setattr(duplicates, "_SORTED_AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**64, 97, dtype=np.uint64)  # all leading bits occur
    hashes, documents = rng.choice(values, 1009), np.sort(rng.integers(0, 53, 1009))
    members = rng.random(1009) < 0.8
    classes = {}
    for i in np.flatnonzero(members).tolist():
        classes.setdefault(hashes[i], []).append(i)
    pairs = []
    for ids in classes.values():
        other = next((i for i in ids if documents[i] != documents[ids[0]]), None)
        pairs += [] if other is None else [(ids[0], other)]
    first, of, other = exact_duplicates(hashes, documents, members)
    assert first.tolist() == sorted(ids[0] for ids in classes.values())
    assert list(zip(of.tolist(), other.tolist(), strict=True)) == sorted(pairs)


def test_signatures_on_disk_are_computed_once_and_by_shard(tmp_path):
    table, _ = made_up(40)
    loaded = load_signatures(table, tmp_path, Runner(2))
    expected = Signatures([sign(table.texts(shard)) for shard in range(table.num_shards)])
    for name in ("hashes", "sketches", "sizes"):
        assert getattr(loaded, name).tolist() == getattr(expected, name).tolist()
    assert read_results(tmp_path) == {"shards": 3, "sentences": 40}
    (tmp_path / "signatures-00001.arrow").unlink()
    (tmp_path / "results.json").unlink()  # as if it had been killed before
    table.texts = {1: table.texts(1)}.__getitem__  # the others must not be asked for again
    again = load_signatures(table, tmp_path)
    assert again.hashes.tolist() == loaded.hashes.tolist()
    ids = np.array([39, 0, 20, 20])
    assert again.shingles(ids).tolist() == loaded.shingles(ids).tolist()
    assert len(list(tmp_path.glob("*.arrow"))) == table.num_shards


def select_for_one_query(found, same_document=False):
    """Sentence 0 asks; 1 is in its document, and 3, of equal words, in another; 2 has no twin."""
    texts = ["who asks", "grey herons fish here", "old otters swim there", "Grey herons fish here!",
             "young lynxes hunt alone"]  # fmt: skip
    vectors = Vectors([np.array([[1, 0], [4, 3], [1, 0], [3, 4], [0.1, 1]], np.float32)])
    own = signatures(*texts)
    pool = Pool.make(own, vectors, np.array([0, 0, 0, 1, 2]))
    config = SearchConfig(neighbours=3, min_similarity=0.0, same_document=same_document)
    selection = Selection(own, pool, config)
    query = np.array([[1, 0]], np.float32)
    return pool, selection.select(np.array([0]), query, np.array([found]), 0.0)


def test_the_twin_in_another_document_takes_the_place_of_a_sentence_of_the_own_document():
    pool, selected = select_for_one_query([1, 2, 4])
    assert pool.ids.tolist() == [0, 1, 2, 4] and pool.twins.tolist() == [[1], [3]]
    assert selected.ids.tolist() == [[3, 4, -1]]
    np.testing.assert_allclose(selected.similarities[0, :2], [0.6, 0.1 / 1.01**0.5], rtol=1e-6)
    assert {rule: count.tolist() for rule, count in selected.counts.items()} == {
        "same_words": [0], "same_document": [1], "below_threshold": [0],
        "near_duplicate_of_query": [0], "near_duplicate_of_neighbour": [0],
    }  # fmt: skip


@pytest.mark.parametrize(("last", "used_up"), [((0.6, 0.4), True), ((0.4, 0.3), False)])
def test_the_candidates_end_above_the_threshold_if_one_of_their_last_eighth_is(last, used_up):
    cosines = np.array([1.0, *np.linspace(0.9, 0.7, 14), *last])  # the query, 16 candidates
    rows = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1).astype(np.float32)
    own = signatures(*(f"word{i} x{i} y{i}" for i in range(17)))
    pool = Pool.make(own, Vectors([rows]), np.zeros(17, int))  # all are in the query's document
    selection = Selection(own, pool, SearchConfig(neighbours=3))
    selected = selection.select(np.array([0]), rows[:1], np.arange(1, 17)[None], 0.5)
    assert selected.used_up.tolist() == [used_up]


def test_without_the_rule_of_documents_the_first_of_equal_sentences_stays():
    _, selected = select_for_one_query([1, 2, 4], same_document=True)
    assert selected.ids.tolist() == [[2, 1, 4]]
    np.testing.assert_allclose(selected.similarities[0, 1], 0.8, rtol=1e-6)
