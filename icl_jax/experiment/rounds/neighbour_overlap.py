"""How much two searches for the neighbours of the same sentences agree."""

import numpy as np

from icl_jax.config import StageError
from icl_jax.retrieval.neighbours import Neighbours


def compare_neighbours(before: Neighbours, now: Neighbours) -> dict:
    """What `now` has left of the neighbours of `before`.

    `kept`: of a query's neighbours the share that it still has; `same_nearest`: the share of
    queries whose nearest is the same. Both are over the queries that had neighbours, None of none.
    """
    if not np.array_equal(before.starts, now.starts):
        raise StageError(
            f"the neighbours of {len(now):,} queries cannot be compared with those of "
            f"{len(before):,}; expected two searches for the same sentences"
        )
    kept, same_nearest, none_now = [], [], 0
    for shard in range(len(before.shards)):
        (old_sizes, old_ids), (new_sizes, new_ids) = (_lists(n, shard) for n in (before, now))
        old, new = (_pairs(*lists) for lists in ((old_sizes, old_ids), (new_sizes, new_ids)))
        had = old_sizes > 0
        still = np.bincount(old[0, np.isin(old[1], new[1])], minlength=len(had))
        kept.append((still / np.maximum(old_sizes, 1))[had])
        same_nearest.append((_nearest(old_sizes, old_ids) == _nearest(new_sizes, new_ids))[had])
        none_now += int((new_sizes == 0).sum())
    kept, same_nearest = np.concatenate(kept), np.concatenate(same_nearest)
    return {
        "queries": len(before),
        "had_neighbours": len(kept),
        "without_neighbours_now": none_now,
        "kept": float(kept.mean()) if len(kept) else None,
        "same_nearest": float(same_nearest.mean()) if len(kept) else None,
    }


def _lists(neighbours: Neighbours, shard: int) -> tuple[np.ndarray, np.ndarray]:
    """How many neighbours each query of a shard has, and the ids of all."""
    column = neighbours.shard(shard)["ids"]
    return np.diff(column.offsets.to_numpy()), column.values.to_numpy()


def _pairs(sizes: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """(2, n): of every neighbour its query, and one number for both."""
    query = np.repeat(np.arange(len(sizes)), sizes)
    return np.stack([query, (query << 40) | ids])  # 40 bits: a million million sentences


def _nearest(sizes: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Of each query the first neighbour; -1: none."""
    first = np.cumsum(sizes) - sizes
    return np.where(sizes > 0, np.append(ids, -1)[np.minimum(first, len(ids))], -1)
