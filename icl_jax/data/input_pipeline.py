"""From `DataConfig` to batches. The n-th global batch depends only on the files, the seed and n,
not on hosts, workers or restarts.
"""

from collections.abc import Callable, Sequence
import dataclasses
import hashlib
import json
import multiprocessing
import operator
import os
import sys
import threading

from absl import flags
from etils import epath
import grain
import numpy as np

from icl_jax.config import ConfigError, DataConfig
from icl_jax.data.mixture import Mixture
from icl_jax.data.source import RowStream, Source, open_source
from icl_jax.data.tfrecord import RecordError

Batch = dict[str, np.ndarray]
_THREADS = 16  # at most, each for one batch; more than a few only help with remote files
# Batches of tokens are small, and containers often have 64 MB of shared memory.
_WITHOUT_SHARED_MEMORY = grain.experimental.DatasetOptions(min_shm_size=sys.maxsize)


@dataclasses.dataclass(frozen=True)
class Data:
    """The opened sources, and how batches mix them."""

    sources: tuple[Source, ...]
    mixture: Mixture
    batch_size: int  # global
    sequence_length: int
    seed: int

    @property
    def steps_per_epoch(self) -> float | None:
        """Steps that see every record once; None: several sources each have their own epochs."""
        return self.sources[0].num_rows / self.batch_size if len(self.sources) == 1 else None

    @property
    def smallest_token(self) -> tuple[int, epath.Path]:
        """The id and a file that has it."""
        return min(
            (index.smallest_token, path)
            for source in self.sources
            for path, index in zip(source.paths, source.indexes)
        )

    @property
    def largest_token(self) -> tuple[int, epath.Path]:
        """The id and a file that has it."""
        return max(
            (index.largest_token, path)
            for source in self.sources
            for path, index in zip(source.paths, source.indexes)
        )

    def check_vocabulary(self, vocab_size: int) -> str | None:
        """What is wrong if a model with this vocabulary reads these records; None: nothing."""
        found = [
            f"{place}: expected token ids from 0 to {vocab_size - 1}, got {token}"
            for source in self.sources
            for place, token in source.outside_vocabulary(vocab_size)
        ]
        if not found:
            return None
        more = f" (and in {len(found) - 1} more shards)" if len(found) > 1 else ""
        return f"{found[0]}{more}; set vocab_size to that of the tokenizer that made the records"

    @property
    def plan_version(self) -> int:
        """Of the rules that arranged the rows: others would give them in another order."""
        return max(source.plan.version for source in self.sources)

    def fingerprint(self) -> str:
        """Changes with the records, but not with their folder or how they are read."""
        facts = json.dumps([source.facts() for source in self.sources])
        return hashlib.sha256(facts.encode()).hexdigest()[:16]


def open_data(config: DataConfig, batch_size: int, sequence_length: int, seed: int) -> Data:
    """Finds, indexes and plans all sources; raises one RecordError that lists all problems."""
    mixture, problems = None, [f"data.{problem}" for problem in config.problems()]
    if not config.sources:
        problems.append("data.sources is empty; name at least one folder or glob of TFRecord files")
    elif not problems:
        try:
            mixture = Mixture(config.phases, len(config.sources), batch_size)
        except ConfigError as error:
            problems.append(f"data.phases: {error}")
    sources = []
    for i, name in enumerate(config.sources):
        try:
            sources.append(open_source(name, sequence_length))
            if mixture is not None:
                sources[-1].make_plan(mixture.rows_together(i), config.pack, _source_seed(seed, i))
        except (RecordError, ConfigError) as error:
            problems.append(str(error))
    if problems:
        raise RecordError("\n".join(problems))
    return Data(tuple(sources), mixture, batch_size, sequence_length, seed)


