"""A query, then its related sentences in order: kNN examples (Levine et al. 2022, section 3)."""

from pathlib import Path

import numpy as np

from icl_jax.design.groups import GroupShard, write_groups
from icl_jax.design.records.layout import Marks
from icl_jax.design.sentences import open_sentences
from icl_jax.retrieval.neighbours import read_shard


def make_shard(
    workdir: str,
    fingerprint: str,
    neighbours: str,
    marks: Marks,
    limit: int,
    between: int,
    min_neighbours: int,
    folder: str,
    index: int,
) -> None:
    """The groups of all queries of one shard; `neighbours` is the folder of what is related."""
    sentences = open_sentences(workdir, fingerprint)
    related = read_shard(Path(neighbours), index)
    offsets = related["ids"].offsets.to_numpy().astype(np.int64)
    ids, similarities = related["ids"].values.to_numpy(), related["similarities"].values.to_numpy()
    queries = sentences.first_query + sentences.query_table.starts[index] + np.arange(len(related))
    taken = take_until_full(
        sentences.lengths_of(queries), sentences.lengths_of(ids), offsets, limit, marks, between
    )
    found = np.diff(offsets)
    kept = taken >= min_neighbours
    counts = {
        "queries": len(queries),
        "cut_by_limit": int((taken < found)[kept].sum()),  # groups that wanted more neighbours
        "too_few_neighbours": int((found < min_neighbours).sum()),  # queries left out for it
        "too_long": int(((found >= min_neighbours) & ~kept).sum()),  # the same, for the limit
    }
    groups = _groups(queries, ids, similarities, offsets, taken, kept)
    write_groups(Path(folder), index, groups, counts)


def take_until_full(
    query_lengths: np.ndarray,
    lengths: np.ndarray,
    offsets: np.ndarray,
    limit: int,
    marks: Marks,
    between: int,
) -> np.ndarray:
    """How many neighbours each query takes: in order, until the next would pass the limit.

    Query i has the neighbours whose lengths stand from offsets[i] to offsets[i + 1]; each adds its
    tokens and `between` more (`Marks.between`).
    """
    with_separator = np.append(0, np.cumsum(lengths.astype(np.int64) + between))
    query = np.repeat(np.arange(len(query_lengths)), np.diff(offsets))
    used = with_separator[1:] - with_separator[offsets[query]]
    fits = used + query_lengths[query] + marks.ends <= limit  # true up to one place, then false
    return np.bincount(query[fits], minlength=len(query_lengths))


def _groups(
    queries: np.ndarray,
    ids: np.ndarray,
    similarities: np.ndarray,
    offsets: np.ndarray,
    taken: np.ndarray,
    kept: np.ndarray,
) -> GroupShard:
    sizes = taken[kept] + 1
    new_offsets = np.append(0, np.cumsum(sizes))
    within = np.arange(new_offsets[-1]) - np.repeat(new_offsets[:-1], sizes)
    is_query = within == 0
    source = np.repeat(offsets[:-1][kept], sizes) + within - 1
    group_ids = np.repeat(queries[kept], sizes)
    group_ids[~is_query] = ids[source[~is_query]]
    scores = np.ones(len(group_ids), np.float32)
    scores[~is_query] = similarities[source[~is_query]]
    return GroupShard(new_offsets, group_ids, scores)
