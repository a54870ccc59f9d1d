"""The neighbours of every sentence on disk: one Arrow file per shard of the query table."""

from collections import Counter
from collections.abc import Sequence
import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from icl_jax.config import StageError
from icl_jax.files.step_folder import beside, read_results

_SCHEMA = pa.schema(
    {"ids": pa.list_(pa.int64()), "similarities": pa.list_(pa.float32())}
)  # nearest first
SIMILARITY_EDGES = np.round(np.linspace(-1, 1, 41), 2)  # of every histogram of similarities


class Neighbours:
    """Neighbours of the queries, memory-mapped; ids are those of the searched table."""

    def __init__(self, shards: Sequence[pa.RecordBatch], results: dict):
        self.shards, self.results = list(shards), results
        self.starts = np.cumsum([0, *(len(shard) for shard in self.shards)])

    @classmethod
    def open(cls, folder: Path) -> "Neighbours":
        """The result of a finished search."""
        results = read_results(folder)
        if results is None:
            raise StageError(
                f"{folder} holds no finished search; run the stage design, with this --workdir, "
                "to its end"
            )
        return cls([read_shard(folder, shard) for shard in range(results["shards"])], results)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def of(self, sentence: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and cosine similarities of the neighbours of one query sentence, nearest first."""
        if not 0 <= sentence < len(self):
            raise IndexError(f"queries have ids 0 to {len(self) - 1}, got {sentence}")
        shard = int(np.searchsorted(self.starts, sentence, side="right")) - 1
        row = int(sentence - self.starts[shard])
        ids, similarities = self.shards[shard].columns
        first, last = ids.offsets[row].as_py(), ids.offsets[row + 1].as_py()
        return ids.values.to_numpy()[first:last], similarities.values.to_numpy()[first:last]

    def shard(self, index: int) -> pa.RecordBatch:
        """The columns `ids` and `similarities` of one shard."""
        return self.shards[index]


def write_shard(
    folder: Path,
    index: int,
    lengths: np.ndarray,
    ids: np.ndarray,
    similarities: np.ndarray,
    counts: dict[str, int],
) -> None:
    """Writes `lengths[i]` neighbours for query i, one query after the other, and the counts."""
    offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
    columns = [
        pa.ListArray.from_arrays(offsets, pa.array(values)) for values in (ids, similarities)
    ]
    schema = _SCHEMA.with_metadata({"counts": json.dumps(counts)})
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    with (
        beside(shard_file(folder, index)) as partial,
        pa.ipc.new_file(str(partial), schema) as writer,
    ):
        writer.write_batch(batch)


def read_shard(folder: Path, index: int) -> pa.RecordBatch:
    """The neighbours of one finished shard, memory-mapped."""
    return read_batch(shard_file(folder, index))


def read_batch(file: Path) -> pa.RecordBatch:
    """The one batch of an Arrow file of a step's folder, memory-mapped."""
    try:
        with pa.memory_map(str(file)) as mapped:  # the map outlives the open file
            return pa.ipc.open_file(mapped).get_batch(0)
    except (pa.ArrowException, OSError) as error:
        raise StageError(
            f"{file} is damaged ({error}); delete {file.parent} and rerun the stage design"
        ) from None


def shard_counts(shard: pa.RecordBatch) -> dict[str, int]:
    """The counts that `write_shard` was given."""
    return json.loads(shard.schema.metadata[b"counts"])


def count_neighbours(folder: Path, num_shards: int) -> dict:
    """What the finished shards of a search hold, and how much each rule left out."""
    histogram, left_out = np.zeros(len(SIMILARITY_EDGES) - 1, np.int64), Counter()
    queries = with_neighbours = 0
    for index in range(num_shards):
        shard = read_shard(folder, index)
        scores = np.minimum(shard["similarities"].values.to_numpy(), 1)  # rounding
        histogram += np.histogram(scores, SIMILARITY_EDGES)[0]
        with_neighbours += int((np.diff(shard["ids"].offsets.to_numpy()) > 0).sum())
        queries += len(shard)
        left_out.update(shard_counts(shard))
    return {
        "shards": num_shards,
        "queries": queries,
        "queries_with_neighbours": with_neighbours,
        "mean_neighbours": round(int(histogram.sum()) / max(1, queries), 3),
        "candidates_left_out": dict(left_out),
        "similarity_edges": SIMILARITY_EDGES.tolist(),
        "similarity_counts": histogram.tolist(),
    }


def share_found(wanted: np.ndarray, found: np.ndarray) -> float | None:
    """The share of `wanted` (a row for each query, -1: none) that `found` holds; None of none."""
    hits = [np.isin(row[row >= 0], ids) for row, ids in zip(wanted, found, strict=True)]
    hits = np.concatenate(hits) if hits else []
    return round(float(np.mean(hits)), 4) if len(hits) else None


def shard_file(folder: Path, index: int) -> Path:
    """The file of the neighbours of a shard."""
    return folder / f"neighbours-{index:05d}.arrow"
