import numpy as np
import pytest

from icl_jax.config import ConfigError, SearchConfig, StageError
from icl_jax.retrieval.search import faiss_engine as search_faiss
from icl_jax.retrieval.search.faiss_engine import ExactScan, FaissSearch, check_index, choose_index
from icl_jax.retrieval.vectors import Vectors

pytestmark = pytest.mark.delicate


def clustered(count, width=16, clusters=20, seed=0, shards=4):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(clusters, width))[rng.integers(clusters, size=count)]
    rows = (rows + 0.5 * rng.normal(size=rows.shape)).astype(np.float16)
    return Vectors(np.array_split(rows, shards))


def nearest_by_product(vectors, ids, queries, count):
    scores = vectors.take(queries).astype(np.float64) @ vectors.take(ids).T.astype(np.float64)
    return ids[np.argsort(-scores, axis=1)[:, :count]]


def test_the_exact_scan_finds_what_one_product_finds():
    vectors, ids = clustered(500), np.arange(3, 500, 2)
    queries = np.arange(0, 500, 7)
    found = ExactScan(vectors, ids).candidates(vectors.take(queries), 9)
    assert (found == nearest_by_product(vectors, ids, queries, 9)).all()
    few = ExactScan(vectors, ids[:5]).candidates(vectors.take(queries), 9)
    assert (few[:, 5:] == -1).all() and (few[:, :5] >= 0).all()


@pytest.mark.parametrize(
    "index", ["Flat", "IVF8,Flat", "IVF8,SQ8", "IVF8,PQ8x4fs", "PCA8,IVF8,SQ8", "HNSW8"]
)
def test_every_kind_of_index_finds_most_of_the_nearest(tmp_path, monkeypatch, index):
    monkeypatch.setattr(search_faiss, "_PART_VECTORS", 400)  # several parts
    vectors, ids = clustered(1201), np.arange(0, 1201, 1)[1:]
    engine = FaissSearch(vectors, ids, SearchConfig(index=index, neighbours=5, probes=8), tmp_path)
    queries = np.arange(0, 1200, 13)
    nearest = nearest_by_product(vectors, ids, queries, 5)
    found = engine.candidates(vectors.take(queries), engine.first_count)
    hits = np.mean(
        [np.isin(row, others).mean() for row, others in zip(nearest, found, strict=True)]
    )
    assert hits >= (1.0 if index in ("Flat", "IVF8,Flat") else 0.8)
    assert len(list(tmp_path.glob("part-*.faiss"))) == (3 if "IVF" in index else 1)
    assert engine.describe()["index"] == index


