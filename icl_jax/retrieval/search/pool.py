"""The sentences that are searched: what the rules need of each, in files that processes share."""

import dataclasses
from pathlib import Path

import numpy as np

from icl_jax.corpus.sentence_table import SentenceTable
from icl_jax.files.arrays import map_array, save_array
from icl_jax.files.step_folder import StepFolder
from icl_jax.retrieval.search.duplicates import exact_duplicates
from icl_jax.retrieval.search.signatures import Signatures
from icl_jax.retrieval.vectors import Vectors, to_float32

_FILES = ("documents", "lengths", "ids", "twins")


@dataclasses.dataclass
class Pool:
    """A sentence table with vectors; of equal sentences only the first is searched for."""

    signatures: Signatures
    vectors: Vectors
    documents: np.ndarray  # of every sentence, int32
    lengths: np.ndarray  # of every vector, float32; a zero vector is like nothing
    ids: np.ndarray  # of the sentences that are searched for, ascending
    twins: np.ndarray  # (2, n): some of `ids`, ascending; their first equal in another document

    @classmethod
    def make(cls, signatures: Signatures, vectors: Vectors, documents: np.ndarray) -> "Pool":
        """Looks at every vector and every hash."""
        lengths = np.concatenate(
            [np.linalg.norm(to_float32(rows), axis=1) for rows in vectors.shards]
        )
        documents = documents.astype(np.int32)
        ids, of, other = exact_duplicates(signatures.hashes, documents, lengths > 0)
        return cls(signatures, vectors, documents, lengths, ids, np.stack([of, other]))

    @classmethod
    def open(cls, folder: Path, signatures: Signatures, vectors: Vectors) -> "Pool":
        """What `prepare_pool` wrote, mapped from disk."""
        return cls(signatures, vectors, *(map_array(folder / f"{name}.npy") for name in _FILES))


def prepare_pool(
    table: SentenceTable, vectors: Vectors, signatures: Signatures, folder: Path, inputs: dict
) -> Pool:
    """The pool of a whole table; `inputs` says what table and vectors were made from."""
    step = StepFolder(folder, inputs)

    def make() -> dict:
        pool = Pool.make(signatures, vectors, table.documents)
        for name in _FILES:
            save_array(folder / f"{name}.npy", getattr(pool, name))
        return {"sentences": len(table), "searched": len(pool.ids)}

    if step.results is None:
        step.complete(make)
    return Pool.open(folder, signatures, vectors)
