"""What perplexity is measured on: the documents of a corpus, and the groups of records."""

from collections.abc import Iterator
import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from icl_jax.config import ConfigError, CorpusConfig
from icl_jax.corpus.documents import BadDocument, Document, read_documents
from icl_jax.corpus.files import describe_files
from icl_jax.corpus.shards import plan_shards
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.data.source import open_source

SHARD_BYTES = 4 << 20
_FIELD = "evaluation.perplexity.documents"
_ANY_LENGTH = 1 << 31
_SHOWN = 3


class Text(NamedTuple):
    """Tokens that follow each other, and how long the text of those is that are predicted."""

    document: str  # which one
    tokens: np.ndarray  # int32
    characters: int
    bytes: int


class Documents:
    """The documents of a corpus; the text of each as it is, not split into sentences.

    `given` is how many tokens at the beginning of a text are not predicted.
    """

    name = "documents"

    def __init__(self, config: CorpusConfig, limit: int, tokenizer: Tokenizer, given: int):
        self._config, self._tokenizer, self._given = config, tokenizer, given
        self._shards = plan_shards(config, SHARD_BYTES, _FIELD)
        bad, counts = [], []  # of each shard that is needed
        for shard in self._shards:
            found = 0
            for document in read_documents(shard, config):
                if isinstance(document, BadDocument):
                    bad.append(document)
                    continue
                found += 1
                if sum(counts) + found == limit:
                    break
            counts.append(found)
            if sum(counts) == limit:
                break
        self._starts = list(itertools.accumulate(counts, initial=0))
        self.bad = len(bad)
        if not len(self) and not bad:
            raise ConfigError(f"{_FIELD}.files: there is no document in {', '.join(config.files)}")
        if not len(self) or self.bad > config.max_bad_share * (len(self) + self.bad):
            first = "; ".join(f"{d.file}, {d.place}: {d.reason}" for d in bad[:_SHOWN])
            raise ConfigError(
                f"{_FIELD}: {self.bad} of {len(self) + self.bad} documents are bad, more than "
                f"max_bad_share = {config.max_bad_share:g} allows: {first}. Repair the files, or "
                "raise it"
            )
        described = describe_files(config, _FIELD)  # by what they hold, wherever they are
        fields = ("format", "text_field", "text_documents")
        self.inputs = {"files": list(described.values())} | {
            field: getattr(config, field) for field in fields
        }

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int) -> Iterator[list[Text]]:
        """The one text of each of some documents."""
        for shard, (first, end) in zip(self._shards, itertools.pairwise(self._starts)):
            if first < stop and start < end:
                found = read_documents(shard, self._config)
                documents = (d for d in found if isinstance(d, Document))
                chosen = slice(max(start - first, 0), min(stop, end) - first)
                for document in itertools.islice(documents, chosen.start, chosen.stop):
                    yield [self._text(document)]

    def _text(self, document: Document) -> Text:
        encoded = self._tokenizer.library.encode(document.text, add_special_tokens=False)
        predicted = document.text
        if self._given and encoded.ids:
            predicted = predicted[encoded.offsets[self._given - 1][1] :]
        place = f"{Path(document.file).name}, {document.place}"
        lengths = len(predicted), len(predicted.encode())
        return Text(place, np.array(encoded.ids, np.int32), *lengths)


class Records:
    """Records as training reads them; each group of one is a text, special tokens included."""

    def __init__(
        self, name: str, folder: str, limit: int, tokenizer: Tokenizer, given: int, vocab_size: int
    ):
        self.name, self._tokenizer, self._given = name, tokenizer, given
        source = open_source(folder, _ANY_LENGTH)
        for place, token in source.outside_vocabulary(vocab_size):
            raise ConfigError(
                f"evaluation.perplexity.records: {place} has the token {token}, but the model "
                f"knows only 0 to {vocab_size - 1}; were the records made with its tokenizer?"
            )
        self._shards = source.shards
        self._count = min(limit or source.num_records, source.num_records)
        self.inputs = {"shards": [list(fact) for fact in source.facts()]}
        self.bad = 0

    def __len__(self) -> int:
        return self._count

    def read(self, start: int, stop: int) -> Iterator[list[Text]]:
        """The texts of each of some records."""
        for record in range(start, stop):
            features = self._shards[record]
            tokens = features["tokens"].astype(np.int32)
            group = features.get("group", np.ones_like(tokens))
            yield [
                self._text(f"record {record}, group {number}", tokens[group == number])
                for number in np.unique(group[group > 0]).tolist()
            ]

    def _text(self, document: str, tokens: np.ndarray) -> Text:
        """Characters are those of text tokens: between one special token and the next."""
        predicted = ""
        special = np.isin(tokens, special_tokens(self._tokenizer))
        edges = np.flatnonzero(np.diff(np.concatenate([[True], special, [True]])))
        for start, end in edges.reshape(-1, 2).tolist():
            text = self._tokenizer.decode(tokens[start:end])
            if start < self._given:
                text = text[len(self._tokenizer.decode(tokens[: self._given])) :]
            predicted += text
        return Text(document, tokens, len(predicted), len(predicted.encode()))


def special_tokens(tokenizer: Tokenizer) -> list[int]:
    """The ids that no text becomes."""
    return [id for id in tokenizer.special_ids.values() if id is not None]
