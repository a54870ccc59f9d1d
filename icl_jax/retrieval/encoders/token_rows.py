"""Sentences of all lengths side by side in token rows of a few fixed lengths, almost unpadded.

A sentence is a group of its row: it sees nothing of the others. Rows have 64, 128, 256, ... tokens;
a row of n tokens is opened only by a sentence longer than n / 2, or than 0 for the shortest rows.
"""

import collections
from collections.abc import Sequence
import dataclasses

import numpy as np

SHORTEST_ROW = 64  # twice the usual sentence: shorter rows are hard to fill, longer cost attention
TOKENS_PER_SLOT = 4  # a row of n tokens has room for n / 4 sentences


@dataclasses.dataclass
class Batch:
    """Rows of one length; `sentences[i]` is in row `rows[i]` as group `slots[i]` + 1."""

    tokens_BT: np.ndarray  # int32
    group_BT: np.ndarray  # int32: 1, 2, ... in each row, 0 is padding
    sentences: np.ndarray
    rows: np.ndarray
    slots: np.ndarray


def row_lengths(longest: int) -> list[int]:
    """The lengths of rows that sentences of up to `longest` tokens may take."""
    lengths = [SHORTEST_ROW]
    while lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    return lengths


def num_slots(row_length: int) -> int:
    """How many sentences a row has room for."""
    return row_length // TOKENS_PER_SLOT


def rows_of_batch(row_length: int, batch_tokens: int, divisor: int) -> int:
    """How many rows of a length make about `batch_tokens`, a multiple of `divisor`."""
    return max(1, batch_tokens // (row_length * divisor)) * divisor


def make_batches(
    sentences: Sequence[Sequence[int]], batch_tokens: int, divisor: int, pad_id: int
) -> list[Batch]:
    """All sentences that have tokens, in batches of about `batch_tokens`, the longest rows first.

    The rows of a batch are a multiple of `divisor`; their number depends on their length alone.
    """
    lengths = np.array([len(tokens) for tokens in sentences], np.int64)
    rows = {
        length: rows_of_batch(length, batch_tokens, divisor)
        for length in row_lengths(int(lengths.max(initial=0)))
    }
    batches = []
    for row_length, packed in _pack(lengths, rows).items():
        for start in range(0, len(packed), rows[row_length]):
            part = packed[start : start + rows[row_length]]
            batches.append(_fill(sentences, part, row_length, pad_id))
    return batches


def _pack(lengths: np.ndarray, rows_per_batch: dict[int, int]) -> dict[int, list[list[int]]]:
    """Row length -> rows -> sentences; the longest first, each where it leaves the least space.

    Rows of each length come in whole batches: what completes them is open to shorter sentences.
    Bit s of `spaces` is set where a row has s tokens free (as in `data.packing`).
    """
    order = np.argsort(-lengths, kind="stable")
    open_rows: dict[int, list[tuple[list[int], int]]] = collections.defaultdict(list)
    packed: dict[int, list[list[int]]] = {}
    spaces, place = 0, 0
    for row_length in sorted(rows_per_batch, reverse=True):
        shorter = row_length // 2 if row_length > SHORTEST_ROW else 0
        rows = packed[row_length] = []
        while place < len(order) and (size := int(lengths[order[place]])) > shorter:
            if not spaces >> size:
                fresh = [[] for _ in range(rows_per_batch[row_length])]
                rows += fresh
                open_rows[row_length] += [(row, row_length) for row in reversed(fresh)]
                spaces |= 1 << row_length
            fitting = spaces >> size
            space = size + (fitting & -fitting).bit_length() - 1
            row, length = open_rows[space].pop()
            if not open_rows[space]:
                spaces ^= 1 << space
            row.append(int(order[place]))
            if space > size and len(row) < num_slots(length):
                open_rows[space - size].append((row, length))
                spaces |= 1 << (space - size)
            place += 1
    return packed


def _fill(sentences, packed: list[list[int]], row_length: int, pad_id: int) -> Batch:
    tokens_BT = np.full((len(packed), row_length), pad_id, np.int32)
    group_BT = np.zeros_like(tokens_BT)
    for row, members in enumerate(packed):
        end = 0
        for slot, sentence in enumerate(members):
            start, end = end, end + len(sentences[sentence])
            tokens_BT[row, start:end] = sentences[sentence]
            group_BT[row, start:end] = slot + 1
    counts = [len(members) for members in packed]
    return Batch(
        tokens_BT,
        group_BT,
        sentences=np.array([i for members in packed for i in members], np.int64),
        rows=np.repeat(np.arange(len(packed)), counts),
        slots=np.concatenate([np.arange(count) for count in counts]),
    )
