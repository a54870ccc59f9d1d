"""Sentence vectors on disk: one `.npy` file per shard of the sentence table, memory-mapped."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from icl_jax.config import StageError
from icl_jax.files.arrays import map_array, save_array
from icl_jax.files.step_folder import read_results


class Vectors:
    """The rows of all shards one after the other; row i belongs to sentence i of the table."""

    def __init__(self, shards: Sequence[np.ndarray], folder: Path | None = None):
        self.shards, self.folder = list(shards), folder
        self.starts = np.cumsum([0, *(len(shard) for shard in self.shards)])
        self.width = self.shards[0].shape[1]

    @classmethod
    def open(cls, folder: Path) -> "Vectors":
        """The files of a complete embedding step."""
        results = read_results(folder)
        if results is None:
            raise StageError(f"{folder} holds no complete vectors; run --stages=design to its end")
        files = [shard_file(folder, shard) for shard in range(results["num_shards"])]
        return cls([map_array(file) for file in files], folder)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, ids: np.ndarray) -> np.ndarray:
        """Float32 rows of these sentences, of length 1; a zero row stays zero."""
        out = np.empty((len(ids), self.width), np.float32)
        shard_of = np.searchsorted(self.starts, ids, side="right") - 1
        for shard in np.unique(shard_of):
            chosen = shard_of == shard
            out[chosen] = self.shards[shard][ids[chosen] - self.starts[shard]]
        return normalise(out)

    def shard(self, index: int) -> np.ndarray:
        """The same of one whole shard."""
        return normalise(self.shards[index].astype(np.float32))


def save_shard(folder: Path, index: int, vectors: np.ndarray) -> None:
    """Writes the vectors of one shard, whole or not at all."""
    save_array(shard_file(folder, index), vectors)


def shard_file(folder: Path, index: int) -> Path:
    """The file of the vectors of a shard."""
    return folder / f"vectors-{index:05d}.npy"


def normalise(vectors: np.ndarray) -> np.ndarray:
    """Rows divided by their length, in place."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=vectors, where=lengths > 0)


def to_float32(vectors: np.ndarray) -> np.ndarray:
    """As `astype`, which takes several times as long for float16: one number after the other."""
    if vectors.dtype != np.float16:
        return vectors.astype(np.float32, copy=False)
    bits = vectors.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= np.int32(-0x70002000)  # the sign, the five bits of the exponent, the ten that follow
    out = bits.view(np.float32)
    out *= np.float32(2.0**112)  # the exponents of the two types count from -15 and from -127
    return out
