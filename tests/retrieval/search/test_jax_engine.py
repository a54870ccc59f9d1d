import jax
import numpy as np
import pytest

from icl_jax.config import ConfigError, MeshConfig, SearchConfig
from icl_jax.retrieval.search import jax_engine as search_jax
from icl_jax.retrieval.search.faiss_engine import ExactScan
from icl_jax.retrieval.search.find import find_neighbours
from icl_jax.retrieval.search.jax_engine import JaxSearch
from icl_jax.retrieval.vectors import Vectors
from icl_jax.sharding import make_mesh
from tests.retrieval.made_up import made_up

pytestmark = pytest.mark.delicate


@pytest.fixture
def small_steps(monkeypatch):
    monkeypatch.setattr(search_jax, "QUERIES", 64)
    monkeypatch.setattr(search_jax, "_CHUNK", 11)  # several chunks on a device


def spread(count, width=12):
    rows = np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)
    return Vectors(np.array_split(rows, 3))


@pytest.mark.parametrize("shape", [MeshConfig(), MeshConfig(data=2, fsdp=2, tensor=2)])
def test_the_devices_together_find_what_the_exact_scan_finds(small_steps, shape):
    assert jax.device_count() == 8
    vectors, ids = spread(403), np.arange(1, 403, 2)  # 201 rows on 8 devices
    engine = JaxSearch(vectors, ids, SearchConfig(engine="jax"), make_mesh(shape))
    queries = vectors.take(np.arange(100))
    for count in (7, 61):  # more than a device holds
        found = engine.candidates(queries, count)
        assert (found == ExactScan(vectors, ids).candidates(queries, count)).all()


def test_padding_rows_are_never_returned(small_steps):
    vectors, ids = spread(9), np.arange(9)
    engine = JaxSearch(vectors, ids, SearchConfig(engine="jax"), make_mesh(MeshConfig()))
    found = engine.candidates(-vectors.take(ids), 12)  # everything else is nearer than zero rows
    assert (np.sort(found, axis=1) == [-1, -1, -1, *range(9)]).all()


def test_exact_search_ends_with_the_neighbours_of_faiss_flat(small_steps, tmp_path):
    table, rows = made_up(307)
    vectors, mesh = table.vectors(rows), make_mesh(MeshConfig())
    found = {}
    for engine, index in (("faiss", "Flat"), ("jax", "exact")):
        config = SearchConfig(engine=engine, index=index, min_similarity=0.3, recall_sample=0)
        folder = tmp_path / engine
        found[engine] = find_neighbours(table, vectors, table, vectors, config, folder, mesh=mesh)
    for shard in range(table.num_shards):
        assert found["jax"].shard(shard).equals(found["faiss"].shard(shard))
    assert found["jax"].results["mean_neighbours"] > 3


def test_approximate_search_finds_most_and_its_exact_twin_all(small_steps):
    vectors, ids = spread(403), np.arange(403)
    config = SearchConfig(engine="jax", index="approximate")
    engine = JaxSearch(vectors, ids, config, make_mesh(MeshConfig()))
    queries = vectors.take(ids[:64])
    nearest = ExactScan(vectors, ids).candidates(queries, 10)
    found = engine.candidates(queries, 20)
    assert np.mean([np.isin(a, b).mean() for a, b in zip(nearest, found, strict=True)]) > 0.9
    assert (engine.exact().candidates(queries, 10) == nearest).all()
    assert (engine.index, engine.exact().index) == ("approximate", "exact")


def test_a_pool_larger_than_the_devices_is_an_error_with_both_numbers():
    config = SearchConfig(engine="jax", memory_gigabytes=1e-5)
    with pytest.raises(
        ConfigError, match=r"needs 0\.0\d+ GB on each of 8 devices .* has 1\.25e-06"
    ):
        JaxSearch(spread(403), np.arange(403), config, make_mesh(MeshConfig()))
    with pytest.raises(ConfigError, match="mesh"):
        JaxSearch(spread(9), np.arange(9), config, None)
