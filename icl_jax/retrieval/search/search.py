"""The search of one shard of the queries: an engine proposes, the rules select."""

from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import contextlib
from pathlib import Path

import numpy as np

from icl_jax.retrieval.neighbours import write_shard
from icl_jax.retrieval.search.selection import Selected, Selection
from icl_jax.retrieval.vectors import Vectors
from icl_jax.workers.job import gather, on_first
from icl_jax.workers.local import Runner

_BLOCK = 8192  # queries that an engine gets at once; fixed, as the result must not depend on it
_PIECE = 512  # queries that one thread scores at once, at least: few long steps cost less than many
_MOST_CANDIDATES = 2048  # of one query; asking starts with far fewer
_MOST_FOUND = 2**20  # candidates of all queries at once, when some ask again


class SearchFolders:
    """What a search needs besides vectors, in folders beside that of its neighbours."""

    def __init__(self, neighbours: Path):
        self.signatures = neighbours.with_name(f"{neighbours.name}_signatures") / "pool"
        self.query_signatures = self.signatures.with_name("queries")
        self.pool = neighbours.with_name(f"{neighbours.name}_pool")
        self.index = neighbours.with_name(f"{neighbours.name}_index")


class Search:
    """An engine and the rules, for any of the query sentences."""

    def __init__(
        self, selection: Selection, query_vectors: Vectors, engine, runner: Runner | None = None
    ):
        self.selection, self.query_vectors, self.engine = selection, query_vectors, engine
        self.pool, self.config = selection.pool, selection.config
        self.runner = runner or Runner()

    @property
    def whole_job(self) -> bool:
        """Whether the pool is cut over the devices of all hosts, which then search in step.

        Each calls `nearest` as often as the others, with its own queries or with none.
        """
        mesh = getattr(self.engine, "mesh", None)
        return mesh is not None and mesh.is_multi_process

    def _most(self, number: int) -> int:
        """The largest of the numbers that the hosts give which search in step."""
        return max(gather("search", number)) if self.whole_job else number

    def ask(self, question: Callable, *arguments) -> object:
        """`question(search, *arguments)`, by the first process of a job or by all in step.

        The first process has the answer in any case.
        """
        if self.whole_job:
            return question(self, *arguments)
        return on_first("ask the search", question, self, *arguments)

    @contextlib.contextmanager
    def in_step(self, shards: Sequence[int]) -> Iterator[None]:
        """Around the search of these shards: ends when all hosts that search in step are done."""
        own = sum(len(self.blocks(shard)) for shard in shards)
        most = self._most(own)
        yield
        for _ in range(most - own):
            self.nearest(np.arange(0))

    def blocks(self, shard: int) -> list[np.ndarray]:
        """The queries of a shard; one block of none if it holds no sentence."""
        first, last = self.query_vectors.starts[shard : shard + 2]
        starts = range(first, max(first + 1, last), _BLOCK)
        return [np.arange(start, min(start + _BLOCK, last)) for start in starts]

    def nearest(self, queries: np.ndarray, threshold: float | None = None, engine=None) -> Selected:
        """The neighbours of these query sentences.

        If too few remain although the candidates ended above the threshold, four times as many are
        asked for, up to 2,048.
        """
        threshold = self.config.min_similarity if threshold is None else threshold
        engine = engine or self.engine
        vectors = self.query_vectors.take(queries)
        most = min(_MOST_CANDIDATES, len(self.pool.ids))
        count = min(self.engine.first_count, most)
        selected = self._select(queries, vectors, threshold, engine, count)
        again = np.flatnonzero(selected.used_up)
        selected.counts["asked_again"] = selected.used_up.astype(np.int64)
        while count < most and self._most(len(again)):
            count = min(4 * count, most)
            more = self._select_many(queries[again], vectors[again], threshold, engine, count)
            selected.ids[again], selected.similarities[again] = more.ids, more.similarities
            for rule, values in more.counts.items():
                selected.counts[rule][again] = values
            selected.used_up[again] = more.used_up
            again = again[more.used_up]
        if most == len(self.pool.ids):
            selected.used_up[:] = False  # the whole pool was seen
        selected.counts["too_few_candidates"] = selected.used_up.astype(np.int64)
        return selected

    def _select_many(
        self, queries: np.ndarray, vectors: np.ndarray, threshold: float, engine, count: int
    ) -> Selected:
        """As `_select`, with few queries at a time: each has many candidates."""
        size = max(1, _MOST_FOUND // count)
        rounds = self._most(-(-len(queries) // size))
        cuts = [slice(start, start + size) for start in range(0, rounds * size, size)]
        return Selected.join(
            [self._select(queries[c], vectors[c], threshold, engine, count) for c in cuts]
        )

    def _select(
        self, queries: np.ndarray, vectors: np.ndarray, threshold: float, engine, count: int
    ) -> Selected:
        found = engine.candidates(vectors, count)
        found[~vectors.any(axis=1)] = -1
        size = max(_PIECE, -(-len(queries) // self.runner.threads))
        cuts = [slice(i, i + size) for i in range(0, max(1, len(queries)), size)]
        with concurrent.futures.ThreadPoolExecutor(self.runner.threads) as threads:
            select = self.selection.select
            tasks = [
                threads.submit(select, queries[cut], vectors[cut], found[cut], threshold)
                for cut in cuts
            ]
            return Selected.join([task.result() for task in tasks])


def search_shard(
    search: Search, shard: int, folder: Path, progress: Callable[[int], None] | None = None
) -> None:
    """Writes the neighbours of the queries of one shard."""
    found = []
    for queries in search.blocks(shard):
        found.append(search.nearest(queries))
        if progress:
            progress(len(queries))
    found = Selected.join(found)
    kept = found.ids >= 0
    counts = {rule: int(values.sum()) for rule, values in found.counts.items()}
    write_shard(folder, shard, kept.sum(axis=1), found.ids[kept], found.similarities[kept], counts)
