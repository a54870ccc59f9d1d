"""Opens a search: the same for this process, for workers of Beam, and for later rounds.

What a search needs is in folders beside that of its neighbours, so searches with other limits
use it too, and workers open it by names alone.
"""

import functools
import json
from pathlib import Path
import threading

from icl_jax.config import MeshConfig, SearchConfig, StageError
from icl_jax.config.tree import from_dict, to_dict
from icl_jax.corpus.sentence_table import SentenceTable
from icl_jax.corpus.words import RULES_VERSION
from icl_jax.files.step_folder import StepFolder
from icl_jax.retrieval.search.pool import Pool, prepare_pool
from icl_jax.retrieval.search.search import Search, SearchFolders, search_shard
from icl_jax.retrieval.search.selection import Selection
from icl_jax.retrieval.search.signatures import Signatures, load_signatures
from icl_jax.retrieval.vectors import Vectors
from icl_jax.workers.job import job_size
from icl_jax.workers.local import Runner

_searching = threading.Lock()  # a worker may have threads; one search keeps all cores busy


def check_search(
    num_sentences: int, width: int, config: SearchConfig, mesh, runner: Runner
) -> None:
    """Stops on a pool that cannot be searched this way, before hours are spent on its vectors."""
    if not num_sentences:
        raise StageError(
            "there is no sentence to search among; check the files of the corpus, and what "
            "was dropped from them"
        )
    if config.engine == "faiss":
        from icl_jax.retrieval.search.faiss_engine import check_index, choose_index

        check_index(choose_index(num_sentences, width, config), num_sentences, width)
    else:
        from icl_jax.retrieval.search.jax_engine import choose_mesh

        choose_mesh(num_sentences, width, config, mesh, _with_others(runner))


def prepare_search(
    queries: SentenceTable,
    query_vectors: Vectors,
    pool: SentenceTable,
    pool_vectors: Vectors,
    config: SearchConfig,
    folder: Path,
    seed: int,
    mesh,
    runner: Runner,
    vectors_from: dict,
) -> Search:
    """Makes what the search in `folder` is missing, and opens it."""
    places = SearchFolders(folder)
    signatures = load_signatures(pool, places.signatures, runner)
    own_queries = queries.fingerprint != pool.fingerprint
    if own_queries:
        load_signatures(queries, places.query_signatures, runner)
    origin = {"pool": pool.fingerprint, "vectors": vectors_from, "words": RULES_VERSION}
    prepared = prepare_pool(pool, pool_vectors, signatures, places.pool, origin)
    if config.engine == "faiss" and len(prepared.ids):
        _prepare_index(prepared, config, places.index, seed, runner, origin)
    return open_search(folder, pool_vectors, query_vectors, own_queries, config, seed, mesh, runner)


def open_search(
    folder: Path,
    vectors: Vectors,
    query_vectors: Vectors,
    own_queries: bool,
    config: SearchConfig,
    seed: int,
    mesh,
    runner: Runner,
) -> Search:
    """A search that is prepared; `own_queries`: the queries are not the sentences of the pool."""
    places = SearchFolders(folder)
    signatures = of_queries = Signatures.open(places.signatures)
    if own_queries:
        of_queries = Signatures.open(places.query_signatures)
    pool = Pool.open(places.pool, signatures, vectors)
    engine = open_engine(pool, config, places.index, seed, mesh, runner)
    return Search(Selection(of_queries, pool, config), query_vectors, engine, runner)


def open_engine(pool: Pool, config: SearchConfig, folder: Path, seed: int, mesh, runner: Runner):
    """The engine that proposes candidates; an index of FAISS is in `folder`, or is built there."""
    if not len(pool.ids):
        raise StageError(
            "every vector of the pool is zero, so nothing can be found; check the sentences, "
            "or choose another encoder"
        )
    if config.engine == "jax":
        from icl_jax.retrieval.search.jax_engine import JaxSearch, choose_mesh

        size = (len(pool.ids), pool.vectors.width)
        mesh = choose_mesh(*size, config, mesh, _with_others(runner))
        return JaxSearch(pool.vectors, pool.ids, config, mesh)
    from icl_jax.retrieval.search.faiss_engine import FaissSearch

    return FaissSearch(pool.vectors, pool.ids, config, folder, seed, runner.threads)


def _prepare_index(
    pool: Pool, config: SearchConfig, folder: Path, seed: int, runner: Runner, inputs: dict
) -> None:
    from icl_jax.retrieval.search.faiss_engine import choose_index

    index = choose_index(len(pool.ids), pool.vectors.width, config)
    step = StepFolder(folder, {**inputs, "seed": seed, "index": index})

    def build() -> dict:
        engine = open_engine(pool, config, folder, seed, None, runner)
        return {"bytes": engine.bytes, "parts": len(engine.parts)}

    if step.results is None:
        step.complete(build)


def _with_others(runner: Runner) -> bool:
    """Whether all hosts of a job search here."""
    return runner.kind != "beam" and job_size() > 1


def describe_search(search: Search, folder: Path, made_from: dict) -> str:
    """All that a worker needs to open the same search; `made_from` identifies it."""
    return json.dumps(
        {
            "folder": str(folder),
            "vectors": str(search.pool.vectors.folder),
            "query_vectors": str(search.query_vectors.folder),
            "own_queries": search.selection.queries is not search.pool.signatures,
            "config": to_dict(search.config),
            "made_from": made_from,
            "threads": search.runner.threads,
        }
    )


def search_in_worker(description: str, shard: int, folder: str) -> None:
    """As `search_shard`, of names alone; the search stays open for the next shard."""
    with _searching:
        search_shard(_open_described(description), shard, Path(folder))


@functools.lru_cache(maxsize=1)
def _open_described(description: str) -> Search:
    held = json.loads(description)
    config, mesh = from_dict(held["config"]), None
    if config.engine == "jax":
        from icl_jax.sharding import make_host_mesh

        mesh = make_host_mesh(MeshConfig())
    vectors, of_queries = (Vectors.open(Path(held[name])) for name in ("vectors", "query_vectors"))
    return open_search(
        Path(held["folder"]), vectors, of_queries, held["own_queries"], config,
        held["made_from"]["seed"], mesh, Runner(held["threads"], "beam"),
    )  # fmt: skip
