"""Documents as running text: sentences with a space between them, as they stood."""

import numpy as np

from icl_jax.config import StageError
from icl_jax.corpus.sentence_table import SentenceTable
from icl_jax.corpus.tokenizers import Tokenizer


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
    """Stops where a chunk of running text, `longest` tokens, passes the room that there is."""
    if longest > room:
        raise StageError(
            f"a sentence has {longest} tokens with the space before it and the end of its document "
            f"behind, but a context has room for {room}; raise design.examples.max_tokens or "
            "lower design.corpus.max_sentence_tokens"
        )
