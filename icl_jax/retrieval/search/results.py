"""What a finished search reports: counts, similarities, recall, other thresholds."""

from pathlib import Path

import numpy as np

from icl_jax.retrieval.neighbours import count_neighbours, share_found
from icl_jax.retrieval.search.search import Search

_THRESHOLDS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
_LEAST_SAMPLE = 200  # queries


def summarise(search: Search, folder: Path, num_shards: int) -> dict:
    """What was found and what was left out, from the finished shards."""
    results = count_neighbours(folder, num_shards)
    counts, pool = results["candidates_left_out"], search.pool
    members = int(np.count_nonzero(pool.lengths))
    return {
        **results,
        "engine": search.config.engine,
        **search.engine.describe(),
        "first_candidates": search.engine.first_count,
        "min_similarity": search.config.min_similarity,
        "asked_again": counts.pop("asked_again", 0),
        "too_few_candidates": counts.pop("too_few_candidates", 0),
        "pool": len(pool.vectors),
        "pool_exact_duplicates": members - len(pool.ids),
        "pool_zero_vectors": len(pool.vectors) - members,
    }


def measure_on_sample(search: Search, num_queries: int, seed: int) -> dict:
    """Of random queries: the recall, and how many would have a neighbour at other thresholds."""
    drawn = np.random.default_rng([seed, 2]).permutation(num_queries)
    sample = np.sort(drawn[: max(search.config.recall_sample, _LEAST_SAMPLE)])
    found = search.nearest(sample, -np.inf)
    best = found.similarities[:, 0]
    thresholds = sorted({*_THRESHOLDS, search.config.min_similarity}, reverse=True)
    shares = {str(t): round(float((best > t).mean()), 4) if len(best) else 0 for t in thresholds}
    nearest = float(best.max(initial=-np.inf))
    compared = np.isin(sample, drawn[: search.config.recall_sample])
    return {
        "recall": _recall(search, sample[compared], found.ids[compared]),
        "threshold_sample": len(sample),
        "share_at_threshold": shares,
        "nearest_in_sample": round(nearest, 4) if np.isfinite(nearest) else None,
    }


def describe_thresholds(results: dict) -> str:
    """How many queries have a neighbour, and would have at lower thresholds; what to do."""
    count, chosen = results["threshold_sample"], results["min_similarity"]
    would = {float(t): round(s * count) for t, s in results["share_at_threshold"].items()}
    have = f"of {count:,} sampled queries {would[chosen]:,} have a neighbour above {chosen}"
    lower = [f"{would[t]:,} at {t}" for t in sorted(would, reverse=True) if t < chosen]
    if not lower:
        return f"{have}; check the corpus and the encoder (python -m icl_jax.retrieval.show)"
    return f"{have}, and would have {', '.join(lower)}; lower design.search.min_similarity"


def _recall(search: Search, sample: np.ndarray, ours: np.ndarray) -> dict:
    """Against brute force with the same rules; three shares of what that finds.

    `candidates`: of the k nearest with other words than the query's, before any rule. `neighbours`:
    of the final lists without a threshold (`ours`). `above_threshold`: of the lists as they are.
    """
    if not len(sample):
        return {"queries": 0}
    exact, pool = search.engine.exact(), search.pool
    vectors = search.query_vectors.take(sample)
    shown = vectors.any(axis=1)
    near = exact.candidates(vectors, min(search.config.neighbours + 1, len(pool.ids)))
    own = pool.signatures.hashes[near] == search.selection.queries.hashes[sample][:, None]
    near = np.where(own | ~shown[:, None], -1, near)
    raw = search.engine.candidates(vectors, min(search.engine.first_count, len(pool.ids)))
    theirs = search.nearest(sample, -np.inf, exact)
    above = np.where(theirs.similarities > search.config.min_similarity, theirs.ids, -1)
    return {
        "queries": len(sample),
        "candidates": share_found(near, raw),
        "neighbours": share_found(theirs.ids, ours),
        "above_threshold": share_found(above, ours),
    }
