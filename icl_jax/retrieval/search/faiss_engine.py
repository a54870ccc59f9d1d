"""Candidates by FAISS: any index by factory string, an automatic choice, built part by part.

Vectors have length 1, so the inner product is the cosine. What the index returns is only a
proposal: `search.py` scores it again, exactly.
"""

import itertools
import json
from pathlib import Path

import faiss
import numpy as np

from icl_jax.config import ConfigError, SearchConfig, StageError
from icl_jax.files.step_folder import beside, write_json
from icl_jax.retrieval.neighbours import share_found
from icl_jax.retrieval.vectors import Vectors
from icl_jax.workers.local import count_cores, progress_bar

# The automatic choice: IVF lists of 4-bit PQ codes that are scanned in registers, scored again by
# us. Among 57K MiniLM vectors of Wikipedia (384 dimensions; 256 lists, 48 probes, 64 candidates),
# the share found of the 10 nearest in other documents (nearly half of the candidates are in the
# query's own) and the time to scan, flat search being 1:
#   PQ192x4fs 0.957, 0.20    PQ128x4fs 0.933, 0.14    PQ96x4fs 0.896, 0.12
# With 128 candidates PQ96 still finds only 0.944. Coarser codes are for pools whose codes (half a
# byte each, and 8 bytes for the id) would not fit into the budget.
_FLAT_BELOW = 20_000  # sentences: a whole flat search takes seconds
_DIMS_PER_CODE = (2, 1, 3, 4, 6, 8, 12, 16, 24)  # the first that divides the width and fits
_LISTS_PER_ROOT = 1.5  # lists: 1.5 sqrt(n), as a power of 2; 256 and 512 cost the same at 57K

_REFUSED = {
    "IndexRefine": "what an index proposes is scored again exactly anyway; leave out RFlat",
    "IndexIDMap": "rows are found by their place; leave out IDMap",
    "IndexNSG": "it cannot be built shard by shard; use HNSW or IVF",
}
_POINTS_PER_LIST = 39  # below, FAISS itself warns that the centroids are poor
_PART_VECTORS = 4_000_000  # vectors of one file of the index: what a killed build loses at most
_TUNING_QUERIES = 500
_TARGET_RECALL = 0.97  # of the nearest k among the candidates, where probes are chosen here


