"""One source of records: its shards, how its rows are arranged, and an endless shuffled stream."""

from collections.abc import Iterator
import dataclasses
import functools
import json

from etils import epath
import grain
import numpy as np

from icl_jax.config.design import ONE_QUERY, PACKED
from icl_jax.data.packing import Plan, make_plan
from icl_jax.data.shard_index import ShardIndex, load_indexes
from icl_jax.data.shards import Shards, find_shards
from icl_jax.data.tfrecord import RecordError, damage
from icl_jax.files.remote import read_text

# Grain's shuffle tries numbers below 2**16 until one is in range: 25 us from here on, 15 ms for 4.
_FEW_BUNDLES = 1 << 14
_PLANS = 2  # epochs whose plans a stream keeps: reading ahead may reach into the next one


@dataclasses.dataclass
class Source:
    """The records of one entry of `DataConfig.sources`."""

    name: str  # the entry
    paths: list[epath.Path]
    indexes: list[ShardIndex]
    sequence_length: int
    one_query: bool = False  # according to its folder, a row holds one query and its group
    plan: Plan = dataclasses.field(init=False)

    @functools.cached_property
    def shards(self) -> Shards:
        return Shards(self.paths, self.indexes)

    @property
    def num_records(self) -> int:
        return sum(len(index) for index in self.indexes)

    @property
    def num_tokens(self) -> int:
        return sum(int(index.tokens.sum(dtype=np.int64)) for index in self.indexes)

    @property
    def num_rows(self) -> int:
        return self.plan.num_rows

    @property
    def filled(self) -> float:
        """The share of places in the rows that hold a token."""
        return self.num_tokens / (self.num_rows * self.sequence_length)

    def make_plan(self, rows_together: int, pack: bool, seed: int) -> None:
        """Arranges the rows; a batch takes a multiple of `rows_together` of them."""
        if pack and self.one_query:
            raise RecordError(
                f"data.pack=True would put several examples into a row, but {self.name} was "
                "designed for one query a row (design.examples.rows=one_query); set data.pack to "
                "False, or design the examples with rows=packed"
            )
        if not pack and all((index.batch_group < 0).all() for index in self.indexes):
            self.plan = Plan(self.num_records)
            return
        self.plan = make_plan(
            np.concatenate([index.tokens for index in self.indexes]),
            np.concatenate([index.batch_group for index in self.indexes]),
            sequence_length=self.sequence_length,
            rows_together=rows_together,
            pack=pack,
            seed=seed,
            one_unit=self.one_query,
            place=self.shards.place,
        )

    def outside_vocabulary(self, vocab_size: int) -> Iterator[tuple[str, int]]:
        """Place and token id of the first wrong id in every shard that has one."""
        ends = np.cumsum([len(index) for index in self.indexes])
        for index, end in zip(self.indexes, ends):
            if index.smallest_token >= 0 and index.largest_token < vocab_size:
                continue
            for record in range(end - len(index), end):
                tokens = self.shards[record]["tokens"]
                wrong = tokens[(tokens < 0) | (tokens >= vocab_size)]
                if wrong.size:
                    yield self.shards.place(record), int(wrong[0])
                    break

    def facts(self) -> list[tuple]:
        """What identifies these shards: name, size, records and checksum of each."""
        return [
            (path.name, index.size, len(index), index.checksum)
            for path, index in zip(self.paths, self.indexes)
        ]


def open_source(name: str, sequence_length: int) -> Source:
    """Finds and indexes the shards; raises RecordError if they cannot be used."""
    paths = find_shards(name)
    one_query = row_holds(name) == ONE_QUERY
    source = Source(name, paths, load_indexes(paths), sequence_length, one_query)
    if not source.num_records:
        raise RecordError(f"expected records in {name}, got {len(paths)} empty shards; build them")
    _check_lengths(source)
    return source


def row_holds(name: str) -> str:
    """What a row holds, according to the design of a folder of records; otherwise: packed."""
    results = epath.Path(name) / "results.json"
    held = json.loads(read_text(results)) if results.exists() else {}
    return held.get("row_holds", PACKED)


def _check_lengths(source: Source) -> None:
    limit = source.sequence_length
    too_long = sum(int((index.tokens > limit).sum()) for index in source.indexes)
    for path, index in zip(source.paths, source.indexes):
        wrong = np.flatnonzero(index.tokens > limit)
        if len(wrong):
            raise damage(
                path, index.offset[wrong[0]], f"at most sequence_length = {limit} tokens",
                f"{index.tokens[wrong[0]]}; {too_long} of {source.num_records} records of "
                f"{source.name} are too long", "raise sequence_length, or build shorter records",
            )  # fmt: skip


class RowStream:
    """Row k of an endless stream over a source: every pass has its own shuffled bundles."""

    def __init__(self, shards: Shards, plan: Plan, seed: int):
        self._shards, self._plan, self._seed = shards, plan, seed
        self._plans: dict[int, Plan] = {}  # of the latest epochs
        # Addressed at random in constant time and memory; reshuffled on each pass.
        self._shuffled = grain.MapDataset.range(plan.num_bundles).shuffle(seed=seed).repeat()

    def fill(self, k: int, tokens_T: np.ndarray, group_T: np.ndarray) -> None:
        """Writes row k into arrays that hold padding; packed records keep their groups apart."""
        bundle, row = divmod(k, self._plan.rows_per_bundle)
        plan = self._plan_of(bundle // self._plan.num_bundles)
        row += self._bundle(bundle) * plan.rows_per_bundle
        position = last_group = 0
        for record in plan.records_of(row):
            features = self._shards[record]
            tokens = features["tokens"]
            group = features.get("group", np.int64(1))
            part = slice(position, position + len(tokens))
            tokens_T[part] = tokens
            group_T[part] = np.where(group > 0, group + last_group, 0)
            position += len(tokens)
            last_group = max(last_group, int(group_T[part].max()))

    def _plan_of(self, epoch: int) -> Plan:
        plan = self._plans.get(epoch)
        if plan is None:  # two threads may both make it, with the same result
            plan = self._plans[epoch] = self._plan.of_epoch(epoch)
            for old in [*self._plans][:-_PLANS]:
                self._plans.pop(old, None)
        return plan

    def _bundle(self, k: int) -> int:
        count = self._plan.num_bundles
        if count >= _FEW_BUNDLES:
            return self._shuffled[k]
        epoch, i = divmod(k, count)
        return int(_permutation(self._seed, epoch, count)[i])


@functools.lru_cache(maxsize=16)
def _permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    # RandomState's stream is frozen: an order must not change with numpy's version.
    return np.random.RandomState([seed, epoch]).permutation(count)
