"""How the sentences of a group are laid out in an example.

In context: [begin] sentence [separator] sentence ... [end]. In batch, each sentence is an example
of its own: [begin] sentence [end]. Only tokenizers with a token for it (RoBERTa, BERT) have
[begin]. Without [begin], running text ends with [end] where a document ends; with it, always.
"""

from typing import NamedTuple

import numpy as np

from icl_jax.config.design import ONE_QUERY
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.design.groups import GroupShard
from icl_jax.design.sentences import Sentences


class Example(NamedTuple):
    """The tokens of one training example, and the places where its sentences begin."""

    tokens: np.ndarray  # int32
    starts: np.ndarray  # int32


class Marks(NamedTuple):
    """The special tokens of examples."""

    begin: int | None
    separator: int
    end: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Marks":
        """Those of a tokenizer."""
        return cls(tokenizer.begin_of_text_id, tokenizer.separator_id, tokenizer.end_of_text_id)

    @property
    def ends(self) -> int:
        """How many an example has besides its separators."""
        return 1 if self.begin is None else 2

    def between(self, row_holds: str) -> int:
        """How many each further sentence of a group adds, at most, in the layouts that share rows.

        A separator in context. With one query a row, the group must fit into it in batch too, where
        each sentence has the ends of an example.
        """
        return self.ends if row_holds == ONE_QUERY else 1


def in_context(sentences: Sentences, shard: GroupShard, row: int, marks: Marks) -> Example:
    """The whole group as one example."""
    first, last = shard.offsets[row], shard.offsets[row + 1]
    if shard.tokens is not None:
        part = slice(shard.token_offsets[row], shard.token_offsets[row + 1])
        return _running(shard.tokens[part], shard.starts[first:last], marks)
    pieces, starts, length = [], [], 0
    if marks.begin is not None:
        pieces.append([marks.begin])
        length = 1
    for sentence in shard.ids[first:last]:
        tokens = sentences.tokens(sentence)
        starts.append(length)
        pieces += [tokens, [marks.separator]]
        length += len(tokens) + 1
    pieces[-1] = [marks.end]
    return Example(np.concatenate(pieces).astype(np.int32), np.array(starts, np.int32))


def in_batch(sentences: Sentences, shard: GroupShard, row: int, marks: Marks) -> list[Example]:
    """Each sentence of the group as an example of its own."""
    examples = []
    begin = [] if marks.begin is None else [marks.begin]
    for sentence in shard.ids[shard.offsets[row] : shard.offsets[row + 1]]:
        tokens = np.concatenate([begin, sentences.tokens(sentence), [marks.end]])
        examples.append(Example(tokens.astype(np.int32), np.array([len(begin)], np.int32)))
    return examples


def _running(tokens: np.ndarray, starts: np.ndarray, marks: Marks) -> Example:
    """Running text already has the ends of its documents; only RoBERTa's frame is missing."""
    if marks.begin is None:
        return Example(np.asarray(tokens, np.int32), np.asarray(starts, np.int32))
    ended = len(tokens) and tokens[-1] == marks.end
    framed = [[marks.begin], tokens, [] if ended else [marks.end]]
    return Example(np.concatenate(framed).astype(np.int32), np.asarray(starts + 1, np.int32))
