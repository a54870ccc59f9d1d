"""Which sentences say the same: equal words, or nearly equal sets of three consecutive words.

Words are runs of letters, marks and digits in lower case; all else only parts them. Equal words in
equal order are an exact duplicate; the Jaccard index of the sets decides on near duplicates.
"""

from collections.abc import Sequence
import concurrent.futures
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icl_jax.parallel import count_cores, progress_bar
from icl_jax.step_folder import StepFolder, beside

# Sentences of equal hash count as equal: 64 bits put the chance that any two of 100M sentences
# meet by accident at 3 in 10,000. Shingles meet only within a pair: 32 bits are enough there.
_MULTIPLIERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
_BEGIN, _END = np.array([0x243F6A8885A308D3, 0x13198A2E03707344], np.uint64)


class Signatures:
    """What the sentences of a table are compared by, besides their vectors."""

    def __init__(self, batches: Sequence[pa.RecordBatch]):
        self.starts = np.cumsum([0, *(len(batch) for batch in batches)])
        self.hashes = _concatenate([batch["hash"].to_numpy() for batch in batches], np.uint64)
        self.sketches = _concatenate([batch["sketch"].to_numpy() for batch in batches], np.uint64)
        self._offsets = [batch["shingles"].offsets.to_numpy() for batch in batches]
        self._values = [batch["shingles"].values.to_numpy() for batch in batches]
        self.sizes = _concatenate([np.diff(offsets) for offsets in self._offsets], np.int32)

    def shingles(self, ids: np.ndarray) -> np.ndarray:
        """The sorted shingles of these sentences, one sentence after the other."""
        lengths = self.sizes[ids].astype(np.int64)
        ends = np.cumsum(lengths)
        out = np.empty(ends[-1] if len(ends) else 0, np.uint32)
        shard_of = np.searchsorted(self.starts, ids, side="right") - 1
        for shard in np.unique(shard_of):
            chosen = np.flatnonzero(shard_of == shard)
            first = self._offsets[shard][ids[chosen] - self.starts[shard]]
            count = lengths[chosen]
            within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            source = np.repeat(first, count) + within
            out[np.repeat(ends[chosen] - count, count) + within] = self._values[shard][source]
        return out


def load_signatures(table, folder: Path, workers: int = 0) -> Signatures:
    """The signatures of a sentence table; shards that `folder` does not hold yet are computed."""
    StepFolder(folder, {"sentences": table.fingerprint})
    files = [folder / f"signatures-{shard:05d}.arrow" for shard in range(table.num_shards)]
    missing = [shard for shard, file in enumerate(files) if not file.exists()]
    if missing:
        total = int(sum(table.starts[shard + 1] - table.starts[shard] for shard in missing))
        # Threads are enough: Arrow and NumPy let go of the interpreter.
        pool = concurrent.futures.ThreadPoolExecutor(workers or count_cores())
        with progress_bar(total=total, unit="sentence", desc="signatures") as bar, pool:
            tasks = [pool.submit(_write, table, shard, files[shard]) for shard in missing]
            try:
                for task in concurrent.futures.as_completed(tasks):
                    bar.update(task.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return Signatures([_read(file) for file in files])


def sign(texts: pa.Array) -> pa.RecordBatch:
    """Hash, set of three consecutive words (a shingle each) and its 64-bit sketch, per text."""
    lists = _words(texts)
    lengths = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    ends = np.cumsum(lengths)
    row = np.repeat(np.arange(len(lengths)), lengths)
    encoded = lists.flatten().dictionary_encode()
    words = _hash_words(encoded.dictionary)[encoded.indices.to_numpy()]
    place = (np.arange(len(words)) - (ends - lengths)[row]).astype(np.uint64)
    hashes = _sum_rows(_mix(words ^ _mix(place)), np.append(0, ends))

    # Begin and end marks give every sentence as many shingles as it has words.
    padded = np.full(len(words) + 2 * len(lengths), _BEGIN)
    middle = np.arange(len(words)) + 2 * row + 1
    padded[middle] = words
    padded[ends + 2 * np.arange(len(lengths)) + 1] = _END
    shingles = sum(padded[middle + i - 1] * _MULTIPLIERS[i] for i in range(3))
    shingles = _mix(np.asarray(shingles, np.uint64)) >> np.uint64(32)
    keys = np.unique((row.astype(np.uint64) << np.uint64(32)) | shingles)
    values = keys.astype(np.uint32)
    offsets = np.searchsorted(keys, np.arange(len(lengths) + 1).astype(np.uint64) << np.uint64(32))
    bits = np.uint64(1) << (values & np.uint32(63)).astype(np.uint64)
    sketches = np.bitwise_or.reduceat(bits, offsets[:-1]) if len(lengths) else bits
    sets = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))
    return pa.record_batch({"hash": hashes, "sketch": sketches, "shingles": sets})


