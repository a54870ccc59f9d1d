"""What sentences are compared by: a hash of their words, and sets of three consecutive words.

What a word is, `corpus/words.py` says.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from icl_jax.corpus.sentence_table import SentenceTable, open_table
from icl_jax.corpus.words import RULES_VERSION, split_words
from icl_jax.files.arrays import map_array
from icl_jax.files.step_folder import StepFolder, beside, read_results
from icl_jax.retrieval.neighbours import read_batch
from icl_jax.workers.local import Runner
from icl_jax.workers.shards import make_shards

# Sentences of equal hash count as equal: 64 bits put the chance that any two of 100M sentences
# meet by accident at 3 in 10,000. Shingles meet only within a pair: 32 bits are enough there.
_MULTIPLIERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
_BEGIN, _END = np.array([0x243F6A8885A308D3, 0x13198A2E03707344], np.uint64)

_JOINED = {"hash": np.uint64, "sketch": np.uint64, "size": np.int32}  # size: how many shingles


class Signatures:
    """What the sentences of a table are compared by, besides their vectors."""

    def __init__(self, batches: Sequence[pa.RecordBatch], joined: dict | None = None):
        if joined is None:
            joined = {
                name: np.concatenate([_column(batch, name) for batch in batches]).astype(dtype)
                for name, dtype in _JOINED.items()
            }
        self.starts = np.cumsum([0, *(len(batch) for batch in batches)])
        self.hashes, self.sketches, self.sizes = (joined[name] for name in _JOINED)
        self._offsets = [batch["shingles"].offsets.to_numpy() for batch in batches]
        self._values = [batch["shingles"].values.to_numpy() for batch in batches]

    @classmethod
    def open(cls, folder: Path) -> "Signatures":
        """The signatures that `load_signatures` wrote, mapped from disk."""
        shards = range(read_results(folder)["shards"])
        joined = {name: map_array(folder / f"{name}.npy") for name in _JOINED}
        return cls([read_batch(_shard_file(folder, shard)) for shard in shards], joined)

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


def load_signatures(table: SentenceTable, folder: Path, runner: Runner | None = None) -> Signatures:
    """The signatures of a sentence table; shards that `folder` does not hold yet are computed."""
    runner = runner or Runner()
    step = StepFolder(folder, {"sentences": table.fingerprint, "words": RULES_VERSION})
    if step.results is None:
        files = [_shard_file(folder, shard) for shard in range(table.num_shards)]

        def join() -> dict:
            _join_shards(folder, files, len(table))
            return {"shards": len(files), "sentences": len(table)}

        make_shards(
            "signatures", folder, np.diff(table.starts), lambda shard: files[shard].exists(),
            sign_in_worker,
            lambda shard: (str(table.folder), table.fingerprint, shard, str(folder)), runner,
            # Threads are enough: Arrow and NumPy release the interpreter.
            here=lambda shard, _: sign_shard(table, shard, folder), threads=runner.threads,
        )  # fmt: skip
        step.complete(join)
    return Signatures.open(folder)


def sign_shard(table: SentenceTable, shard: int, folder: Path) -> None:
    """Writes the signatures of one shard."""
    batch = sign(table.texts(shard))
    with (
        beside(_shard_file(folder, shard)) as partial,
        pa.ipc.new_file(str(partial), batch.schema) as writer,
    ):
        writer.write_batch(batch)


def sign_in_worker(table: str, fingerprint: str, shard: int, folder: str) -> None:
    """As `sign_shard`, of names alone; the table stays open for the next shard."""
    sign_shard(open_table(table, fingerprint), shard, Path(folder))


def sign(texts: pa.Array) -> pa.RecordBatch:
    """Hash, set of three consecutive words (a shingle each) and its 64-bit sketch, per text."""
    vocabulary, ids, lengths = split_words(texts)
    none = np.flatnonzero(lengths == 0)
    ids = np.insert(ids, np.cumsum(lengths)[none], 0)  # the empty word, so that all have one
    lengths[none] = 1
    ends = np.cumsum(lengths)
    row = np.repeat(np.arange(len(lengths)), lengths)
    words = _hash_words(vocabulary)[ids]
    place = (np.arange(len(words)) - (ends - lengths)[row]).astype(np.uint64)
    hashes = _sum_rows(mix(words ^ mix(place)), np.append(0, ends))

    # Begin and end marks give every sentence as many shingles as it has words.
    padded = np.full(len(words) + 2 * len(lengths), _BEGIN)
    middle = np.arange(len(words)) + 2 * row + 1
    padded[middle] = words
    padded[ends + 2 * np.arange(len(lengths)) + 1] = _END
    shingles = sum(padded[middle + i - 1] * _MULTIPLIERS[i] for i in range(3))
    shingles = mix(np.asarray(shingles, np.uint64)) >> np.uint64(32)
    keys = np.unique((row.astype(np.uint64) << np.uint64(32)) | shingles)
    values = keys.astype(np.uint32)
    offsets = np.searchsorted(keys, np.arange(len(lengths) + 1).astype(np.uint64) << np.uint64(32))
    bits = np.uint64(1) << (values & np.uint32(63)).astype(np.uint64)
    sketches = np.bitwise_or.reduceat(bits, offsets[:-1]) if len(lengths) else bits
    sets = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))
    return pa.record_batch({"hash": hashes, "sketch": sketches, "shingles": sets})


def _join_shards(folder: Path, files: Sequence[Path], count: int) -> None:
    """What is looked up by id, in one file each: mapped, it is in memory once for all processes."""
    for name, dtype in _JOINED.items():
        with beside(folder / f"{name}.npy") as partial:
            joined = np.lib.format.open_memmap(partial, "w+", dtype, (count,))
            start = 0
            for file in files:
                values = _column(read_batch(file), name)
                joined[start : start + len(values)] = values
                start += len(values)
            joined.flush()


def _column(batch: pa.RecordBatch, name: str) -> np.ndarray:
    if name == "size":
        return np.diff(batch["shingles"].offsets.to_numpy())
    return batch[name].to_numpy()


def _shard_file(folder: Path, shard: int) -> Path:
    return folder / f"signatures-{shard:05d}.arrow"


def _hash_words(words: pa.LargeStringArray) -> np.ndarray:
    """The sum of one random number per (place, byte): stable between runs, unlike `hash`."""
    _, offsets, data = words.buffers()
    if data is None or not len(words):
        return np.zeros(len(words), np.uint64)
    offsets = np.frombuffer(offsets, np.int64)[: len(words) + 1]
    data = np.frombuffer(data, np.uint8)[: offsets[-1]].astype(np.uint64)
    place = np.arange(len(data)) - np.repeat(offsets[:-1], np.diff(offsets))
    return mix(_sum_rows(mix(data + (place.astype(np.uint64) << np.uint64(8))), offsets))


def _sum_rows(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Sums modulo 2^64 of consecutive runs, empty ones included."""
    sums = np.append(np.uint64(0), np.cumsum(values))
    return sums[offsets[1:]] - sums[offsets[:-1]]


def mix(x: np.ndarray) -> np.ndarray:
    """Spreads 64 bits: a shift and an odd multiplier, twice (the finaliser of SplitMix64)."""
    x = x + _MULTIPLIERS[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
