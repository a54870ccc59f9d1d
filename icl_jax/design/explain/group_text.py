"""Groups as people read them: each sentence with its place, and the special tokens between."""

from collections.abc import Sequence

import numpy as np

from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.design.groups import Groups
from icl_jax.design.records.layout import Marks, in_context
from icl_jax.design.sentences import Sentences


class GroupReader:
    """Reads them for the data card and for `explain`."""

    def __init__(self, sentences: Sentences, tokenizer: Tokenizer):
        self.sentences, self.marks = sentences, Marks.of(tokenizer)
        names = {mark: tokenizer.library.id_to_token(id)
                 for mark, id in self.marks._asdict().items() if id is not None}  # fmt: skip
        self.mark_names = {mark: names.get(mark) for mark in Marks._fields}
        self._name_of = {getattr(self.marks, mark): name for mark, name in names.items()}

    def read(self, groups: Groups, number: int) -> dict:
        """A group with its scores, and the special tokens around each of its sentences."""
        ids, similarities = groups.of(number)
        tokens, starts = in_context(self.sentences, *groups.place(number), self.marks)
        return {
            "group": number,
            "ids": ids.tolist(),
            "similarities": [None if np.isnan(s) else round(float(s), 4) for s in similarities],
            "tokens": len(tokens),
            **self.split(tokens, starts),
        }

    def split(self, tokens: np.ndarray, starts: np.ndarray) -> dict:
        """Of each sentence how many tokens it has, and the special tokens that follow it.

        `before` are those before the first.
        """
        pieces = np.split(tokens, starts)
        ends = [self._names(piece) for piece in pieces]
        lengths = [len(piece) - len(end) for piece, end in zip(pieces, ends)]
        return {"before": ends[0], "lengths": lengths[1:], "after": ends[1:]}

    def describe(self, ids: Sequence[int]) -> dict:
        """What is known about these sentences and their documents, by id."""
        ids = sorted(set(ids))
        documents = self.sentences.documents_of(ids).tolist()
        texts = self.sentences.text_of(ids)
        described = {
            id: {"text": text, "document": document, "position": self.sentences.position(id)}
            for id, text, document in zip(ids, texts, documents)
        }
        places = {id: self.sentences.document(id)._asdict() for id in sorted(set(documents))}
        return {"sentences": described, "documents": places}

    def _names(self, piece: np.ndarray) -> list[str]:
        """The special tokens at the end of a piece."""
        special = np.isin(piece, list(self._name_of))
        count = int(np.argmin(np.append(special[::-1], False)))
        return [self._name_of[int(token)] for token in piece[len(piece) - count :]]