def near_duplicates(
    a: Signatures, ids_a: np.ndarray, b: Signatures, ids_b: np.ndarray, jaccard: float
) -> np.ndarray:
    """For each pair (ids_a[i] of a, ids_b[i] of b): is the Jaccard index at least `jaccard`?"""
    sizes = a.sizes[ids_a] + b.sizes[ids_b]
    sketch_a, sketch_b = a.sketches[ids_a], b.sketches[ids_b]
    # A bit that only one sketch has stands for a shingle (or more) that only one sentence has, so
    # this many are common at most; it spares nearly all pairs the look at their shingles.
    common = np.minimum(
        a.sizes[ids_a] - np.bitwise_count(sketch_a & ~sketch_b).astype(np.int32),
        b.sizes[ids_b] - np.bitwise_count(sketch_b & ~sketch_a).astype(np.int32),
    )
    close = common / (sizes - common) >= jaccard
    pairs = np.flatnonzero(close)
    if len(pairs):
        common = _count_common(a, ids_a[pairs], b, ids_b[pairs])
        close[pairs] = common / (sizes[pairs] - common) >= jaccard
    return close


def exact_duplicates(
    hashes: np.ndarray, documents: np.ndarray, members: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Among `members` (ascending ids): the first of each class of equal hashes, ascending.

    Where a class reaches into a second document, also (first of the class, first in another
    document), ascending: whoever may not take the one, for it is in his document, takes the other.
    """
    order = members[np.argsort(hashes[members], kind="stable")]
    begins = np.append(True, hashes[order[1:]] != hashes[order[:-1]])[: len(order)]
    group = np.cumsum(begins) - 1
    first = order[begins]
    elsewhere = np.flatnonzero(documents[order] != documents[first[group]])
    groups, earliest = np.unique(group[elsewhere], return_index=True)
    of, other = first[groups], order[elsewhere[earliest]]
    by_id = np.argsort(of)
    return np.sort(first), of[by_id], other[by_id]


def _write(table, shard: int, file: Path) -> int:
    batch = sign(table.texts(shard))
    with beside(file) as partial, pa.ipc.new_file(str(partial), batch.schema) as writer:
        writer.write_batch(batch)
    return len(batch)


def _read(file: Path) -> pa.RecordBatch:
    return pa.ipc.open_file(pa.memory_map(str(file))).get_batch(0)


def _words(texts: pa.Array) -> pa.ListArray:
    """The words of each text; one that has none holds one empty word."""
    texts = pc.utf8_lower(texts.cast(pa.large_string()))
    texts = pc.replace_substring_regex(texts, r"[^\pL\pM\pN]+", " ")
    return pc.split_pattern(pc.ascii_trim(texts, " "), " ")


def _hash_words(words: pa.LargeStringArray) -> np.ndarray:
    """The sum of one random number per (place, byte): stable between runs, unlike `hash`."""
    _, offsets, data = words.buffers()
    if data is None or not len(words):
        return np.zeros(len(words), np.uint64)
    offsets = np.frombuffer(offsets, np.int64)[: len(words) + 1]
    data = np.frombuffer(data, np.uint8)[: offsets[-1]].astype(np.uint64)
    place = np.arange(len(data)) - np.repeat(offsets[:-1], np.diff(offsets))
    return _mix(_sum_rows(_mix(data + (place.astype(np.uint64) << np.uint64(8))), offsets))


def _sum_rows(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Sums modulo 2^64 of consecutive runs, empty ones included."""
    sums = np.append(np.uint64(0), np.cumsum(values))
    return sums[offsets[1:]] - sums[offsets[:-1]]


def _mix(x: np.ndarray) -> np.ndarray:
    """Spreads 64 bits: a shift and an odd multiplier, twice (the finaliser of SplitMix64)."""
    x = x + _MULTIPLIERS[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _count_common(a: Signatures, ids_a: np.ndarray, b: Signatures, ids_b: np.ndarray) -> np.ndarray:
    """The number of common shingles of each pair."""
    keys_a, keys_b = _keys(a, ids_a), _keys(b, ids_b)
    place = np.minimum(np.searchsorted(keys_a, keys_b), len(keys_a) - 1)
    found = keys_b[keys_a[place] == keys_b] >> np.uint64(32)
    return np.bincount(found.astype(np.int64), minlength=len(ids_a))


def _keys(signatures: Signatures, ids: np.ndarray) -> np.ndarray:
    """(pair, shingle) as one number, ascending."""
    pair = np.repeat(np.arange(len(ids), dtype=np.uint64), signatures.sizes[ids])
    return (pair << np.uint64(32)) | signatures.shingles(ids)


def _concatenate(arrays: list[np.ndarray], dtype) -> np.ndarray:
    return np.concatenate(
        [np.empty(0, dtype), *(array.astype(dtype, copy=False) for array in arrays)]
    )
