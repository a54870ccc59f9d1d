"""All sentences that an example may hold, under one numbering: the corpus, then the queries."""

from collections.abc import Sequence
import functools
from pathlib import Path

import numpy as np

from icl_jax.corpus.sentence_table import DocumentInfo, SentenceTable
from icl_jax.design.folders import DesignFolders


class Sentences:
    """Sentence and document ids of the corpus are those of its table; those of queries follow.

    If the corpus is searched with its own sentences, every sentence of it is a query.
    """

    def __init__(self, corpus: SentenceTable, queries: SentenceTable | None = None):
        self.corpus, self.queries = corpus, queries
        self.tables = [corpus] if queries is None else [corpus, queries]
        self.fingerprint = " ".join(table.fingerprint for table in self.tables)
        self.first_query = 0 if queries is None else len(corpus)
        self.num_documents = sum(table.num_documents for table in self.tables)

    @classmethod
    def open(cls, workdir: str | Path, has_queries: bool | None = None) -> "Sentences":
        """Those of a workdir; None: of a finished build, which knows whether it has queries."""
        folders = DesignFolders(workdir)
        if has_queries is None:
            has_queries = folders.has_queries
        corpus = SentenceTable.open(folders.corpus)
        return cls(corpus, SentenceTable.open(folders.queries) if has_queries else None)

    def __len__(self) -> int:
        return sum(map(len, self.tables))

    @property
    def num_tokens(self) -> int:
        """Of all sentences."""
        return sum(int(table.lengths.sum(dtype=np.int64)) for table in self.tables)

    @property
    def query_table(self) -> SentenceTable:
        """The table of the queries; its sentence i has the id `first_query + i`."""
        return self.queries or self.corpus

    def lengths_of(self, ids: np.ndarray) -> np.ndarray:
        """How many tokens each of these sentences has."""
        return self._look_up("lengths", ids, 0)

    def documents_of(self, ids: np.ndarray) -> np.ndarray:
        """The ids of the documents of these sentences."""
        return self._look_up("documents", ids, self.corpus.num_documents)

    def _look_up(self, column: str, ids: np.ndarray, shift: int) -> np.ndarray:
        ids = np.asarray(ids, np.int64)
        of_query = ids >= len(self.corpus)
        if not of_query.any():
            return getattr(self.corpus, column)[ids]
        found = np.empty(ids.shape, np.int64)
        found[~of_query] = getattr(self.corpus, column)[ids[~of_query]]
        own = getattr(self.queries, column)[ids[of_query] - len(self.corpus)]
        found[of_query] = own + shift
        return found

    def tokens(self, sentence: int) -> np.ndarray:
        """The tokens of one sentence, without special ones (int32)."""
        return self._call("tokens", sentence, len(self.corpus))

    def text(self, sentence: int) -> str:
        """The text of one sentence."""
        return self._call("text", sentence, len(self.corpus))

    def text_of(self, ids: Sequence[int]) -> list[str]:
        """The texts of some sentences, in the order of their ids here."""
        ids = np.asarray(ids, np.int64)
        of_query = ids >= len(self.corpus)
        found = np.empty(len(ids), object)
        found[~of_query] = self.corpus.text_of(ids[~of_query])
        if of_query.any():
            found[of_query] = self.queries.text_of(ids[of_query] - len(self.corpus))
        return found.tolist()

    def position(self, sentence: int) -> int:
        """The place of a sentence in its document, from 0."""
        table, id = self._place(sentence, len(self.corpus))
        return int(table.positions[id])

    def document(self, id: int) -> DocumentInfo:
        """What is known about a document."""
        return self._call("document", id, self.corpus.num_documents)

    def _place(self, id: int, corpus_size: int) -> tuple[SentenceTable, int]:
        id = int(id)
        if id < corpus_size or self.queries is None:  # out of range: the table says so
            return self.corpus, id
        return self.queries, id - corpus_size

    def _call(self, method: str, id: int, corpus_size: int):
        table, id = self._place(id, corpus_size)
        return getattr(table, method)(id)


@functools.lru_cache(maxsize=1)
def open_sentences(workdir: str, fingerprint: str) -> Sentences:
    """As `Sentences.open`, kept from shard to shard; another fingerprint is another workdir."""
    sentences = Sentences.open(workdir, has_queries=" " in fingerprint)
    assert sentences.fingerprint == fingerprint, "the tables changed while they were read"
    return sentences
