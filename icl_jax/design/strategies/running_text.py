"""Documents as running text: their sentences in order, with a space between them."""

from typing import TYPE_CHECKING

import numpy as np

from icl_jax.config import StageError
from icl_jax.corpus.sentence_table import SentenceTable
from icl_jax.corpus.tokenizers import Tokenizer

if TYPE_CHECKING:
    from icl_jax.design.explain.reasons import Reasons


def running_tokens(
    table: SentenceTable, first: int, last: int, tokenizer: Tokenizer
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of the sentences from `first` to before `last`, and where each begins (one more).

    A sentence that is not the first of its document is encoded with the space before it, so that a
    document has the tokens that its sentences have when joined by spaces.
    """
    texts = table.text_of(range(first, last))
    follows = (table.positions[first:last] > 0).tolist()
    return tokenizer.encode_batch([" " * after + text for text, after in zip(texts, follows)])


def check_room(longest: int, room: int) -> None:
    """Stops if a chunk of running text, `longest` tokens, exceeds the room that there is."""
    if longest > room:
        raise StageError(
            f"a sentence has {longest} tokens with the space before it and the end of its document "
            f"after it, but a context has room for {room}; raise design.examples.max_tokens or "
            "lower design.corpus.max_sentence_tokens"
        )


def sentence_does_not_fit(reasons: "Reasons", what: str, sentence: int, left: int) -> str:
    """Explains that a context had only `left` tokens for this sentence."""
    length, end = sentence_tokens(reasons, sentence)
    ended = " and ends its document with one more" if end else ""
    return (
        f"{what}, #{sentence}, has {length} tokens{ended}, but only {left} of {reasons.limit} "
        "were left"
    )


def sentence_tokens(reasons: "Reasons", sentence: int) -> tuple[int, int]:
    """The tokens of a sentence in running text, and of the end of its document after it."""
    corpus = reasons.sentences.corpus
    tokens, _ = running_tokens(corpus, sentence, sentence + 1, reasons.tokenizer)
    documents = corpus.documents
    ends = sentence + 1 == len(corpus) or documents[sentence + 1] != documents[sentence]
    return len(tokens), int(ends and reasons.marks.begin is None)
