"""For every query sentence its related sentences: candidates by an engine, then the exact rules.

An engine only proposes (`candidates(vectors, count) -> ids`); `selection.py` scores what it
proposes again and decides, so that engines differ in what they miss and in nothing else.
"""

import concurrent.futures
import dataclasses
from pathlib import Path
import resource
import time

import numpy as np

from icl_jax.config import SearchConfig, StageError
from icl_jax.corpus.sentence_table import SentenceTable
from icl_jax.parallel import count_cores, progress_bar
from icl_jax.retrieval import neighbours as table
from icl_jax.retrieval.duplicates import load_signatures
from icl_jax.retrieval.neighbours import Neighbours, share_found
from icl_jax.retrieval.selection import Selected, Selection
from icl_jax.retrieval.vectors import Vectors
from icl_jax.step_folder import StepFolder

_BLOCK = 8192  # queries that an engine gets at once; fixed, for the result must not depend on it
_PIECE = 512  # queries that one thread scores at once, at least: few long steps cost less than many
_MOST_CANDIDATES = 2048  # of one query; asking starts with far fewer
_MOST_FOUND = 2**20  # candidates of all queries at once, where some ask again


def find_neighbours(
    queries: SentenceTable,
    query_vectors: Vectors,
    pool: SentenceTable,
    pool_vectors: Vectors,
    config: SearchConfig,
    folder: Path,
    seed: int = 0,
    mesh=None,
    workers: int = 0,
    inputs: dict | None = None,
) -> Neighbours:
    """The neighbours in the table `pool` of every sentence of the table `queries` (maybe the same).

    Goes on where a killed search of the same inputs stopped. `inputs` says how the vectors were
    made. Only the engine jax needs a mesh. Index and signatures lie beside `folder`, for they serve
    searches with other limits too.
    """
    made_from = {
        "queries": queries.fingerprint,
        "pool": pool.fingerprint,
        "vectors": inputs or {},
        "search": dataclasses.asdict(config),
        "seed": seed,
    }
    del made_from["search"]["recall_sample"]  # neighbours do not depend on it
    step = StepFolder(folder, made_from)
    if step.results is None:
        check_search(len(pool), pool_vectors.width, config, mesh)
        _check_vectors(queries, query_vectors, pool, pool_vectors)
        started = time.perf_counter()
        selection = _prepare_rules(queries, pool, pool_vectors, config, folder, workers)
        index = {key: made_from[key] for key in ("pool", "vectors", "seed")}
        place = folder.with_name(f"{folder.name}_index")
        search = Search(selection, query_vectors, place, seed, mesh, workers, index)
        with progress_bar(total=len(queries), unit="query", desc="neighbours") as bar:
            for shard in range(queries.num_shards):
                ids = np.arange(queries.starts[shard], queries.starts[shard + 1])
                if table.shard_file(folder, shard).exists():
                    bar.update(len(ids))
                else:
                    _search_shard(search, shard, ids, folder, bar)
        results = _summary(search, folder, queries.num_shards)
        results["recall"] = _recall(search, len(queries), seed)
        results["seconds"] = round(time.perf_counter() - started, 1)  # of this run
        step.complete(results)
    return Neighbours.open(folder)


def check_search(num_sentences: int, width: int, config: SearchConfig, mesh=None) -> None:
    """Stops on a pool that cannot be searched so, before hours are spent on its vectors."""
    if not num_sentences:
        raise StageError(
            "there is no sentence to search among; look at the files of the corpus, and at what "
            "was dropped from them"
        )
    if config.engine == "faiss":
        from icl_jax.retrieval.search_faiss import check_index, choose_index

        check_index(choose_index(num_sentences, width, config), num_sentences, width)
    else:
        from icl_jax.retrieval.search_jax import check_memory

        check_memory(num_sentences, width, mesh, config)