def test_a_killed_build_keeps_its_training_and_finished_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(search_faiss, "_PART_VECTORS", 300)
    vectors, ids, config = clustered(1200), np.arange(1200), SearchConfig(index="IVF8,PQ8x4fs")
    FaissSearch(vectors, ids, config, tmp_path)
    whole = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    (tmp_path / "part-00002.faiss").unlink()
    monkeypatch.delattr(search_faiss, "_train")
    shards_read, rows_of_shard = [], search_faiss._rows_of_shard
    monkeypatch.setattr(
        search_faiss,
        "_rows_of_shard",
        lambda *args: (shards_read.append(args[2]), rows_of_shard(*args))[1],
    )
    FaissSearch(vectors, ids, config, tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == whole
    assert len(shards_read) < len(vectors.shards)


def test_the_index_is_the_same_for_any_number_of_threads(tmp_path):
    vectors, config = clustered(1301, width=24), SearchConfig(index="IVF31,PQ12x4fs")
    built, found = [], []
    for threads in (1, 2, 3):
        folder = tmp_path / str(threads)
        engine = FaissSearch(vectors, np.arange(1301), config, folder, threads=threads)
        built.append({file.name: file.read_bytes() for file in folder.iterdir()})
        found.append(engine.candidates(vectors.take(np.arange(1301)), 40))
    assert built[0] == built[1] == built[2]
    assert (found[0] == found[1]).all() and (found[0] == found[2]).all()


def share_of_nearest(engine, vectors, ids, queries, neighbours):
    """Of the nearest others of each query, those among its candidates: by products alone."""
    nearest = nearest_by_product(vectors, ids, queries, neighbours + 1)
    found = engine.candidates(vectors.take(queries), engine.first_count)
    hits = [
        other in candidates
        for query, near, candidates in zip(queries, nearest, found, strict=True)
        for other in near
        if other != query
    ]
    return np.mean(hits)


def test_probes_are_the_fewest_with_which_nearly_all_nearest_are_found(tmp_path):
    vectors, ids = clustered(3000, clusters=3000), np.arange(3000)  # the nearest are in many lists
    engine = FaissSearch(vectors, ids, SearchConfig(index="IVF64,Flat", neighbours=10), tmp_path)
    assert 8 < engine.probes < 48 and engine.first_count == 64
    sample = np.random.default_rng([0, 1]).permutation(ids)[:500]  # which it was tuned on
    others = np.setdiff1d(ids, sample)[:500]
    assert share_of_nearest(engine, vectors, ids, sample, 10) >= 0.97
    assert share_of_nearest(engine, vectors, ids, others, 10) > 0.95
    engine.probes = round(engine.probes / 2**0.25)  # one step back
    assert share_of_nearest(engine, vectors, ids, sample, 10) < 0.97
    given = FaissSearch(vectors, ids, SearchConfig(index="IVF64,Flat", probes=3), tmp_path)
    assert given.probes == 3


def test_a_sentence_that_finds_itself_does_not_lower_the_number_of_probes(tmp_path):
    vectors, ids = clustered(2000, clusters=2000), np.arange(2000)
    engine = FaissSearch(vectors, ids, SearchConfig(index="IVF32,Flat", neighbours=1), tmp_path)
    sample = np.random.default_rng([0, 1]).permutation(ids)[:500]
    assert share_of_nearest(engine, vectors, ids, sample, 1) >= 0.97  # of one other each


def test_more_candidates_are_taken_where_no_number_of_probes_is_enough(tmp_path):
    """Codes as coarse as these put many others before a nearest neighbour."""
    vectors, ids = clustered(1000, clusters=1000), np.arange(1000)
    config = SearchConfig(index="IVF8,PQ4x4fs", neighbours=10)
    engine = FaissSearch(vectors, ids, config, tmp_path)
    assert engine.first_count > 64
    sample = np.random.default_rng([0, 1]).permutation(ids)[:500]
    assert share_of_nearest(engine, vectors, ids, sample, 10) >= 0.97
    engine.probes, engine.first_count = 8, engine.first_count // 2
    assert share_of_nearest(engine, vectors, ids, sample, 10) < 0.97


def test_probes_are_tuned_again_for_another_number_of_neighbours(tmp_path):
    vectors, ids = clustered(400, clusters=400), np.arange(400)

    def tuned(neighbours, folder):
        config = SearchConfig(index="IVF8,Flat", neighbours=neighbours)
        engine = FaissSearch(vectors, ids, config, folder)
        return engine.probes, engine.first_count

    few = tuned(2, tmp_path / "one")
    assert tuned(30, tmp_path / "one") == tuned(30, tmp_path / "other") != few


@pytest.mark.parametrize("lists", [1, 4])
def test_few_lists_are_all_probed(tmp_path, lists):
    vectors, ids = clustered(300), np.arange(300)
    engine = FaissSearch(vectors, ids, SearchConfig(index=f"IVF{lists},Flat"), tmp_path)
    assert engine.probes == lists


def test_the_automatic_choice_follows_size_and_memory():
    def chosen(count, width, gigabytes=8.0):
        return choose_index(count, width, SearchConfig(memory_gigabytes=gigabytes))

    assert chosen(10_000, 384) == "Flat"
    assert chosen(373_000, 384) == "IVF1024,PQ192x4fs"
    assert chosen(100_000_000, 384, 64) == "IVF16384,PQ192x4fs"
    assert chosen(100_000_000, 384, 8) == "IVF16384,PQ64x4fs"
    assert chosen(400_000, 1024) == "IVF1024,PQ512x4fs"
    with pytest.raises(ConfigError, match="memory_gigabytes"):
        chosen(10**9, 384, 1)
    for count, width in ((20_000, 384), (30_000, 37), (10**8, 1024)):
        check_index(chosen(count, width, 64), count, width)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("nonsense", "could not parse index string nonsense"),
        ("IVF4,PQ7x4fs", "multiple of the number of subquantizers"),
        ("IVF4,PQ8x4fs,RFlat", "scored again exactly anyway"),
        ("IDMap,Flat", "leave out IDMap"),
        ("NSG8", "shard by shard"),
        ("L2norm,Flat", "factory string"),
        (
            "IVF100,Flat",
            r"at least 3,900 different .* there are 1,000; use at most 25 lists \(IVF25",
        ),
    ],
)
def test_an_index_that_cannot_be_is_a_config_error_with_the_reason(index, message):
    with pytest.raises(ConfigError, match=message) as caught:
        check_index(index, 1000, 16)
    assert ".cpp" not in str(caught.value)


def test_codes_that_cannot_be_trained_are_a_config_error(tmp_path):
    vectors = clustered(100)
    with pytest.raises(ConfigError, match=r"cannot be trained on 100 .*clusters \(256\)"):
        FaissSearch(vectors, np.arange(100), SearchConfig(index="PQ8"), tmp_path)


def test_an_index_of_another_width_is_named(tmp_path):
    config = SearchConfig(index="Flat")
    FaissSearch(clustered(100), np.arange(100), config, tmp_path)
    with pytest.raises(StageError, match=r"width 16, .* have 8"):
        FaissSearch(clustered(100, width=8), np.arange(100), config, tmp_path)
