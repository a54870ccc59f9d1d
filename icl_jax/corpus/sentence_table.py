"""The sentence table: every sentence of a corpus by id, with tokens, document and position."""

from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import importlib.metadata
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from icl_jax.config import CorpusConfig, StageError
from icl_jax.corpus.files import describe_files
from icl_jax.corpus.sentence_shards import (
    DOCUMENTS,
    SENTENCES,
    ShardSummary,
    make_shard,
    read_summary,
)
from icl_jax.corpus.sentences import RULES_VERSION
from icl_jax.corpus.shards import plan_shards
from icl_jax.corpus.table_results import (
    add_up,
    check_bad_documents,
    check_sentences,
    describe_table,
)
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.files.step_folder import StepFolder, beside, once, read_results
from icl_jax.workers.local import Runner
from icl_jax.workers.shards import make_shards

_FIRST_SHARDS = 16
COLUMN = "{}.npy"


class DocumentInfo(NamedTuple):
    """The location of a document."""

    file: str
    place: str
    name: str
    title: str


class SentenceTable:
    """The sentences of all shards in sequence, in memory-mapped files."""

    def __init__(self, folder: Path, results: dict):
        self.folder = folder
        self.fingerprint: str = results["fingerprint"]
        self.num_shards = len(results["shard_sentences"])
        self.starts = np.cumsum([0, *results["shard_sentences"]], dtype=np.int64)
        self.document_starts = np.cumsum([0, *results["shard_documents"]], dtype=np.int64)
        self.num_documents = int(self.document_starts[-1])
        self._sentences = self._open(SENTENCES, results["shard_sentences"])
        self._documents = self._open(DOCUMENTS, results["shard_documents"])
        self._texts = [batch.column("text") for batch in self._sentences]
        tokens = [batch.column("tokens") for batch in self._sentences]
        self._tokens = [(lists.values.to_numpy(), lists.offsets.to_numpy()) for lists in tokens]

    @classmethod
    def open(cls, folder: Path) -> "SentenceTable":
        """The complete table in a folder."""
        results = read_results(Path(folder))
        if results is None:
            raise StageError(
                f"{folder} holds no complete sentence table; rerun the design stage, which "
                "continues after the last finished shard"
            )
        return cls(Path(folder), results)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def text(self, sentence: int) -> str:
        """The text of one sentence."""
        shard, row = self._place(sentence, self.starts)
        return self._texts[shard][row].as_py()

    def tokens(self, sentence: int) -> np.ndarray:
        """The tokens of one sentence, without special tokens (int32)."""
        shard, row = self._place(sentence, self.starts)
        values, offsets = self._tokens[shard]
        return values[offsets[row] : offsets[row + 1]]

    def texts(self, shard: int) -> pa.StringArray:
        """All texts of one shard, mapped from disk."""
        return self._texts[shard]

    def text_of(self, ids: Sequence[int]) -> list[str]:
        """The texts of some sentences, in the order of the given ids."""
        ids = np.asarray(ids, np.int64)
        shard_of = np.searchsorted(self.starts, ids, side="right") - 1
        found = np.empty(len(ids), object)
        for shard in np.unique(shard_of):
            chosen = np.flatnonzero(shard_of == shard)
            rows = pa.array(ids[chosen] - self.starts[shard])
            found[chosen] = self._texts[shard].take(rows).to_pylist()
        return found.tolist()

    @functools.cached_property
    def documents(self) -> np.ndarray:
        """The document id of every sentence (int64)."""
        return self._column("documents")

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """The number of tokens of every sentence (int32)."""
        return self._column("lengths")

    @functools.cached_property
    def positions(self) -> np.ndarray:
        """The place of every sentence in its document, from 0 (int32)."""
        return self._column("positions")

    def document(self, id: int) -> DocumentInfo:
        """What is known about a document."""
        shard, row = self._place(id, self.document_starts)
        columns = self._documents[shard]
        return DocumentInfo(*(columns.column(f)[row].as_py() for f in DocumentInfo._fields))

    def _column(self, name: str) -> np.ndarray:
        """Memory-mapped, so that all processes of a machine share it."""
        path = self.folder / COLUMN.format(name)
        try:
            return np.load(path, mmap_mode="r" if len(self) else None).view(np.ndarray)
        except (OSError, ValueError) as error:
            raise StageError(
                f"{path} is damaged ({error}); delete {self.folder} and run the design stage again"
            ) from None

    def _place(self, id: int, starts: np.ndarray) -> tuple[int, int]:
        if not 0 <= id < starts[-1]:
            raise IndexError(f"expected an id from 0 to {starts[-1] - 1}, got {id}")
        shard = int(np.searchsorted(starts, id, side="right")) - 1
        return shard, int(id - starts[shard])

    def _open(self, name: str, sizes: Sequence[int]) -> list[pa.RecordBatch]:
        batches = []
        for index, size in enumerate(sizes):
            path = self.folder / name.format(index)
            try:
                with pa.memory_map(str(path)) as file:  # the mapping outlives the file object
                    batch = pa.ipc.open_file(file).get_batch(0)
                damage = "" if len(batch) == size else f"{len(batch)} rows instead of {size}"
            except (pa.ArrowException, OSError) as error:
                damage = str(error)
            if damage:
                raise StageError(
                    f"{path} is damaged ({damage}); delete {self.folder} and run the design stage "
                    "again"
                )
            batches.append(batch)
        return batches


