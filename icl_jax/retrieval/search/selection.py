"""Which candidates become neighbours: the rules, applied to many queries at once.

Never the query's own words, never its document (unless asked), never at or below the threshold,
never a near duplicate of the query or of a nearer neighbour; by similarity, then by id.
"""

from collections.abc import Callable
import dataclasses

import numpy as np

from icl_jax.config import SearchConfig
from icl_jax.retrieval.search.duplicates import near_duplicates
from icl_jax.retrieval.search.pool import Pool
from icl_jax.retrieval.search.signatures import Signatures
from icl_jax.retrieval.vectors import to_float32

_ROWS = 512  # vectors scored at once: they stay in the cache, which makes it three times as fast


@dataclasses.dataclass
class Selected:
    """The neighbours of some queries: ids and similarities, -1 and -inf behind the last."""

    ids: np.ndarray
    similarities: np.ndarray
    used_up: np.ndarray  # queries with too few, although the candidates ended above the threshold
    counts: dict[str, np.ndarray]  # rule -> candidates of each query left out before it had enough

    @classmethod
    def join(cls, pieces: "list[Selected]") -> "Selected":
        """Several pieces as one."""
        joined = [np.concatenate([getattr(piece, field) for piece in pieces])
                  for field in ("ids", "similarities", "used_up")]  # fmt: skip
        rules = pieces[0].counts
        return cls(
            *joined, {r: np.concatenate([piece.counts[r] for piece in pieces]) for r in rules}
        )


class Selection:
    """The rules for one set of queries and one pool."""

    def __init__(self, queries: Signatures, pool: Pool, config: SearchConfig):
        self.queries, self.pool, self.config = queries, pool, config
        # Documents of two tables have nothing to do with each other.
        own = queries is pool.signatures and not config.same_document
        self.query_documents = pool.documents if own else None

    def select(
        self, queries: np.ndarray, query_vectors: np.ndarray, found: np.ndarray, threshold: float
    ) -> Selected:
        """The neighbours of query sentences among the candidates found for each (-1: none)."""
        ids, allowed, counts = self._stand_ins(queries, found)
        similarities = self._similarities(query_vectors, ids)
        similarities[found < 0] = -np.inf
        # The engine's order is not exact: the end of its list is what its last eighth shows.
        last = similarities[:, -max(1, found.shape[1] // 8) :]
        still_above = (found[:, -1] >= 0) & (last > threshold).any(axis=1)

        above = similarities > threshold
        counts["below_threshold"] = (allowed & ~above).sum(axis=1)
        allowed &= above
        order = np.lexsort((ids, -similarities, ~allowed), axis=1)
        ids, similarities = (np.take_along_axis(x, order, axis=1) for x in (ids, similarities))
        taken, near = take_nearest(
            ids,
            allowed.sum(axis=1),
            self.config.neighbours,
            lambda rows, others: self._near(self.queries, queries[rows], others),
            lambda these, others: self._near(self.pool.signatures, these, others),
        )
        none = taken < 0
        return Selected(
            np.where(none, -1, np.take_along_axis(ids, taken, axis=1)),
            np.where(none, -np.inf, np.take_along_axis(similarities, taken, axis=1)),
            none[:, -1] & still_above,
            counts | near,
        )

    def _similarities(self, query_vectors: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Cosines of each query with its candidates, the same to the bit in any block."""
        order = np.argsort(ids, axis=None)  # as they are on disk
        sorted_ids, query = ids.ravel()[order], order // ids.shape[1]
        vectors = self.pool.vectors
        starts = vectors.starts
        ends = np.searchsorted(sorted_ids, starts)
        products = np.empty(ids.size, np.float32)
        for shard in np.flatnonzero(np.diff(ends)):
            for first in range(ends[shard], ends[shard + 1], _ROWS):
                part = slice(first, min(first + _ROWS, ends[shard + 1]))
                rows = np.take(vectors.shards[shard], sorted_ids[part] - starts[shard], axis=0)
                # Not a matrix product: its rounding would depend on how many rows there are.
                products[part] = np.vecdot(query_vectors[query[part]], to_float32(rows))
        similarities = np.empty(ids.size, np.float32)
        similarities[order] = products / self.pool.lengths[sorted_ids]
        return similarities.reshape(ids.shape)

    def _stand_ins(
        self, queries: np.ndarray, found: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Replaces candidates in the query's own document by their equals in other documents."""
        ids = np.maximum(found, 0)
        allowed = found >= 0
        own = allowed & (self.pool.signatures.hashes[ids] == self.queries.hashes[queries][:, None])
        allowed &= ~own
        counts = {"same_words": own.sum(axis=1)}
        if self.query_documents is None:
            return ids, allowed, counts
        inside = allowed & (self.pool.documents[ids] == self.query_documents[queries][:, None])
        twin_of, twins = self.pool.twins
        place = np.minimum(np.searchsorted(twin_of, ids[inside]), len(twin_of) - 1)
        if len(twin_of):
            has_twin = twin_of[place] == ids[inside]
            row, column = np.nonzero(inside)
            ids[row[has_twin], column[has_twin]] = twins[place[has_twin]]
            inside[row[has_twin], column[has_twin]] = False
        counts["same_document"] = inside.sum(axis=1)
        return ids, allowed & ~inside, counts

    def _near(self, signatures: Signatures, ids: np.ndarray, others: np.ndarray) -> np.ndarray:
        return near_duplicates(
            signatures, ids, self.pool.signatures, others, self.config.duplicate_jaccard
        )


def take_nearest(
    ids: np.ndarray,
    allowed: np.ndarray,
    most: int,
    near_query: Callable[[np.ndarray, np.ndarray], np.ndarray],
    near_each_other: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The first candidates of each query that repeat neither it nor one before them.

    `ids` has a row of candidates for each query, in order; the first `allowed` of a row are
    considered, and at most `most` of them are taken. `near_query(rows, ids)` says which candidates
    repeat the queries of these rows, `near_each_other(ids, others)` which repeat each other.
    Returns the columns that are taken, -1 behind the last; and rule -> how many of each row it left
    out.
    """
    taken, size = np.full((len(ids), most), -1), np.zeros(len(ids), np.int64)
    of_query, of_neighbour = np.zeros((2, len(ids)), np.int64)
    for column in range(allowed.max(initial=0)):
        rows = np.flatnonzero((column < allowed) & (size < most))
        if not len(rows):
            break
        near = near_query(rows, ids[rows, column])
        of_query[rows[near]] += 1
        rows = rows[~near]
        row, rank = np.nonzero(np.arange(most) < size[rows, None])
        row = rows[row]
        near = near_each_other(ids[row, taken[row, rank]], ids[row, column])
        near = np.isin(rows, row[near])
        of_neighbour[rows[near]] += 1
        rows = rows[~near]
        taken[rows, size[rows]] = column
        size[rows] += 1
    left_out = {"near_duplicate_of_query": of_query, "near_duplicate_of_neighbour": of_neighbour}
    return taken, left_out