class FaissSearch:
    """An index over the rows `ids` of the pool, built in (or opened from) a folder."""

    def __init__(
        self,
        vectors: Vectors,
        ids: np.ndarray,
        config: SearchConfig,
        folder: Path,
        seed: int = 0,
        threads: int = 0,
    ):
        self.vectors, self.ids, self.threads = vectors, ids, threads or count_cores()
        self.index = choose_index(len(ids), vectors.width, config)
        check_index(self.index, len(ids), vectors.width)
        faiss.omp_set_num_threads(self.threads)
        self.starts, self.parts = _build(vectors, ids, self.index, folder, seed)
        self.bytes = sum(file.stat().st_size for file in folder.glob("part-*.faiss"))
        self.first_count = 4 * config.neighbours + 24  # some will be excluded
        self.probes = min(config.probes, getattr(_inverted_file(self.parts[0]), "nlist", 0))
        if not config.probes:
            self._tune(config.neighbours, folder / f"probes-{config.neighbours}.json", seed)

    def describe(self) -> dict:
        """What the results of a step say about the index."""
        return {"index": self.index, "probes": self.probes, "index_bytes": self.bytes}

    def exact(self) -> "ExactScan":
        """Brute force over the same rows."""
        return ExactScan(self.vectors, self.ids)

    def candidates(self, queries: np.ndarray, count: int) -> np.ndarray:
        """Ids of about the `count` nearest of each query, nearest first; -1: there are no more."""
        faiss.omp_set_num_threads(self.threads)
        if _inverted_file(self.parts[0]) is None:
            found = [part.search(queries, count) for part in self.parts]
        else:
            found = self._probe_lists(queries, count)
        scores = np.concatenate([scores for scores, _ in found], axis=1)
        rows = [np.where(rows < 0, -1, rows + start)
                for (_, rows), start in zip(found, self.starts, strict=True)]  # fmt: skip
        rows = np.concatenate(rows, axis=1)
        if len(found) > 1:
            order = np.lexsort((rows, np.where(rows < 0, np.inf, -scores)), axis=1)[:, :count]
            rows = np.take_along_axis(rows, order, axis=1)
        return np.where(rows < 0, -1, self.ids[rows])

    def _probe_lists(self, queries: np.ndarray, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """(scores, rows) from each part. All have the same lists, so these are chosen once."""
        if isinstance(self.parts[0], faiss.IndexPreTransform):
            chain = self.parts[0].chain
            for number in range(chain.size()):
                queries = chain.at(number).apply(queries)
        inverted = [_inverted_file(part) for part in self.parts]
        # For the whole block at once: FAISS itself would cut it by the number of threads.
        scores, lists = inverted[0].quantizer.search(queries, self.probes)
        for part in inverted:
            part.nprobe = self.probes
        return [part.search_preassigned(queries, count, lists, scores) for part in inverted]

    def _tune(self, neighbours: int, file: Path, seed: int) -> None:
        """The fewest probes, and then candidates, among which nearly all nearest are found."""
        lists = getattr(_inverted_file(self.parts[0]), "nlist", 0)
        if lists and not file.exists():
            sample = np.random.default_rng([seed, 1]).permutation(self.ids)[:_TUNING_QUERIES]
            queries = self.vectors.take(sample)
            nearest = self.exact().candidates(queries, neighbours + 1)
            nearest[nearest == sample[:, None]] = -1  # finding oneself does not count
            steps = sorted({round(2 ** (i / 4)) for i in range(8, 4 * lists.bit_length())})
            steps = [*(s for s in steps if s < lists), lists]
            for count, probes in itertools.product((1, 2, 4), steps):
                self.probes = probes
                found = self.candidates(queries, count * self.first_count)
                if share_found(nearest, found) >= _TARGET_RECALL:
                    break
            write_json(file, {"probes": probes, "candidates": count * self.first_count})
        if lists:
            tuned = json.loads(file.read_text())
            self.probes, self.first_count = tuned["probes"], tuned["candidates"]


class ExactScan:
    """Brute force, shard after shard: needs no index and little memory."""

    def __init__(self, vectors: Vectors, ids: np.ndarray):
        self.vectors, self.ids = vectors, ids

    def candidates(self, queries: np.ndarray, count: int) -> np.ndarray:
        """Ids of the `count` nearest of each query, nearest first; -1 where there are none."""
        scores = np.full((len(queries), count), -np.inf, np.float32)
        best = np.full((len(queries), count), -1, np.int64)
        for shard in range(len(self.vectors.shards)):
            ids, rows = _rows_of_shard(self.vectors, self.ids, shard)
            if len(ids):
                near, places = faiss.knn(
                    queries, rows, min(count, len(ids)), metric=faiss.METRIC_INNER_PRODUCT
                )
                scores = np.concatenate([scores, near], axis=1)
                best = np.concatenate([best, ids[places]], axis=1)
                keep = np.lexsort((best, -scores), axis=1)[:, :count]
                scores = np.take_along_axis(scores, keep, axis=1)
                best = np.take_along_axis(best, keep, axis=1)
        return best


def choose_index(count: int, width: int, config: SearchConfig) -> str:
    """The factory string of the config, or the automatic choice for `count` vectors."""
    if config.index != "auto":
        return config.index
    if count < _FLAT_BELOW:
        return "Flat"
    lists = 2 ** round(np.log2(_LISTS_PER_ROOT * count**0.5))
    budget = 0.5e9 * config.memory_gigabytes  # the other half: hashes, sketches, blocks of vectors
    for dims in _DIMS_PER_CODE:
        codes = width // dims
        if width % dims == 0 and count * (codes / 2 + 8) <= budget:
            return f"IVF{lists},PQ{codes}x4fs"
    raise ConfigError(
        f"search.memory_gigabytes must hold an index of {count:,} vectors of width {width}, got "
        f"{config.memory_gigabytes:g}; give more, or name the index (search.index)"
    )


def check_index(index: str, count: int, width: int) -> None:
    """Stops on a factory string that FAISS cannot make, or not with so few vectors."""
    try:
        made = faiss.index_factory(width, index, faiss.METRIC_INNER_PRODUCT)
        faiss.clone_index(made)  # as every part of the index will be
    except RuntimeError as error:
        raise ConfigError(
            f"search.index must be a FAISS factory string for vectors of width {width}, got "
            f"'{index}': {_reason(error)}; 'auto' chooses one"
        ) from error
    for kind, reason in _REFUSED.items():
        if isinstance(made, getattr(faiss, kind)):
            raise ConfigError(f"search.index '{index}' cannot be used: {reason}")
    lists = getattr(_inverted_file(made), "nlist", 0)
    if count < lists * _POINTS_PER_LIST:
        most = count // _POINTS_PER_LIST
        fix = f"use at most {most} lists (IVF{most}), or" if most else "use"
        raise ConfigError(
            f"search.index '{index}' needs at least {lists * _POINTS_PER_LIST:,} different "
            f"sentences ({_POINTS_PER_LIST} for each of its {lists:,} lists), but there are "
            f"{count:,}; {fix} 'auto'"
        )


def _build(
    vectors: Vectors, ids: np.ndarray, spec: str, folder: Path, seed: int
) -> tuple[list, list]:
    """The parts of the index, and the row of the first vector of each; builds what is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    trained = folder / "trained.faiss"
    if not trained.exists():
        _save(_train(vectors, ids, spec, seed), trained)
    empty = faiss.read_index(str(trained))
    if empty.d != vectors.width:
        raise StageError(
            f"the index in {folder} holds vectors of width {empty.d}, but the sentences' vectors "
            f"have {vectors.width}; delete that folder, or use the encoder it was built with"
        )
    if "HNSW" in spec:  # a graph built by several threads is never the same twice
        faiss.omp_set_num_threads(1)
    one_part = _inverted_file(empty) is None
    starts, parts = [0], []
    with progress_bar(total=len(ids), unit="vector", desc=f"index ({spec})") as bar:
        for number, shards in enumerate(_cut(vectors, ids, one_part)):
            file = folder / f"part-{number:05d}.faiss"
            if not file.exists():
                part = faiss.clone_index(empty)
                for shard in shards:
                    _, rows = _rows_of_shard(vectors, ids, shard)
                    part.add(rows)
                    bar.update(len(rows))
                _save(part, file)
                del part
            # Flat vectors and plain inverted lists stay on disk until they are read; lists of
            # fast-scan codes (the automatic choice) FAISS can only load whole.
            part = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
            parts.append(part)
            starts.append(starts[-1] + part.ntotal)
    return starts[:-1], parts


def _train(vectors: Vectors, ids: np.ndarray, spec: str, seed: int):
    """An empty index, its centroids and codes trained on a random sample."""
    index = faiss.index_factory(vectors.width, spec, faiss.METRIC_INNER_PRODUCT)
    inverted = _inverted_file(index)
    count = 65_536
    if inverted is not None:
        inverted.cp.seed, inverted.cp.niter = seed % 2**31, 10
        inverted.cp.max_points_per_centroid = _POINTS_PER_LIST + 1
        if hasattr(inverted, "pq"):
            inverted.pq.cp.niter = 10
        count = max(8192, inverted.nlist * (_POINTS_PER_LIST + 1))
    if not index.is_trained:
        rng = np.random.default_rng([seed, 0])
        sample = np.sort(rng.choice(ids, min(count, len(ids)), replace=False))
        try:
            index.train(vectors.take(sample))
        except RuntimeError as error:
            raise ConfigError(
                f"search.index '{spec}' cannot be trained on {len(sample):,} sentences: "
                f"{_reason(error)}; 'auto' chooses one that can"
            ) from error
    return index


def _cut(vectors: Vectors, ids: np.ndarray, one_part: bool) -> list[list[int]]:
    """Shards that share a file of the index: the same whatever the number of workers."""
    before = np.searchsorted(ids, vectors.starts[:-1])
    part = np.zeros(len(before), int) if one_part else before // _PART_VECTORS
    return [np.flatnonzero(part == number).tolist() for number in np.unique(part)]


def _rows_of_shard(vectors: Vectors, ids: np.ndarray, shard: int) -> tuple[np.ndarray, np.ndarray]:
    """The ids in a shard, and their vectors."""
    first, last = np.searchsorted(ids, vectors.starts[shard : shard + 2])
    return ids[first:last], vectors.shard(shard)[ids[first:last] - vectors.starts[shard]]


def _inverted_file(index):
    """The IVF inside an index; None if it has no lists."""
    try:
        return faiss.downcast_index(faiss.extract_index_ivf(index))
    except RuntimeError:
        return None


def _save(index, file: Path) -> None:
    with beside(file) as partial:
        faiss.write_index(index, str(partial))


def _reason(error: RuntimeError) -> str:
    """FAISS's own words, without the place in its sources."""
    return str(error).strip().splitlines()[-1].rsplit(": ", 1)[-1]
