"""Groups on disk: which sentences share a context. One Arrow file per shard of a strategy.

A strategy writes `groups-00000.arrow`, ... into its folder; everything after it (gain filter,
records, data card) reads groups, whatever strategy made them.
"""

from collections.abc import Sequence
import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from icl_jax.config import StageError
from icl_jax.files.step_folder import beside, read_results
from icl_jax.retrieval.neighbours import read_batch

NO_SCORE = np.float32(np.nan)  # the similarity of a sentence that was not chosen by one


@dataclasses.dataclass
class GroupShard:
    """Groups one after the other; group i has the sentences from offsets[i] to offsets[i + 1].

    If groups are running text, they have their tokens too (without special ones at either end), and
    the place where each sentence begins in the tokens of its group.
    """

    offsets: np.ndarray  # int64, one more than groups
    ids: np.ndarray  # int64, of `Sentences`; the query of a group comes first
    similarities: np.ndarray  # float32, to the query, whose own is 1; NaN: no score
    tokens: np.ndarray | None = None  # int32
    token_offsets: np.ndarray | None = None  # int64, one more than groups
    starts: np.ndarray | None = None  # int32, like ids

    def __len__(self) -> int:
        return len(self.offsets) - 1


class Groups:
    """All groups of a finished strategy, memory-mapped and numbered through its shards."""

    def __init__(self, shards: Sequence[GroupShard], results: dict):
        self.shards, self.results = list(shards), results
        self.starts = np.cumsum([0, *map(len, self.shards)])

    @classmethod
    def open(cls, folder: Path) -> "Groups":
        """The groups of a finished strategy."""
        results = read_results(folder)
        if results is None:
            raise StageError(
                f"{folder} holds no finished groups; run the design stage with this --workdir to "
                "the end"
            )
        return cls([read_groups(folder, shard) for shard in range(results["shards"])], results)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def place(self, group: int) -> tuple[GroupShard, int]:
        """The shard of a group and its row there."""
        if not 0 <= group < len(self):
            raise IndexError(f"groups have numbers 0 to {len(self) - 1}, got {group}")
        shard = int(np.searchsorted(self.starts, group, side="right")) - 1
        return self.shards[shard], int(group - self.starts[shard])

    def of(self, group: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and similarities of the sentences of a group, in their order."""
        shard, row = self.place(group)
        part = slice(shard.offsets[row], shard.offsets[row + 1])
        return shard.ids[part], shard.similarities[part]

    @property
    def sizes(self) -> np.ndarray:
        """How many sentences each group has."""
        sizes = [np.diff(shard.offsets) for shard in self.shards]
        return np.concatenate([np.empty(0, np.int64), *sizes])


def write_groups(
    folder: Path, index: int, groups: GroupShard, counts: dict[str, int] | None = None
) -> None:
    """Writes one shard, whole or not at all, with `counts` besides those of every strategy."""
    columns = {
        "sentence_ids": _lists(groups.offsets, groups.ids, np.int64),
        "similarities": _lists(groups.offsets, groups.similarities, np.float32),
    }
    if groups.tokens is not None:
        columns["tokens"] = _lists(groups.token_offsets, groups.tokens, np.int32)
        columns["starts"] = _lists(groups.offsets, groups.starts, np.int32)
    counts = {"groups": len(groups), "sentences": len(groups.ids), **(counts or {})}
    batch = pa.record_batch(columns).replace_schema_metadata({"counts": json.dumps(counts)})
    with (
        beside(group_file(folder, index)) as partial,
        pa.ipc.new_file(str(partial), batch.schema) as writer,
    ):
        writer.write_batch(batch)


def read_groups(folder: Path, index: int) -> GroupShard:
    """One finished shard, memory-mapped."""
    batch = read_batch(group_file(folder, index))
    values = {name: batch[name].values.to_numpy() for name in batch.schema.names}
    offsets = {name: batch[name].offsets.to_numpy() for name in batch.schema.names}
    ids, similarities = values["sentence_ids"], values["similarities"]
    return GroupShard(
        offsets["sentence_ids"], ids, similarities,
        values.get("tokens"), offsets.get("tokens"), values.get("starts"),
    )  # fmt: skip


def read_counts(folder: Path, index: int) -> dict[str, int]:
    """The counts that were written with a shard."""
    return json.loads(read_batch(group_file(folder, index)).schema.metadata[b"counts"])


def read_keep(folder: Path, index: int, count: int) -> np.ndarray:
    """Which groups of a shard the gain filter kept; all if it did not run."""
    file = keep_file(folder, index)
    return np.load(file) if file.exists() else np.ones(count, bool)


def keep_file(folder: Path, index: int) -> Path:
    """The file in which the gain filter says which groups of a shard it keeps."""
    return folder / f"keep-{index:05d}.npy"


def group_file(folder: Path, index: int) -> Path:
    """The file of the groups of a shard."""
    return folder / f"groups-{index:05d}.arrow"


def _lists(offsets: np.ndarray, values: np.ndarray, dtype) -> pa.LargeListArray:
    values = pa.array(np.asarray(values, dtype))
    return pa.LargeListArray.from_arrays(pa.array(np.asarray(offsets, np.int64)), values)
