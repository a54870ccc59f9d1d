"""Short groups share a row, so that rows of training are full; each keeps its own group id."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from icl_jax.data.packing import best_fit
from icl_jax.design.records.layout import Example


class Piece(NamedTuple):
    """An example, and the origin of its sentences in their order."""

    example: Example
    sentence_ids: np.ndarray
    document_ids: np.ndarray
    similarities: np.ndarray


def pack_rows(lengths: np.ndarray, limit: int, seed: Sequence[int]) -> list[np.ndarray]:
    """Which examples share a row of at most `limit` tokens; the rows in random order.

    The examples are taken in the given order, which must be random already.
    """
    row_of = best_fit(lengths, limit, np.arange(len(lengths)))
    by_row = np.argsort(row_of, kind="stable")
    rows = np.split(by_row, np.cumsum(np.bincount(row_of))[:-1])
    # RandomState's stream is frozen: records must not change with numpy's version.
    return [rows[i] for i in np.random.RandomState(seed).permutation(len(rows))]


def join(pieces: Sequence[Piece]) -> dict[str, np.ndarray]:
    """The features of a record with these examples, whose group ids count from 1."""
    lengths = [len(piece.example.tokens) for piece in pieces]
    begins = np.cumsum([0, *lengths[:-1]])
    starts = [piece.example.starts + begin for piece, begin in zip(pieces, begins)]
    return {
        "tokens": np.concatenate([piece.example.tokens for piece in pieces]),
        "group": np.repeat(np.arange(1, len(pieces) + 1), lengths),
        "sentence_ids": np.concatenate([piece.sentence_ids for piece in pieces]),
        "document_ids": np.concatenate([piece.document_ids for piece in pieces]),
        "similarities": np.concatenate([piece.similarities for piece in pieces]),
        "sentence_starts": np.concatenate(starts),
    }