@functools.lru_cache(maxsize=2)
def open_table(folder: str, fingerprint: str) -> SentenceTable:
    """`SentenceTable.open`, kept from shard to shard; another fingerprint means another table."""
    table = SentenceTable.open(Path(folder))
    assert table.fingerprint == fingerprint, f"{folder} changed while it was read"
    return table


def build_table(
    config: CorpusConfig,
    tokenizer_folder: Path,
    folder: Path,
    shard_bytes: int,
    runner: Runner,
    field: str = "design.corpus",
) -> SentenceTable:
    """Builds or continues the table of a corpus; opens it if it is complete.

    `field` is the place of the config, for errors.
    """
    fingerprint = Tokenizer.open(tokenizer_folder).fingerprint
    step = StepFolder(folder, _inputs(config, fingerprint, shard_bytes, field))
    if step.results is None:
        shards = plan_shards(config, shard_bytes, field)
        first = (config, str(tokenizer_folder), fingerprint, str(folder))
        for stop in (_FIRST_SHARDS, len(shards)):  # to stop early if the first of them are bad
            make_shards(
                "sentence table", folder, [shard.bytes for shard in shards],
                lambda index: read_summary(folder, index) is not None, make_shard,
                lambda index: (shards[index], *first, index), runner, "B", stop=stop,
            )  # fmt: skip
            once(folder, _check, config, folder, stop, len(shards), field)
        step.complete(lambda: _finish(folder, len(shards), field))
    return SentenceTable.open(folder)


def _inputs(config: CorpusConfig, tokenizer: str, shard_bytes: int, field: str) -> dict:
    fields = dataclasses.asdict(config)
    del fields["max_bad_share"]  # decides whether the table is accepted, not what it holds
    return {
        "files": describe_files(config, field),
        "corpus": fields,
        "tokenizer": tokenizer,
        "shard_bytes": shard_bytes,
        "rules": RULES_VERSION,
        "sentencex": importlib.metadata.version("sentencex"),
    }


def _check(config: CorpusConfig, folder: Path, stop: int, num_shards: int, field: str) -> None:
    """Looks at the documents of the shards that are made, those before `stop`."""
    summaries = [read_summary(folder, index) for index in range(min(stop, num_shards))]
    check_bad_documents(summaries, config, folder, stop >= num_shards, field)


def _finish(folder: Path, num_shards: int, field: str) -> dict:
    """Adds up the finished shards."""
    summaries = [read_summary(folder, index) for index in range(num_shards)]
    check_sentences(summaries, field)
    _write_columns(folder, summaries)
    results = add_up(summaries)
    print(describe_table(results, folder, field), flush=True)
    return results


def _write_columns(folder: Path, summaries: Sequence[ShardSummary]) -> None:
    """Properties looked up by sentence id, each in one array over all shards."""
    ends = np.cumsum([summary.sentences for summary in summaries])
    documents = np.cumsum([0, *(summary.documents for summary in summaries)])
    with contextlib.ExitStack() as files:
        columns = {}
        for name, dtype in {"documents": "i8", "lengths": "i4", "positions": "i4"}.items():
            partial = files.enter_context(beside(folder / COLUMN.format(name)))
            shape = (int(ends[-1]),)
            columns[name] = np.lib.format.open_memmap(partial, "w+", np.dtype(dtype), shape)
        for index, end in enumerate(ends):
            with pa.memory_map(str(folder / SENTENCES.format(index))) as file:
                shard = pa.ipc.open_file(file).get_batch(0)
            part = slice(end - len(shard), end)
            columns["documents"][part] = shard.column("document").to_numpy() + documents[index]
            columns["lengths"][part] = np.diff(shard.column("tokens").offsets.to_numpy())
            columns["positions"][part] = shard.column("position").to_numpy()
        for column in columns.values():
            column.flush()
