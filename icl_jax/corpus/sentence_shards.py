"""Makes one shard of the sentence table; every file of it is whole or not there."""

from collections import Counter
from collections.abc import Sequence
import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from icl_jax.config import CorpusConfig, StageError
from icl_jax.corpus.documents import BadDocument, Document, read_documents
from icl_jax.corpus.long_sentences import TokenisedSentences, tokenise_sentences
from icl_jax.corpus.sentences import split_document
from icl_jax.corpus.shards import Shard
from icl_jax.corpus.tokenizers import open_tokenizer
from icl_jax.files.step_folder import beside, write_json

SENTENCES = "sentences-{:05d}.arrow"
DOCUMENTS = "documents-{:05d}.arrow"
_SUMMARY = "shard-{:05d}.json"


@dataclasses.dataclass(frozen=True)
class ShardSummary:
    """What a finished shard holds; its file is written last, so that it marks the shard as done."""

    documents: int
    sentences: int
    tokens: int
    dropped: dict[str, int]  # rule -> sentences or lines
    long_split: int  # sentences
    bad: list[list]  # the fields of each `BadDocument`
    checksum: str  # of the sentences


def make_shard(
    shard: Shard, config: CorpusConfig, tokenizer: str, fingerprint: str, folder: str, index: int
) -> None:
    """Reads, splits, tokenises and writes one shard; `tokenizer` is the folder of one."""
    found, bad, sentences, sizes, counts = [], [], [], [], Counter()
    for document in read_documents(shard, config):
        if isinstance(document, BadDocument):
            bad.append(list(document))
            continue
        own, dropped = split_document(document, config)
        sentences += own
        counts += dropped
        sizes.append(len(own))
        found.append(document._replace(text=""))
    tokenised = tokenise_sentences(sentences, open_tokenizer(tokenizer, fingerprint), config)
    counts["long"] = tokenised.dropped
    checksum = _write_table(Path(folder) / SENTENCES.format(index), _sentences(tokenised, sizes))
    _write_table(Path(folder) / DOCUMENTS.format(index), _documents(found))
    summary = ShardSummary(
        documents=len(found),
        sentences=len(tokenised.texts),
        tokens=len(tokenised.tokens),
        dropped=dict(sorted((+counts).items())),
        long_split=tokenised.split,
        bad=bad,
        checksum=checksum,
    )
    write_json(Path(folder) / _SUMMARY.format(index), dataclasses.asdict(summary))


def read_summary(folder: Path, index: int) -> ShardSummary | None:
    """The summary of a finished shard, or None."""
    file = folder / _SUMMARY.format(index)
    return ShardSummary(**json.loads(file.read_text())) if file.exists() else None


def _sentences(tokenised: TokenisedSentences, sizes: Sequence[int]) -> pa.RecordBatch:
    document = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)[tokenised.origins]
    first = np.searchsorted(document, document)  # sentence of the same document
    position = (np.arange(len(document)) - first).astype(np.int32)
    offsets = pa.array(tokenised.offsets.astype(np.int32))
    texts = pa.array(tokenised.texts, pa.string())
    if isinstance(texts, pa.ChunkedArray):  # so Arrow does with more than 2 GB
        raise StageError(
            "one shard has more than 2 GB of sentences: a document is that large, or a file holds "
            "far more text than it states; lower design.shard_megabytes, or divide the file"
        )
    return pa.record_batch(
        {
            "text": texts,
            "tokens": pa.ListArray.from_arrays(offsets, pa.array(tokenised.tokens)),
            "document": pa.array(document),
            "position": pa.array(position),
        }
    )


def _documents(documents: Sequence[Document]) -> pa.RecordBatch:
    fields = ("file", "place", "name", "title")
    columns = {f: pa.array([getattr(d, f) for d in documents], pa.string()) for f in fields}
    return pa.record_batch(columns)


def _write_table(path: Path, batch: pa.RecordBatch) -> str:
    """Writes an Arrow file of one batch; returns its checksum."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = sink.getvalue()
    with beside(path) as partial:
        partial.write_bytes(content)
    return hashlib.sha256(content).hexdigest()[:32]
