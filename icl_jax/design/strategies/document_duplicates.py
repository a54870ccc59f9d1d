"""Documents that nearly repeat another one: the Jaccard index of their sets of three-word runs.

MinHash in bands finds the candidate pairs; the exact index decides on each.
"""

import functools
from pathlib import Path

import numpy as np

from icl_jax.design.folders import DesignFolders
from icl_jax.design.sentences import open_sentences
from icl_jax.files.arrays import save_array
from icl_jax.retrieval.search.search import SearchFolders
from icl_jax.retrieval.search.signatures import Signatures
from icl_jax.workers.local import Runner, progress_bar, run_shards

# Three minima make a band, so two documents of index J share a band with probability J^3, and of
# 42 bands at least one with 1 - (1 - J^3)^42: 0.99996 for J = 0.6, 0.98 for 0.45, 0.04 for 0.1.
BANDS, ROWS = 42, 3
_FIRST = 32  # if more documents share a band, each is compared with the first 32
_PAIRS = 2000  # compared at once
_DOCUMENT, _HASH, _SIZE, _BANDS = 0, 1, 2, 3  # columns of a sketch
_MULTIPLIERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


def sketch_shard(workdir: str, fingerprint: str, folder: str, index: int) -> None:
    """Writes a row for each document of one shard: id, hash of all, size of its set, bands."""
    corpus = open_sentences(workdir, fingerprint).corpus
    signatures = _open_signatures(workdir, fingerprint)
    sentences = np.arange(corpus.starts[index], corpus.starts[index + 1])
    ids, first = np.unique(corpus.documents[sentences], return_index=True)
    sizes = np.diff(np.append(first, len(sentences)))
    shingles, offsets = _sets(signatures, sentences, sizes)
    place = (np.arange(len(sentences)) - np.repeat(first, sizes) + 1).astype(np.uint64)
    mixed = (signatures.hashes[sentences] ^ (place * _MULTIPLIERS[0])) * _MULTIPLIERS[1]
    sketch = np.empty((len(ids), _BANDS + BANDS), np.uint64)
    sketch[:, _DOCUMENT], sketch[:, _SIZE] = ids, np.diff(offsets)
    if len(ids):
        sketch[:, _HASH] = np.add.reduceat(mixed ^ (mixed >> np.uint64(29)), first)
        sketch[:, _BANDS:] = _bands(shingles, offsets)
    save_array(_sketch_file(Path(folder), index), sketch)


def has_sketch(folder: Path, index: int) -> bool:
    """Whether a shard is done."""
    return _sketch_file(folder, index).exists()


def find_repeated(
    workdir: str, fingerprint: str, folder: Path, num_shards: int, jaccard: float, runner: Runner
) -> tuple[np.ndarray, np.ndarray]:
    """(documents that have sentences, pairs (left out, kept one that it repeats)), by id.

    In the order of ids a document is left out if its index with one kept before is at least
    `jaccard`, or if it is equal to it, sentence by sentence.
    """
    sketch = np.concatenate([np.load(_sketch_file(folder, i)) for i in range(num_shards)])
    documents = sketch[:, _DOCUMENT].astype(np.int64)
    _, first, equal = np.unique(sketch[:, _HASH], return_index=True, return_inverse=True)
    distinct = np.sort(first)
    near = np.empty((0, 2), np.int64)
    if jaccard <= 1:
        near = documents[distinct[_candidates(sketch[distinct], jaccard)]]
        near = near[_decide(workdir, fingerprint, near, jaccard, runner)]
    repeats: dict[int, int] = {}
    for earlier, later in near[np.lexsort((near[:, 0], near[:, 1]))].tolist():
        if earlier not in repeats:
            repeats.setdefault(later, earlier)
    for row in np.flatnonzero(first[equal] != np.arange(len(equal))).tolist():
        earlier = int(documents[first[equal[row]]])
        repeats[int(documents[row])] = repeats.get(earlier, earlier)
    return documents, np.array(sorted(repeats.items()), np.int64).reshape(-1, 2)


