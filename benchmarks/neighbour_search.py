"""Time, memory and recall of the automatic search against FAISS flat, as the pool grows.

Every vector searches all others, k = 10, on the same cores and threads. Ours is the whole search of
the design stage: index, exact scores of its candidates, rules (every vector is a separate
sentence). Rounds alternate; each side is timed on a part of the queries and scaled to all.

Run: python benchmarks/neighbour_search.py [--vectors=FILE.npy | --workdir=DIR] [--quick]
"""

from collections.abc import Callable
import json
from pathlib import Path
import resource
import tempfile
import time

from absl import flags
import faiss
import numpy as np
import pyarrow as pa

from icl_jax.cli import Flag, command, whole
from icl_jax.config import SearchConfig
from icl_jax.retrieval.search.open_search import open_engine
from icl_jax.retrieval.search.pool import Pool
from icl_jax.retrieval.search.search import Search
from icl_jax.retrieval.search.selection import Selection
from icl_jax.retrieval.search.signatures import Signatures, sign
from icl_jax.retrieval.vectors import Vectors, normalise
from icl_jax.workers.local import Runner, count_cores

K = 10
SHARD = 30_000  # about what a shard of 4 MB of text holds


@command(
    Flag("vectors=FILE.npy", "sentence vectors, one row each"),
    Flag("workdir=DIR", "a finished design stage, whose vectors are used"),
    Flag("rounds=N", "timed rounds of each side", whole(least=1), 3),
    Flag("quick", "only 100K vectors, made up", bool, False),
)
def main(args: flags.FlagValues) -> None:
    """Prints a table, and as the last line one JSON object about the largest pool."""
    faiss.omp_set_num_threads(count_cores())
    rows, source = read_vectors(args)
    sizes = [len(rows)] if args.quick else sorted({*(10_000, 100_000), len(rows)})
    print(f"{len(rows):,} vectors of width {rows.shape[1]} ({source}), {count_cores()} threads")
    print(
        f"{'pool':>9s} {'index':20s} {'probes':>6s} {'flat':>9s} {'build':>8s} {'search':>8s} "
        f"{'faster':>7s} {'with build':>10s} {'recall@10':>9s} {'index':>8s} {'peak':>8s}"
    )
    for size in sizes:
        if size <= len(rows):
            result = measure(rows[:size], args.rounds)
            print(line(result), flush=True)
    print("flat, search: seconds for all queries; peak: memory of this process so far, vectors and "
          "flat index included")  # fmt: skip
    print(json.dumps({**result, "vectors": source, "threads": count_cores()}))


def measure(rows: np.ndarray, rounds: int) -> dict:
    """Both sides on one pool."""
    shards = [rows[start : start + SHARD] for start in range(0, len(rows), SHARD)]
    vectors = Vectors(shards)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        selection = rules(vectors)
        config, place = selection.config, Path(folder)
        engine = open_engine(selection.pool, config, place, 0, None, Runner())
        search = Search(selection, vectors, engine)
        build = time.perf_counter() - start
        flat = faiss.IndexFlatIP(vectors.width)
        for shard in range(len(shards)):
            flat.add(vectors.shard(shard))
        # Flat costs more per query, so fewer queries give an equally steady time.
        ours = lambda ids: search.nearest(ids).ids  # noqa: E731
        theirs = lambda ids: flat.search(vectors.take(ids), K + 1)[1]  # noqa: E731
        order = np.random.default_rng(0).permutation(len(rows))
        search_seconds, flat_seconds = alternate(
            (ours, 8192), (theirs, 8192 if len(rows) < 50_000 else 1024), order, rounds
        )
        found, nearest = ours(order[:1024]), theirs(order[:1024])
        described = search.engine.describe()
    own = nearest == order[:1024, None]
    own[~own.any(axis=1), -1] = True  # an equal vector came before it
    nearest = nearest[~own].reshape(-1, K)
    hits = [np.isin(a, b).mean() for a, b in zip(nearest, found, strict=True)]
    return {
        "pool": len(rows),
        **described,
        "flat_seconds": round(flat_seconds, 2),
        "build_seconds": round(build, 2),
        "search_seconds": round(search_seconds, 2),
        "speedup_over_flat": round(flat_seconds / search_seconds, 2),
        "speedup_with_building": round(flat_seconds / (build + search_seconds), 2),
        "recall_at_10": round(float(np.mean(hits)), 4),
        "peak_gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def rules(vectors: Vectors) -> Selection:
    """Every sentence has its own words and document; no threshold."""
    names = pa.array([f"sentence {i}" for i in range(len(vectors))], pa.large_string())
    signatures = Signatures([sign(names)])
    pool = Pool.make(signatures, vectors, documents=np.arange(len(vectors)))
    return Selection(signatures, pool, SearchConfig(neighbours=K, min_similarity=-1.0))


def alternate(
    ours: tuple[Callable, int], theirs: tuple[Callable, int], order: np.ndarray, rounds: int
) -> tuple[float, float]:
    """Median seconds of each for all queries, in turns, after one uncounted round."""
    times: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        for side, (run, count) in enumerate((ours, theirs)):
            queries = np.roll(order, -number * count)[:count]
            start = time.perf_counter()
            run(queries)
            times[side].append((time.perf_counter() - start) * len(order) / len(queries))
    return float(np.median(times[0][1:])), float(np.median(times[1][1:]))


def read_vectors(args: flags.FlagValues) -> tuple[np.ndarray, str]:
    """The vectors, and what they are."""
    if args.vectors and not args.quick:
        return np.load(args.vectors, mmap_mode="r"), Path(args.vectors).name
    if args.workdir and not args.quick:
        from icl_jax.design.folders import DesignFolders

        shards = Vectors.open(DesignFolders(args.workdir).corpus_vectors).shards
        return np.concatenate(shards), "sentences of a corpus"
    return clustered(100_000 if args.quick else 400_000), "made up, in clusters"


def clustered(count: int, width: int = 384) -> np.ndarray:
    """About as hard as MiniLM's vectors of Wikipedia: nested topics and some isolated sentences."""
    rng = np.random.default_rng(0)
    weights = ((1 + np.arange(width) / 10) ** -0.5).astype(np.float32)  # few directions say much
    turn = np.linalg.qr(rng.normal(size=(width, width)))[0].astype(np.float32)
    rows = np.zeros((1, width), np.float32)
    for groups, least, most in ((100, 0.6, 0.6), (count // 10, 0.6, 0.6), (count, 0.4, 1.75)):
        spread = rng.uniform(least, most, (groups, 1)).astype(np.float32) * weights
        rows = rows[rng.integers(len(rows), size=groups)]
        rows += spread * rng.standard_normal((groups, width), np.float32)
    return normalise(rows @ turn).astype(np.float16)


def line(result: dict) -> str:
    """One row of the table."""
    return (
        f"{result['pool']:9,d} {result['index']:20s} {result['probes']:6d} "
        f"{result['flat_seconds']:7.1f} s {result['build_seconds']:6.1f} s "
        f"{result['search_seconds']:6.1f} s {result['speedup_over_flat']:6.1f}x "
        f"{result['speedup_with_building']:9.1f}x {result['recall_at_10']:9.3f} "
        f"{result['index_bytes'] / 1e6:5.0f} MB {result['peak_gigabytes']:5.2f} GB"
    )


if __name__ == "__main__":
    main()
