"""For every query sentence its related sentences: candidates by an engine, then the exact rules.

An engine only proposes (`candidates(vectors, count) -> ids`); `selection.py` scores what it
proposes again and decides, so that engines differ in what they miss and in nothing else.
"""

import dataclasses
from pathlib import Path

import numpy as np

from icl_jax.config import SearchConfig, StageError
from icl_jax.corpus.sentence_table import SentenceTable
from icl_jax.corpus.words import RULES_VERSION
from icl_jax.files.step_folder import StepFolder
from icl_jax.retrieval.neighbours import Neighbours, shard_file
from icl_jax.retrieval.search.elsewhere import ask, run_elsewhere
from icl_jax.retrieval.search.pool import Pool, prepare_pool
from icl_jax.retrieval.search.results import describe_thresholds, measure_on_sample, summarise
from icl_jax.retrieval.search.search import Search, SearchFolders, open_engine, search_shard
from icl_jax.retrieval.search.selection import Selection
from icl_jax.retrieval.search.signatures import load_signatures
from icl_jax.retrieval.vectors import Vectors
from icl_jax.workers.local import Runner, progress_bar

__all__ = ["check_search", "describe_thresholds", "find_neighbours"]


def find_neighbours(
    queries: SentenceTable,
    query_vectors: Vectors,
    pool: SentenceTable,
    pool_vectors: Vectors,
    config: SearchConfig,
    folder: Path,
    seed: int = 0,
    mesh=None,
    runner: Runner | None = None,
    inputs: dict | None = None,
) -> Neighbours:
    """The neighbours in the table `pool` of every sentence of the table `queries` (maybe the same).

    Goes on where a killed search of the same inputs stopped. `inputs` says how the vectors were
    made. Only the engine jax needs a mesh. Beside `folder` lie signatures, pool and index, for they
    serve searches with other limits too. The index is trained and filled by this process; the
    shards of the queries are searched here, one after the other, by all hosts of a job, or by
    workers of Beam. A pool that one host's devices cannot hold is cut over those of the job.
    """
    runner = runner or Runner()
    made_from = {
        "queries": queries.fingerprint,
        "pool": pool.fingerprint,
        "vectors": inputs or {},
        "words": RULES_VERSION,
        "search": dataclasses.asdict(config),
        "seed": seed,
    }
    del made_from["search"]["recall_sample"]  # neighbours do not depend on it
    step = StepFolder(folder, made_from)
    if step.results is None:
        check_search(len(pool), pool_vectors.width, config, mesh, runner)
        _check_vectors(queries, query_vectors, pool, pool_vectors)
        places = SearchFolders(folder)
        signatures = of_queries = load_signatures(pool, places.signatures, runner)
        if queries.fingerprint != pool.fingerprint:
            of_queries = load_signatures(queries, places.query_signatures, runner)
        origin = {key: made_from[key] for key in ("pool", "vectors", "words")}
        prepared = prepare_pool(pool, pool_vectors, signatures, places.pool, origin)
        engine = _prepare_engine(prepared, config, places.index, seed, mesh, runner, origin)
        search = Search(Selection(of_queries, prepared, config), query_vectors, engine, runner)
        _search_shards(search, queries, folder, made_from)
        sampled = ask(search, folder, made_from, measure_on_sample, len(queries), seed)
        step.complete({**summarise(search, folder, queries.num_shards), **sampled})
    return Neighbours.open(folder)


def check_search(
    num_sentences: int, width: int, config: SearchConfig, mesh, runner: Runner
) -> None:
    """Stops on a pool that cannot be searched so, before hours are spent on its vectors."""
    if not num_sentences:
        raise StageError(
            "there is no sentence to search among; look at the files of the corpus, and at what "
            "was dropped from them"
        )
    if config.engine == "faiss":
        from icl_jax.retrieval.search.faiss_engine import check_index, choose_index

        check_index(choose_index(num_sentences, width, config), num_sentences, width)
    else:
        from icl_jax.retrieval.search.jax_engine import choose_mesh

        choose_mesh(num_sentences, width, config, mesh, runner.by_hosts)


def _check_vectors(
    queries: SentenceTable, query_vectors: Vectors, pool: SentenceTable, pool_vectors: Vectors
) -> None:
    for name, sentences, vectors in (
        ("queries", queries, query_vectors),
        ("pool", pool, pool_vectors),
    ):
        if len(sentences) != len(vectors):
            raise StageError(
                f"the {name} are {len(sentences):,} sentences, but there are {len(vectors):,} "
                "vectors; delete the folder of the vectors and run the stage design again"
            )
    if query_vectors.width != pool_vectors.width:
        raise StageError(
            f"queries and pool must have vectors of one width, got {query_vectors.width} and "
            f"{pool_vectors.width}; embed both with the same encoder"
        )


def _prepare_engine(
    pool: Pool,
    config: SearchConfig,
    folder: Path,
    seed: int,
    mesh,
    runner: Runner,
    inputs: dict,
):
    if config.engine == "jax" or not len(pool.ids):
        return open_engine(pool, config, folder, seed, mesh, runner)
    from icl_jax.retrieval.search.faiss_engine import choose_index

    index = choose_index(len(pool.ids), pool.vectors.width, config)
    step = StepFolder(folder, {**inputs, "seed": seed, "index": index})
    engine = open_engine(pool, config, folder, seed, mesh, runner)
    if step.results is None:
        step.complete({"bytes": engine.bytes, "parts": len(engine.parts)})
    return engine


def _search_shards(search: Search, queries: SentenceTable, folder: Path, made_from: dict) -> None:
    sizes = np.diff(queries.starts)
    missing = [s for s in range(queries.num_shards) if not shard_file(folder, s).exists()]
    done = len(queries) - int(sizes[missing].sum())
    with progress_bar(total=len(queries), initial=done, unit="query", desc="neighbours") as bar:
        if search.runner.elsewhere:
            tasks, todo = [(shard, folder) for shard in missing], sizes[missing].tolist()
            run_elsewhere(search_shard, tasks, bar, todo, search, folder, made_from)
        else:
            for shard in missing:
                search_shard(search, shard, folder, bar.update)