def are_near(
    workdir: str, fingerprint: str, pairs: list[tuple[int, int]], jaccard: float
) -> list[bool]:
    """Whether the exact index of each pair of documents is at least `jaccard`."""
    corpus = open_sentences(workdir, fingerprint).corpus
    ids, place = np.unique(np.array(pairs), return_inverse=True)
    first, last = (np.searchsorted(corpus.documents, ids, side) for side in ("left", "right"))
    sentences = np.concatenate([np.arange(*span) for span in zip(first, last, strict=True)])
    sets, offsets = _sets(_open_signatures(workdir, fingerprint), sentences, last - first)
    a, b = place.reshape(-1, 2).T
    sizes = np.diff(offsets)
    common = [
        np.isin(sets[offsets[i] : offsets[i + 1]], sets[offsets[j] : offsets[j + 1]]).sum()
        for i, j in zip(a, b, strict=True)
    ]
    return (common / (sizes[a] + sizes[b] - common) >= jaccard).tolist()


def _decide(
    workdir: str, fingerprint: str, pairs: np.ndarray, jaccard: float, runner: Runner
) -> np.ndarray:
    blocks = [pairs[start : start + _PAIRS].tolist() for start in range(0, len(pairs), _PAIRS)]
    tasks = [(workdir, fingerprint, block, jaccard) for block in blocks]
    with progress_bar(total=len(pairs), unit="pair", desc="documents alike") as bar:
        near = run_shards(are_near, tasks, bar, [len(block) for block in blocks], runner)
    return np.concatenate([np.empty(0, bool), *(np.array(found, bool) for found in near)])


def _candidates(sketch: np.ndarray, jaccard: float) -> np.ndarray:
    """Pairs of rows (earlier, later) that share a band and may reach the index by their sizes."""
    count, found = len(sketch), np.empty(0, np.int64)
    sizes = sketch[:, _SIZE].astype(np.float64)
    for band in range(_BANDS, sketch.shape[1]):
        order = np.argsort(sketch[:, band], kind="stable")
        keys = sketch[order, band]
        begins = np.append(True, keys[1:] != keys[:-1])[:count]
        start = np.flatnonzero(begins)[np.cumsum(begins) - 1]
        rank, pairs = np.arange(count) - start, [found]
        for place in range(min(_FIRST, rank.max(initial=0))):
            later = np.flatnonzero(rank > place)
            a, b = order[start[later] + place], order[later]
            fits = np.minimum(sizes[a], sizes[b]) >= jaccard * np.maximum(sizes[a], sizes[b])
            pairs.append(a[fits] * count + b[fits])
        found = np.unique(np.concatenate(pairs))
    return np.stack([found // count, found % count], axis=1)


def _sets(
    signatures: Signatures, sentences: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The shingles of each document, ascending, each once, and where each begins (one more).

    Document i has the next sizes[i] of the sentences.
    """
    document = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
    document = np.repeat(document, signatures.sizes[sentences])
    keys = np.unique((document << np.uint64(32)) | signatures.shingles(sentences))
    offsets = np.searchsorted(keys >> np.uint64(32), np.arange(len(sizes) + 1, dtype=np.uint64))
    return keys.astype(np.uint32), offsets


def _bands(shingles: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The bands of each document: (documents, BANDS)."""
    draw = np.random.RandomState(0)
    factors, terms = (draw.randint(0, 2**63 - 1, (2, BANDS, ROWS)) * 2 + 1).astype(np.uint64)
    bands = np.zeros((len(offsets) - 1, BANDS), np.uint64)
    values = shingles.astype(np.uint64)
    for band in range(BANDS):
        for row in range(ROWS):
            hashed = (values * factors[band, row] + terms[band, row]) >> np.uint64(32)
            least = np.minimum.reduceat(hashed, offsets[:-1])
            bands[:, band] = (bands[:, band] ^ least) * _MULTIPLIERS[row]
    return bands


@functools.lru_cache(maxsize=1)
def _open_signatures(workdir: str, fingerprint: str) -> Signatures:
    """Kept from shard to shard, as `open_sentences`."""
    return Signatures.open(SearchFolders(DesignFolders(workdir).neighbours).signatures)


def _sketch_file(folder: Path, index: int) -> Path:
    return folder / f"sketches-{index:05d}.npy"
