"""The plan of a source: which records share a row, and which rows share a batch.

A unit is a run of records with the same `batch_group` (a record without one is its own unit); its
rows must land in the same batch. Rows come in bundles of whole units, which a batch takes whole.
When packed, units that fit into one row share rows; a unit of several rows has them to itself.
A run may continue in the next shard, since cutting a group would be wrong and joining two is not.
Which units share a row or a bundle is drawn again in each epoch.
"""

import collections
from collections.abc import Callable
import dataclasses

import numpy as np

from icl_jax.data.tfrecord import RecordError

# Of the rows of records with batch groups; raise it when the same records could come in another
# order: a run that is under way is then refused. All other rows are where they always were: 1.
GROUPS_VERSION = 2


@dataclasses.dataclass(frozen=True)
class Places:
    """The places of units in the first epoch; in later ones, units of the same size swap them."""

    seed: int
    sizes: np.ndarray  # of each unit: its records,
    length: np.ndarray  # its tokens if it is one row, else its rows as a negative number,
    block: np.ndarray  # and its block: one row that short units share, or all rows of a longer unit
    block_rows: np.ndarray  # of each block, how many,
    first_row: np.ndarray  # and the first of them
    row_in_unit: np.ndarray  # of each record

    def rows(self, epoch: int) -> np.ndarray:
        """The row of each record. Units of one length trade blocks, blocks of one size places.

        So every epoch has the same rows and bundles, equally full, with other units together.
        """
        block, first_row = self.block, self.first_row
        if epoch:
            # RandomState's stream is frozen: a plan must not change with numpy's version.
            random = np.random.RandomState([self.seed, epoch])
            block = block[_trade(self.length, random)]
            first_row = first_row[_trade(self.block_rows, random)]
        return np.repeat(first_row[block], self.sizes) + self.row_in_unit


@dataclasses.dataclass(frozen=True)
class Plan:
    """The rows of one epoch of a source; bundle b begins at row b * rows_per_bundle."""

    num_rows: int
    rows_per_bundle: int = 1
    # Row i holds records[starts[i]:starts[i + 1]]; None: row i is record i, without any memory.
    starts: np.ndarray | None = None
    records: np.ndarray | None = None
    places: Places | None = None  # None: the rows are the same in every epoch

    @property
    def version(self) -> int:
        """Of the rules that arranged it."""
        return 1 if self.places is None else GROUPS_VERSION

    @property
    def num_bundles(self) -> int:
        return self.num_rows // self.rows_per_bundle

    def records_of(self, row: int) -> np.ndarray:
        """The records of a row; empty: the row is padding that completes its bundle."""
        if self.starts is None:
            return np.array([row])
        return self.records[self.starts[row] : self.starts[row + 1]]

    def of_epoch(self, epoch: int) -> "Plan":
        """The plan of another epoch, from this one of epoch 0; it has as many rows."""
        if epoch == 0 or self.places is None:
            return self
        return _plan(self.places.rows(epoch), self.rows_per_bundle)


def make_plan(
    tokens: np.ndarray,  # number of tokens of each record
    batch_group: np.ndarray,  # of each record; -1: none
    *,
    sequence_length: int,
    rows_together: int,  # rows of this source in every batch, or a divisor of that number
    pack: bool,
    seed: int,
    one_unit: bool = False,  # the records of a unit share a row that has no other unit
    place: Callable[[int], str] = "record {}".format,  # names a record in messages
) -> Plan:
    """Arranges records that all fit into a row; the same arguments always give the same plan."""
    has_units = bool((batch_group >= 0).any())
    if not has_units and not pack:
        return Plan(len(tokens))
    if not has_units:
        return _plan(best_fit(tokens, sequence_length, _shuffled(len(tokens), seed)), 1)
    first, sizes = _find_units(batch_group)
    if pack or one_unit:
        row_in_unit, rows = _pack_units(tokens, first, sizes, sequence_length)
    else:
        row_in_unit, rows = np.arange(len(tokens)) - np.repeat(first, sizes), sizes
    if one_unit:
        return _plan_units(first, sizes, rows, sequence_length, place)
    if pack:
        block = _share_rows(tokens, first, rows, sequence_length, seed)
    else:
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
    totals = np.add.reduceat(tokens, first, dtype=np.int64)
    length = np.where(rows == 1, totals, -rows)
    places = Places(seed, sizes, length, block, block_rows, first_row, row_in_unit)
    return dataclasses.replace(_plan(places.rows(0), rows_together), places=places)


def _plan_units(
    first: np.ndarray,
    sizes: np.ndarray,
    rows: np.ndarray,
    sequence_length: int,
    place: Callable[[int], str],
) -> Plan:
    """A row for each unit, in order, as if each were one record."""
    too_long = np.flatnonzero(rows > 1)
    if len(too_long):
        raise RecordError(
            f"{place(int(first[too_long[0]]))}: expected the sentences of a query to fit into one "
            f"row of {sequence_length} tokens (design.examples.rows=one_query), but those of "
            f"{len(too_long)} queries do not; raise sequence_length, or redesign the examples "
            "with a lower design.examples.max_tokens"
        )
    return _plan(np.repeat(np.arange(len(rows)), sizes), 1)


def count_rows(
    tokens: np.ndarray, batch_group: np.ndarray, sequence_length: int, pack: bool, seed: int
) -> int:
    """How many rows records take if packed, or with one unit per row, without regard to bundles."""
    first, sizes = _find_units(batch_group)
    _, rows = _pack_units(tokens, first, sizes, sequence_length)
    if not pack:
        return int(rows.sum())
    block = _share_rows(tokens, first, rows, sequence_length, seed)
    return int(block.max() + 1 + (rows - 1).sum())  # a block is a row, or a unit of several


def best_fit(sizes: np.ndarray, capacity: int, order: np.ndarray) -> np.ndarray:
    """The bin of each item, taken in `order`: the open bin that it fills best, else a new one.

    Bins are kept by free space, and `spaces` has bit s set if a bin has s free: the best bin is the
    lowest set bit from the item's size upwards, so an item takes about a microsecond.
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


def _trade(size: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """A random permutation that maps each item to one of the same size."""
    order = random.permutation(len(size))
    order = order[np.argsort(size[order], kind="stable")]
    traded = np.empty_like(order)
    traded[np.argsort(size, kind="stable")] = order
    return traded


def _plan(row: np.ndarray, rows_per_bundle: int) -> Plan:
    """The plan that puts record i into row[i]; the last bundle is filled up with padding."""
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
    for unit in np.flatnonzero(totals > sequence_length):  # the others fit into one row
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
