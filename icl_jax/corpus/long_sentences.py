"""Sentences to tokens; those with more than `config.max_sentence_tokens` are split or dropped.

A split is made at the last `;`, `:`, `,` or dash of the second half of what fits, else at the last
space, else between two tokens.
"""

from collections.abc import Sequence
import itertools
import re
from typing import NamedTuple

import numpy as np

from icl_jax.config import CorpusConfig
from icl_jax.corpus.tokenizers import Tokenizer

_CLAUSE_END = re.compile(r"[;:,–—] |[，；：、]")  # noqa: RUF001
_WINDOW = 16  # characters to a token that are looked at, at first


class TokenisedSentences(NamedTuple):
    """Sentences, or what was made of them, all within the limit."""

    texts: Sequence[str]
    tokens: np.ndarray  # of all texts
    offsets: np.ndarray  # where each text's tokens begin, and the end
    origins: np.ndarray  # of which sentence each text is a part
    split: int  # long sentences
    dropped: int  # long sentences


def tokenise_sentences(
    sentences: Sequence[str], tokenizer: Tokenizer, config: CorpusConfig
) -> TokenisedSentences:
    """Tokens of all sentences, long ones dealt with as the config says."""
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
    # Runs of sentences that stay and of pieces, in turns, as (texts, tokens, lengths, origins).
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
    """Pieces of at most `limit` tokens each that together are the text, but for spaces."""
    pieces = []
    while text:
        fitting = _fitting_characters(text, tokenizer, limit)
        if fitting < len(text):
            fitting = _cut(text, fitting)
        piece = text[:fitting].strip()
        # A piece alone may have other tokens than it had in its place.
        while len(tokenizer.encode(piece)) > limit and len(piece) > 1:
            fitting = _cut(text, len(piece) - 2)
            piece = text[:fitting].strip()
        if len(tokenizer.encode(piece)) <= limit:  # else one character of more tokens: it goes
            pieces.append(piece)
        text = text[fitting:].lstrip()
    return pieces


def _fitting_characters(text: str, tokenizer: Tokenizer, limit: int) -> int:
    """How many characters, about, the first `limit` tokens take."""
    window = _WINDOW * limit
    while True:
        encoded = tokenizer.library.encode(text[:window], add_special_tokens=False)
        if len(encoded) > limit:
            return encoded.offsets[limit][0]
        if window >= len(text):
            return len(text)
        window *= 2


def _cut(text: str, most: int) -> int:
    """Where to cut a text so that at most `most` characters (and a space) stand before it."""
    clauses = [match.end() for match in _CLAUSE_END.finditer(text, 0, most + 1)]
    if clauses and clauses[-1] > most // 2:
        return clauses[-1]
    space = text.rfind(" ", 0, most + 1)
    return space if space > 0 else max(1, most)