class Search:
    """An engine and the rules, for any of the query sentences."""

    def __init__(
        self,
        selection: Selection,
        query_vectors: Vectors,
        folder: Path,
        seed: int = 0,
        mesh=None,
        workers: int = 0,
        inputs: dict | None = None,
    ):
        self.selection, self.query_vectors = selection, query_vectors
        self.config, self.threads = selection.config, workers or count_cores()
        vectors, ids = selection.vectors, selection.ids
        if not len(ids):
            raise StageError(
                "every vector of the pool is zero, so nothing can be found; look at the sentences, "
                "or choose another encoder"
            )
        if self.config.engine == "jax":
            from icl_jax.retrieval.search_jax import JaxSearch

            self.engine = JaxSearch(vectors, ids, self.config, mesh)
        else:
            from icl_jax.retrieval.search_faiss import FaissSearch, choose_index

            index = choose_index(len(ids), vectors.width, self.config)
            StepFolder(folder, {**(inputs or {}), "index": index})
            self.engine = FaissSearch(vectors, ids, self.config, folder, seed, workers)

    def nearest(self, queries: np.ndarray, threshold: float | None = None, engine=None) -> Selected:
        """The neighbours of these query sentences.

        Where too few are left although the candidates ended above the threshold, four times as many
        are asked for, up to 2,048.
        """
        threshold = self.config.min_similarity if threshold is None else threshold
        engine = engine or self.engine
        vectors = self.query_vectors.take(queries)
        most = min(_MOST_CANDIDATES, len(self.selection.ids))
        count = min(self.engine.first_count, most)
        selected = self._select(queries, vectors, threshold, engine, count)
        again = np.flatnonzero(selected.used_up)
        selected.counts["asked_again"] = selected.used_up.astype(np.int64)
        while len(again) and count < most:
            count = min(4 * count, most)
            more = self._select_many(queries[again], vectors[again], threshold, engine, count)
            selected.ids[again], selected.similarities[again] = more.ids, more.similarities
            for rule, values in more.counts.items():
                selected.counts[rule][again] = values
            selected.used_up[again] = more.used_up
            again = again[more.used_up]
        if most == len(self.selection.ids):
            selected.used_up[:] = False  # the whole pool was seen
        selected.counts["too_few_candidates"] = selected.used_up.astype(np.int64)
        return selected

    def _select_many(
        self, queries: np.ndarray, vectors: np.ndarray, threshold: float, engine, count: int
    ) -> Selected:
        """As `_select`, with few queries at a time: each has many candidates."""
        size = max(1, _MOST_FOUND // count)
        cuts = [slice(start, start + size) for start in range(0, len(queries), size)]
        return Selected.join(
            [self._select(queries[c], vectors[c], threshold, engine, count) for c in cuts]
        )

    def _select(
        self, queries: np.ndarray, vectors: np.ndarray, threshold: float, engine, count: int
    ) -> Selected:
        found = engine.candidates(vectors, count)
        found[~vectors.any(axis=1)] = -1
        size = max(_PIECE, -(-len(queries) // self.threads))
        cuts = [slice(i, i + size) for i in range(0, max(1, len(queries)), size)]
        with concurrent.futures.ThreadPoolExecutor(self.threads) as threads:
            select = self.selection.select
            tasks = [
                threads.submit(select, queries[cut], vectors[cut], found[cut], threshold)
                for cut in cuts
            ]
            return Selected.join([task.result() for task in tasks])


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


def _prepare_rules(
    queries: SentenceTable,
    pool: SentenceTable,
    pool_vectors: Vectors,
    config: SearchConfig,
    folder: Path,
    workers: int,
) -> Selection:
    place = folder.with_name(f"{folder.name}_signatures")
    of_pool = of_queries = load_signatures(pool, place / "pool", workers)
    query_documents = pool.documents
    if queries.fingerprint != pool.fingerprint:
        of_queries = load_signatures(queries, place / "queries", workers)
        query_documents = None  # documents of two tables have nothing to do with each other
    return Selection(of_queries, of_pool, pool_vectors, pool.documents, query_documents, config)


def _search_shard(search: Search, shard: int, queries: np.ndarray, folder: Path, bar) -> None:
    found = []
    for start in range(0, max(1, len(queries)), _BLOCK):  # a shard may hold no sentence
        found.append(search.nearest(queries[start : start + _BLOCK]))
        bar.update(len(found[-1].ids))
    found = Selected.join(found)
    kept = found.ids >= 0
    counts = {rule: int(values.sum()) for rule, values in found.counts.items()}
    table.write_shard(
        folder, shard, kept.sum(axis=1), found.ids[kept], found.similarities[kept], counts
    )


def _summary(search: Search, folder: Path, num_shards: int) -> dict:
    """What the results say, from the finished shards."""
    edges = np.round(np.linspace(-1, 1, 41), 2)  # the last bin holds a rounding error above 1
    bins = np.append(edges[:-1], 1.01)
    histogram, counts = np.zeros(40, np.int64), {}
    queries = with_neighbours = 0
    for shard in range(num_shards):
        batch = table.read_shard(folder, shard)
        histogram += np.histogram(batch["similarities"].values.to_numpy(), bins)[0]
        with_neighbours += int((np.diff(batch["ids"].offsets.to_numpy()) > 0).sum())
        queries += len(batch)
        for rule, count in table.shard_counts(batch).items():
            counts[rule] = counts.get(rule, 0) + count
    selection = search.selection
    return {
        "shards": num_shards,
        "engine": search.config.engine,
        **search.engine.describe(),
        "first_candidates": search.engine.first_count,
        "queries": queries,
        "queries_with_neighbours": with_neighbours,
        "mean_neighbours": round(int(histogram.sum()) / max(1, queries), 3),
        "asked_again": counts.pop("asked_again", 0),
        "too_few_candidates": counts.pop("too_few_candidates", 0),
        "pool": len(selection.vectors),
        "pool_exact_duplicates": selection.duplicates,
        "pool_zero_vectors": selection.zeros,
        "candidates_left_out": counts,
        "similarity_edges": edges.tolist(),
        "similarity_counts": histogram.tolist(),
        "peak_memory_gigabytes": round(
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2
        ),
    }


def _recall(search: Search, num_queries: int, seed: int) -> dict:
    """Against brute force with the same rules, on random queries; three shares of what it finds.

    `candidates`: of the k nearest, other words than the query's, before any rule. `neighbours`: of
    the final lists, were there no threshold. `above_threshold`: of the final lists as they are.
    """
    sample = np.random.default_rng([seed, 2]).permutation(num_queries)
    sample = np.sort(sample[: search.config.recall_sample])
    if not len(sample):
        return {"queries": 0}
    exact, selection = search.engine.exact(), search.selection
    vectors = search.query_vectors.take(sample)
    shown = vectors.any(axis=1)
    near = exact.candidates(vectors, min(search.config.neighbours + 1, len(selection.ids)))
    own = selection.pool.hashes[near] == selection.queries.hashes[sample][:, None]
    near = np.where(own | ~shown[:, None], -1, near)
    raw = search.engine.candidates(vectors, min(search.engine.first_count, len(selection.ids)))
    ours = search.nearest(sample, -np.inf)
    theirs = search.nearest(sample, -np.inf, exact)
    above = np.where(theirs.similarities > search.config.min_similarity, theirs.ids, -1)
    return {
        "queries": len(sample),
        "candidates": share_found(near, raw),
        "neighbours": share_found(theirs.ids, ours.ids),
        "above_threshold": share_found(above, ours.ids),
    }
