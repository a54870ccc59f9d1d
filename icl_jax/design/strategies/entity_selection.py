"""Which sentences share rare terms with a query, and which of them become related ones.

The rules are those of the neighbours: never the query's own words, never its document (unless the
config allows it), never a near duplicate of the query or of a nearer one; by score, then by id.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from icl_jax.config import SearchConfig
from icl_jax.design.strategies.entity_terms import part_of
from icl_jax.retrieval.search.duplicates import near_duplicates
from icl_jax.retrieval.search.selection import take_nearest
from icl_jax.retrieval.search.signatures import Signatures

_LEAST_CANDIDATES = 64  # of a query, the best, or four for each neighbour that is wanted


class Matches(NamedTuple):
    """Terms of queries that are in the index of rare ones, query by query."""

    query: np.ndarray  # its place in the shard
    weight: np.ndarray
    part: np.ndarray  # of the index
    first: np.ndarray  # of the sentences that have the term, in their part
    size: np.ndarray  # how many they are


class Pairs(NamedTuple):
    """Queries and sentences that share terms; by query, then best first."""

    query: np.ndarray
    sentence: np.ndarray
    score: np.ndarray  # float32


def look_up(terms: pa.RecordBatch, first: int, parts: Sequence[pa.RecordBatch]) -> Matches:
    """The rare ones among the terms of a shard whose first sentence has the id `first`."""
    found = []
    hashes, queries = terms["term"].to_numpy(), terms["sentence"].to_numpy() - first
    ends = np.searchsorted(part_of(hashes, len(parts)), np.arange(len(parts) + 1, dtype=np.uint64))
    for part, rare in enumerate(parts):
        own = slice(ends[part], ends[part + 1])
        if not len(rare) or own.start == own.stop:
            continue
        place = np.minimum(np.searchsorted(rare["term"].to_numpy(), hashes[own]), len(rare) - 1)
        hit = rare["term"].to_numpy()[place] == hashes[own]
        query, place = queries[own][hit], place[hit]
        offsets = rare["sentences"].offsets.to_numpy()
        weight, size = rare["weight"].to_numpy()[place], offsets[place + 1] - offsets[place]
        found.append((query, weight, np.full(len(query), part), offsets[place], size))
    columns = [np.concatenate(column) for column in zip(*found, strict=True)]
    columns = columns or [np.empty(0, np.int64)] * len(Matches._fields)
    order = np.argsort(columns[0], kind="stable")
    return Matches(*(column[order] for column in columns))


def cut(matches: Matches, count: int, most: int) -> Iterator[tuple[int, int, Matches]]:
    """Blocks of consecutive queries with about `most` pairs: (first query, last, their matches)."""
    pairs = np.append(0, np.cumsum(np.bincount(matches.query, matches.size, count)))
    first = 0
    while first < count:
        last = max(first + 1, int(np.searchsorted(pairs, pairs[first] + most, "right")) - 1)
        ends = np.searchsorted(matches.query, [first, last])
        yield first, last, Matches(*(column[slice(*ends)] for column in matches))
        first = last


def score(
    matches: Matches,
    parts: Sequence[pa.RecordBatch],
    lengths: np.ndarray,
    documents: np.ndarray | None,
) -> Pairs:
    """The cosine of each query with each sentence that shares a term with it.

    `lengths` are those of the weighted terms of all sentences; `documents` those of the queries of
    the shard: sentences of the same document are no pairs. None: they are.
    """
    queries, ids, weights = [], [], []
    for part in np.unique(matches.part):
        chosen = matches.part == part
        size = matches.size[chosen]
        within = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        source = np.repeat(matches.first[chosen], size) + within
        query = np.repeat(matches.query[chosen], size)
        weight = np.repeat(matches.weight[chosen], size)
        sentence = parts[part]["sentences"].values.to_numpy()[source]
        if documents is not None:
            elsewhere = parts[part]["documents"].values.to_numpy()[source] != documents[query]
            query, sentence, weight = query[elsewhere], sentence[elsewhere], weight[elsewhere]
        queries.append(query)
        ids.append(sentence)
        weights.append(weight)
    if not queries:
        return Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
    query, sentence, weight = map(np.concatenate, (queries, ids, weights))
    order = np.lexsort((sentence, query))
    query, sentence, weight = query[order], sentence[order], weight[order]
    begins = np.append(True, (query[1:] != query[:-1]) | (sentence[1:] != sentence[:-1]))
    begins = np.flatnonzero(begins[: len(query)])
    common = np.add.reduceat(weight**2, begins) if len(begins) else weight
    query, sentence = query[begins], sentence[begins]
    own = np.bincount(matches.query, matches.weight**2)[query]
    scores = (common / np.sqrt(own * lengths[sentence])).astype(np.float32)
    order = np.lexsort((sentence, -scores, query))
    return Pairs(query[order], sentence[order], scores[order])


def select(
    pairs: Pairs,
    first: int,
    last: int,
    first_id: int,
    queries: Signatures,
    pool: Signatures,
    config: SearchConfig,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, int]]:
    """For the queries from `first` to before `last`: how many each gets, ids, scores, left out.

    The query at place i has the id `first_id` + i among the signatures of the queries.
    """
    same = pool.hashes[pairs.sentence] == queries.hashes[first_id + pairs.query]
    pairs = Pairs(*(column[~same] for column in pairs))
    counts = {"same_words": int(same.sum())}
    rank = np.arange(len(pairs.query)) - np.searchsorted(pairs.query, pairs.query)
    most = max(_LEAST_CANDIDATES, 4 * config.neighbours)
    kept = rank < most
    counts["too_many_candidates"] = int((~kept).sum())
    query, rank = pairs.query[kept] - first, rank[kept]
    ids = np.full((last - first, rank.max(initial=-1) + 1), -1)
    scores = np.zeros(ids.shape, np.float32)
    ids[query, rank], scores[query, rank] = pairs.sentence[kept], pairs.score[kept]
    query_ids = first_id + np.arange(first, last)
    taken, repeated = take_nearest(
        ids,
        (ids >= 0).sum(axis=1),
        config.neighbours,
        lambda rows, others: _alike(queries, query_ids[rows], pool, others, config),
        lambda some, others: _alike(pool, some, pool, others, config),
    )
    counts |= {rule: int(found.sum()) for rule, found in repeated.items()}
    here = taken >= 0
    row = np.nonzero(here)[0]
    return here.sum(axis=1), ids[row, taken[here]], scores[row, taken[here]], counts


def _alike(
    a: Signatures, ids_a: np.ndarray, b: Signatures, ids_b: np.ndarray, config: SearchConfig
) -> np.ndarray:
    equal = a.hashes[ids_a] == b.hashes[ids_b]
    return equal | near_duplicates(a, ids_a, b, ids_b, config.duplicate_jaccard)