def make_batches(
    data: Data,
    *,
    steps: int,
    start: int = 0,
    rows: Sequence[int] | None = None,
    workers: int = 0,
    prefetch: int = 4,
    pad_token_id: int = 0,
) -> "BatchIterator":
    """Batches `start` to `steps - 1`, in order, read ahead in the background.

    `rows`: the rows of each global batch that this host needs; None: all.

    Use several workers only under `if __name__ == "__main__"`, because they import the main module.
    """
    batches = GlobalBatches(data, steps, rows, pad_token_id)
    reading = grain.ReadOptions(num_threads=min(prefetch, _THREADS), prefetch_buffer_size=prefetch)
    processes = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=prefetch)

    def read_from(step: int) -> grain.DatasetIterator:
        _default_grain_flags()
        dataset = grain.MapDataset.source(batches)[step:].to_iter_dataset(reading)
        dataset = grain.experimental.WithOptionsIterDataset(dataset, _WITHOUT_SHARED_MEMORY)
        return iter(dataset.mp_prefetch(processes, worker_init_fn=_begin_worker))

    return BatchIterator(read_from, start, steps)


class BatchIterator(grain.DatasetIterator):
    """Iterates over steps. Its state is the next step, for any number of workers."""

    def __init__(self, read_from: Callable[[int], grain.DatasetIterator], start: int, steps: int):
        super().__init__()
        self._read_from, self._step, self._steps = read_from, start, steps
        self._reader: grain.DatasetIterator | None = None

    def __next__(self) -> Batch:
        if self._step >= self._steps:
            self.close()
            raise StopIteration
        if self._reader is None:
            self._reader = self._read_from(self._step)
        batch = next(self._reader)
        self._step += 1
        return batch

    def get_state(self) -> dict[str, int]:
        return {"step": self._step}

    def set_state(self, state: dict[str, int]) -> None:
        self.close()
        self._step = state["step"]

    def close(self) -> None:
        """Ends threads and workers; asking for another batch would start new ones."""
        if self._reader is not None:
            self._reader.close()
        self._reader = None


class GlobalBatches(grain.sources.RandomAccessDataSource):
    """`[n]`: batch n, or the requested rows of it."""

    def __init__(
        self,
        data: Data,
        steps: int,
        rows: Sequence[int] | None = None,
        pad_token_id: int = 0,
    ):
        self._rows = np.arange(data.batch_size) if rows is None else np.asarray(rows)
        self._shape = (len(self._rows), data.sequence_length)
        self._mixture, self._steps, self._pad_token_id = data.mixture, steps, pad_token_id
        self._streams = [
            RowStream(source.shards, source.plan, _source_seed(data.seed, i))
            for i, source in enumerate(data.sources)
        ]

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, n: int) -> Batch:
        n = operator.index(n)
        if not 0 <= n < self._steps:
            raise IndexError(f"expected a step from 0 to {self._steps - 1}, got {n}")
        tokens_BT = np.full(self._shape, self._pad_token_id, np.int32)
        group_BT = np.zeros(self._shape, np.int32)
        source_B, number_B = (every[self._rows] for every in self._mixture.rows(n))
        for row, (source, number) in enumerate(zip(source_B.tolist(), number_B.tolist())):
            self._streams[source].fill(number, tokens_BT[row], group_BT[row])
        return {"tokens": tokens_BT, "group": group_BT}


def _source_seed(seed: int, source: int) -> int:
    # Grain shuffles pass e with seed + e, so the seeds of two sources must not be adjacent.
    return int(np.random.SeedSequence([seed, source]).generate_state(1)[0])


def _default_grain_flags() -> None:
    """Gives Grain's flags their defaults if no absl app has parsed them (tests, notebooks)."""
    if not flags.FLAGS.is_parsed():
        for name in flags.FLAGS:
            if name.startswith("grain_"):
                flags.FLAGS[name].present = 1


def _begin_worker(worker: int, workers: int) -> None:
    """Keeps a worker off the accelerator, and ends it with the process that started it."""
    del worker, workers
    os.environ["JAX_PLATFORMS"] = "cpu"
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_platforms", "cpu")

    def end_with_parent() -> None:  # a killed parent cannot stop its workers
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
