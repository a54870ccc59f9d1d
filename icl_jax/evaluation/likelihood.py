"""How likely a model finds given tokens: a GPT after the previous ones, an encoder behind masks.

A model reads tokens as its training examples have them: after the begin token, if the tokenizer has
one, and an encoder also before the end token.
"""

from collections.abc import Iterator

from jax.sharding import Mesh
import numpy as np

from icl_jax.config import ConfigError
from icl_jax.models.inputs import position_limit
from icl_jax.models.passage_losses import Passage, PassageLosses, ask, row_length
from icl_jax.training.model_at import ModelAt

ROUNDS = 7  # every 7th token is behind a mask at a time: 14%, as in training


class Likelihood:
    """Asks one model; stops if it predicts no tokens. Weights are only read by `open`."""

    def __init__(self, model: ModelAt):
        self._model, tokenizer = model, model.tokenizer
        if model.masked and not model.config.mlm_head:
            raise ConfigError(
                f"{model.path} is an encoder without MLM head, so it predicts no token; choose "
                "a GPT, or an encoder that has one"
            )
        if model.masked and tokenizer.mask_id is None:
            raise ConfigError(
                f"{model.path} predicts masked tokens, but its tokenizer has no mask token; "
                "name the folder of its own tokenizer, evaluation.tokenizer (--tokenizer of "
                "icl_jax.evaluation.run)"
            )
        self.masked = model.masked
        self.mask_id = tokenizer.mask_id if self.masked else None
        self.begin, self.end = _frame(model)
        # A model without positions of its own has seen no more than this in training.
        self.positions = position_limit(model.config) or model.config.context_length
        self.room = self.positions - len(self.begin) - len(self.end)  # for tokens that are given
        self._opened: PassageLosses | None = None

    def passage(self, tokens: np.ndarray, asked: np.ndarray, owner: int) -> Passage:
        """Asks for some of at most `room` tokens, all at once; a GPT never for the first."""
        framed = np.concatenate([self.begin, tokens, self.end]).astype(np.int32)
        chosen = np.zeros(len(framed), bool)
        chosen[len(self.begin) : len(framed) - len(self.end)] = asked
        return ask(framed, chosen, owner, self.mask_id)

    def passages(self, tokens: np.ndarray, asked: np.ndarray, owner: int) -> Iterator[Passage]:
        """Asks for them all: a GPT in one passage, an encoder in up to `ROUNDS` of them."""
        if not self.masked:
            yield self.passage(tokens, asked, owner)
            return
        places = np.flatnonzero(asked)
        for first in range(min(ROUNDS, len(places))):
            now = np.zeros(len(tokens), bool)
            now[places[first::ROUNDS]] = True
            yield self.passage(tokens, now, owner)

    def open(self, mesh: Mesh, longest: int) -> PassageLosses:
        """The model, for passages that ask for some of at most `longest` tokens."""
        if self._opened is None:
            needed = longest + self.positions - self.room
            row = row_length(needed, self.positions)
            self._opened = PassageLosses(self._model.load(mesh), row, mesh)
        return self._opened


def _frame(model: ModelAt) -> tuple[list[int], list[int]]:
    """The tokens before and after a text."""
    return model.begin, [model.tokenizer.end_of_text_id] if model.masked else []
