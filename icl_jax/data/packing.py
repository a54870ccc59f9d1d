"""The plan of a source: which records share a row, and which rows share a batch.

A unit is a run of records with the same `batch_group` (a record without one is its own unit); its
rows must land in the same batch. Rows come in bundles, whole units each, that a batch takes as one.
Packed, units that fit into one row share rows; a unit of several rows has them for itself.
A run may go on in the next shard: to be together without need breaks no promise, to be cut does.
"""

import collections
from collections.abc import Callable
import dataclasses

import numpy as np

from icl_jax.data.tfrecord import RecordError


@dataclasses.dataclass(frozen=True)
class Plan:
    """Rows of a source; bundle b is the rows from b * rows_per_bundle on."""

    num_rows: int
    rows_per_bundle: int = 1
    # Row i holds records[starts[i]:starts[i + 1]]; None: row i is record i, which costs no memory.
    starts: np.ndarray | None = None
    records: np.ndarray | None = None

    @property
    def num_bundles(self) -> int:
        return self.num_rows // self.rows_per_bundle

    def records_of(self, row: int) -> np.ndarray:
        """The records of a row; none: the row is padding that completes its bundle."""
        if self.starts is None:
            return np.array([row])
        return self.records[self.starts[row] : self.starts[row + 1]]


def make_plan(
    tokens: np.ndarray,  # of each record, how many
    batch_group: np.ndarray,  # of each record; -1: none
    *,
    sequence_length: int,
    rows_together: int,  # rows of this source that every batch takes, or a divisor of them
    pack: bool,
    seed: int,
    place: Callable[[int], str] = "record {}".format,  # names a record in messages
) -> Plan:
    """Arranges records that all fit into a row; the same arguments always give the same plan."""
    has_units = bool((batch_group >= 0).any())
    if not has_units and not pack:
        return Plan(len(tokens))
    if not has_units:
        return _plan(best_fit(tokens, sequence_length, _shuffled(len(tokens), seed)), 1)
    first, sizes = _find_units(batch_group)
    if pack:
        row_in_unit, rows = _pack_units(tokens, first, sizes, sequence_length)
        block = _share_rows(tokens, first, rows, sequence_length, seed)
    else:
        row_in_unit, rows = np.arange(len(tokens)) - np.repeat(first, sizes), sizes
        block = np.arange(len(rows))
    too_large = np.flatnonzero(rows > rows_together)
    if len(too_large):
        unit = too_large[0]
        raise RecordError(
            f"{place(int(first[unit]))}: expected a batch group of at most {rows_together} rows "
            "(the largest number that divides this source's part of every batch), got group "
            f"{batch_group[first[unit]]} of {rows[unit]} rows; {len(too_large)} groups are too "
            "large: raise batch_size or the weight of the source, or build smaller groups"
        )
    block_rows = np.empty(block.max() + 1, np.int64)
    block_rows[block] = rows
    bundle = best_fit(block_rows, rows_together, _shuffled(len(block_rows), seed))
    first_row = bundle * rows_together + _place_in_bundle(bundle, block_rows)
    return _plan(np.repeat(first_row[block], sizes) + row_in_unit, rows_together)


def count_packed_rows(
    tokens: np.ndarray, batch_group: np.ndarray, sequence_length: int, seed: int
) -> int:
    """How many rows records with batch groups take when they are packed, bundles apart."""
    first, sizes = _find_units(batch_group)
    _, rows = _pack_units(tokens, first, sizes, sequence_length)
    block = _share_rows(tokens, first, rows, sequence_length, seed)
    return int(block.max() + 1 + (rows - 1).sum())  # a block is a row, or a unit of several


def best_fit(sizes: np.ndarray, capacity: int, order: np.ndarray) -> np.ndarray:
    """The bin of each item, taken in `order`: the open bin that it fills best, else a new one.

    Bins are kept by their free space, and `spaces` has bit s set where a bin has s free: the best
    bin is the lowest bit from the item's size on. So an item costs about a microsecond.
    """
    bins: dict[int, list[int]] = collections.defaultdict(list)
    spaces, opened, chosen = 0, 0, []
    for size in sizes[order].tolist():
        fitting = spaces >> size
        if fitting:
            space = size + (fitting & -fitting).bit_length() - 1
            best = bins[space].pop()
            if not bins[space]:
                spaces ^= 1 << space
        else:
            space, best, opened = capacity, opened, opened + 1
        if space > size:
            bins[space - size].append(best)
            spaces |= 1 << (space - size)
        chosen.append(best)
    result = np.empty(len(sizes), np.int64)
    result[order] = chosen
    return result


def _find_units(batch_group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first record of each unit, and how many it has."""
    first = np.flatnonzero((batch_group[1:] != batch_group[:-1]) | (batch_group[1:] < 0)) + 1
    first = np.concatenate([[0], first])
    return first, np.diff(first, append=len(batch_group))


def _plan(row: np.ndarray, rows_per_bundle: int) -> Plan:
    """The plan that puts record i into row[i]; the last bundle is completed."""
    num_rows = -(-int(row.max(initial=-1) + 1) // rows_per_bundle) * rows_per_bundle
    starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=num_rows))])
    return Plan(num_rows, rows_per_bundle, starts, np.argsort(row, kind="stable"))


def _shuffled(count: int, seed: int) -> np.ndarray:
    # RandomState's stream is frozen: a plan must not change with numpy's version.
    return np.random.RandomState(seed).permutation(count)


def _pack_units(
    tokens: np.ndarray, first: np.ndarray, sizes: np.ndarray, sequence_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """The row of each record within its unit, and the number of rows of each unit."""
    row_in_unit = np.zeros(len(tokens), np.int64)
    rows = np.ones(len(first), np.int64)
    totals = np.add.reduceat(tokens, first, dtype=np.int64)
    for unit in np.flatnonzero(totals > sequence_length):  # the others are one row
        part = slice(first[unit], first[unit] + sizes[unit])
        row_in_unit[part] = best_fit(tokens[part], sequence_length, np.arange(sizes[unit]))
        rows[unit] = row_in_unit[part].max() + 1
    return row_in_unit, rows


def _share_rows(
    tokens: np.ndarray, first: np.ndarray, rows: np.ndarray, sequence_length: int, seed: int
) -> np.ndarray:
    """The block of each unit: one row that short units share, or all rows of a longer unit."""
    small = np.flatnonzero(rows == 1)
    totals = np.add.reduceat(tokens, first, dtype=np.int64)
    block = np.empty(len(rows), np.int64)
    block[small] = best_fit(totals[small], sequence_length, _shuffled(len(small), seed))
    shared = block[small].max(initial=-1) + 1
    block[rows > 1] = shared + np.arange(len(rows) - len(small))
    return block


def _place_in_bundle(bundle: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """How many rows of its bundle come before each unit."""
    order = np.argsort(bundle, kind="stable")
    before = np.cumsum(rows[order]) - rows[order]
    first_of_bundle = np.searchsorted(bundle[order], bundle[order])
    place = np.empty_like(before)
    place[order] = before - before[first_of_bundle]
    return place
