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
from icl_jax.retrieval.search.open_search import (
    check_search,
    describe_search,
    prepare_search,
    search_in_worker,
)
from icl_jax.retrieval.search.results import measure_on_sample, summarise
from icl_jax.retrieval.search.search import search_shard
from icl_jax.retrieval.vectors import Vectors
from icl_jax.workers.local import Runner
from icl_jax.workers.shards import make_shards


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

    Continues a search of the same inputs that was killed. `inputs` says how the vectors were made.
    Only the engine jax needs a mesh. Signatures, pool and index are kept beside `folder`, because
    searches with other limits use them too. The shards of the queries are searched here, one after
    the other, by all hosts of a job, or by workers of Beam. A pool that the devices of one host
    cannot hold is cut over those of the job.
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
        search = prepare_search(
            queries, query_vectors, pool, pool_vectors, config, folder, seed, mesh, runner,
            made_from["vectors"],
        )  # fmt: skip
        make_shards(
            "neighbours", folder, np.diff(queries.starts),
            lambda shard: shard_file(folder, shard).exists(), search_in_worker,
            lambda shard: (describe_search(search, folder, made_from), shard, str(folder)),
            runner, "query", here=lambda shard, done: search_shard(search, shard, folder, done),
            around=search.in_step,
        )  # fmt: skip
        sampled = search.ask(measure_on_sample, len(queries), seed)
        step.complete(lambda: {**summarise(search, folder, queries.num_shards), **sampled})
    return Neighbours.open(folder)


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
