"""Makes one shard of the sentence table; each of its files is complete or absent.

Sentences of more than `config.max_sentence_tokens` are split or dropped. A split is made at the
last `;`, `:`, `,` or dash of the second half of what fits, else at the last space, else between two
tokens.
"""

from collections import Counter
from collections.abc import Sequence
import dataclasses
import hashlib
import itertools
import json
from pathlib import Path
import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from icl_jax.config import CorpusConfig, StageError
from icl_jax.corpus.documents import BadDocument, Document, read_documents
from icl_jax.corpus.sentences import split_document
from icl_jax.corpus.shards import Shard
from icl_jax.corpus.tokenizers import Tokenizer, open_tokenizer
from icl_jax.files.step_folder import beside, write_json

SENTENCES = "sentences-{:05d}.arrow"
DOCUMENTS = "documents-{:05d}.arrow"
_SUMMARY = "shard-{:05d}.json"
_CLAUSE_END = re.compile(r"[;:,–—] |[，；：、]")  # noqa: RUF001
_WINDOW = 16  # characters per token to look at first


@dataclasses.dataclass(frozen=True)
class ShardSummary:
    """What a finished shard holds; this file is written last and marks the shard as done."""

    documents: int
    sentences: int
    tokens: int
    dropped: dict[str, int]  # rule -> sentences or lines
    long_split: int  # sentences
    bad: list[list]  # the fields of each `BadDocument`
    checksum: str  # of the sentences


class TokenisedSentences(NamedTuple):
    """Sentences, or parts of long ones, all within the limit."""

    texts: Sequence[str]
    tokens: np.ndarray  # of all texts
    offsets: np.ndarray  # where each text's tokens begin, and the end
    origins: np.ndarray  # the sentence that each text is a part of
    split: int  # long sentences
    dropped: int  # long sentences


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
    if isinstance(texts, pa.ChunkedArray):  # Arrow returns this for more than 2 GB
        raise StageError(
            "one shard has more than 2 GB of sentences: a document is that large, or a file holds "
            "far more text than it claims; lower design.shard_megabytes, or split the file"
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


def tokenise_sentences(
    sentences: Sequence[str], tokenizer: Tokenizer, config: CorpusConfig
) -> TokenisedSentences:
    """Tokens of all sentences, with long ones treated as configured."""
    tokens, offsets = tokenizer.encode_batch(sentences)
    long = np.flatnonzero(np.diff(offsets) > config.max_sentence_tokens).tolist()
    if not long:
        return TokenisedSentences(sentences, tokens, offsets, np.arange(len(sentences)), 0, 0)
    if config.long_sentences == "split":
        made = [split_sentence(sentences[i], tokenizer, config.max_sentence_tokens) for i in long]
        split, dropped = len(long), 0
    else:
        made = [[] for _ in long]
        split, dropped = 0, len(long)
    pieces = [piece for part in made for piece in part]
    piece_tokens, piece_offsets = tokenizer.encode_batch(pieces)
    # Alternating runs of kept sentences and of pieces, as (texts, tokens, lengths, origins).
    runs, done, used = [], 0, 0
    for i, part in zip([*long, len(sentences)], [*made, []], strict=True):
        end = used + len(part)
        runs.append((*_run(sentences, tokens, offsets, done, i), np.arange(done, i)))
        runs.append((*_run(pieces, piece_tokens, piece_offsets, used, end), np.full(len(part), i)))
        done, used = i + 1, end
    texts, *arrays = zip(*runs, strict=True)
    tokens, lengths, origins = map(np.concatenate, arrays)
    offsets = np.append(0, np.cumsum(lengths))
    texts = list(itertools.chain(*texts))
    return TokenisedSentences(texts, tokens, offsets, origins, split, dropped)


def _run(texts: Sequence[str], tokens: np.ndarray, offsets: np.ndarray, start: int, stop: int):
    lengths = np.diff(offsets[start : stop + 1])
    return texts[start:stop], tokens[offsets[start] : offsets[stop]], lengths


def split_sentence(text: str, tokenizer: Tokenizer, limit: int) -> list[str]:
    """Pieces of at most `limit` tokens each that make up the text, except for spaces."""
    pieces = []
    while text:
        fitting = _fitting_characters(text, tokenizer, limit)
        if fitting < len(text):
            fitting = _cut(text, fitting)
        piece = text[:fitting].strip()
        # A piece by itself may have different tokens than it had in the text.
        while len(tokenizer.encode(piece)) > limit and len(piece) > 1:
            fitting = _cut(text, len(piece) - 2)
            piece = text[:fitting].strip()
        if len(tokenizer.encode(piece)) <= limit:  # else one character of more tokens: dropped
            pieces.append(piece)
        text = text[fitting:].lstrip()
    return pieces


def _fitting_characters(text: str, tokenizer: Tokenizer, limit: int) -> int:
    """About how many characters the first `limit` tokens take."""
    window = _WINDOW * limit
    while True:
        encoded = tokenizer.library.encode(text[:window], add_special_tokens=False)
        if len(encoded) > limit:
            return encoded.offsets[limit][0]
        if window >= len(text):
            return len(text)
        window *= 2


def _cut(text: str, most: int) -> int:
    """Where to cut a text so that at most `most` characters (and a space) are before the cut."""
    clauses = [match.end() for match in _CLAUSE_END.finditer(text, 0, most + 1)]
    if clauses and clauses[-1] > most // 2:
        return clauses[-1]
    space = text.rfind(" ", 0, most + 1)
    return space if space > 0 else max(1, most)
