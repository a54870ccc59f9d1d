"""Brackets of k types, nested at most D deep: rows of them, what closes them, and their odds.

Token 0 is START; then come the k openings and the k closings. The depth of a bracket is the size
of the stack after it. Liu 2024, 3.6.1, definition 12. Shape suffixes: B batch, T time.
"""

from collections.abc import Sequence
import dataclasses
import functools
import string
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata.library import make
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton

START = 0
BRACKETS = ("[]", "()", "{}", "<>")  # how up to four types are written
LETTERS = string.ascii_lowercase  # how more of them are: a opens, A closes
EMPTY = -1  # the type on top of an empty stack


class Rows(NamedTuple):
    """Prefixes of words, each after START."""

    tokens_BT: jax.Array
    top_BT: jax.Array  # the type that a closing must have after each token, or EMPTY


@dataclasses.dataclass(frozen=True)
class Dyck:
    """The language, with the probability of an opening where both are possible."""

    types: int = 2
    depth: int = 4
    opening: float = 0.5

    def __post_init__(self):
        if not 0 < self.opening < 1:
            raise ConfigError(
                f"the probability of an opening must be between 0 and 1, got {self.opening}; at "
                "depth 0 brackets always open and at the largest depth they always close"
            )
        _ = self.automaton  # refuses types and depths

    @functools.cached_property
    def automaton(self) -> Semiautomaton:
        """Its stacks; of each is seen 1 + the type on top, or 0."""
        stacks = make(f"Dyck({self.depth},{self.types})")
        top = lambda q: 1 + LETTERS.index(stacks.states[q][-1])  # noqa: E731
        return stacks.observed(
            stacks.name, lambda q: 0 if q == stacks.start else top(q), self.types + 1
        )

    @property
    def num_tokens(self) -> int:
        """START and both brackets of each type."""
        return 1 + 2 * self.types

    @property
    def num_typed(self) -> int:
        """The (type, depth) tokens and START: the M rows of a minimal first layer."""
        return 1 + 2 * self.types * self.depth

    def sample(self, key: jax.Array, rows: int, length: int) -> Rows:
        """Prefixes of `length` brackets after START, made on the device."""
        # Among the legal letters there is one closing at most, so that openings have their share.
        weights = [self.opening / self.types] * self.types + [1 - self.opening] * self.types
        drawn = self.automaton.sample(key, rows, length, weights)
        first_B1 = jnp.full((rows, 1), START, jnp.int32)
        return Rows(
            jnp.concatenate([first_B1, 1 + drawn["letters"]], axis=1),
            jnp.concatenate([first_B1 + EMPTY, drawn["labels"] - 1], axis=1),
        )

    def is_closing(self, tokens_BT: jax.Array) -> jax.Array:
        """Whether each token closes a bracket."""
        return tokens_BT > self.types

    def typed(self, tokens_BT: jax.Array) -> jax.Array:
        """The (type, depth) token of each: START, then openings of depth 1..D, closings of 0..D-1.

        They are numbered by type, and by depth within a type.
        """
        closes_BT = self.is_closing(tokens_BT)
        change_BT = jnp.where(tokens_BT == START, 0, jnp.where(closes_BT, -1, 1))
        depth_BT = jnp.cumsum(change_BT, axis=1)
        type_BT = (tokens_BT - 1) % self.types
        opening_BT = 1 + type_BT * self.depth + depth_BT - 1
        closing_BT = 1 + (self.types + type_BT) * self.depth + depth_BT
        return jnp.where(tokens_BT == START, START, jnp.where(closes_BT, closing_BT, opening_BT))

    def nested(self, kinds: Sequence[int]) -> np.ndarray:
        """Pairs of these types, each inside the one before it."""
        kinds = np.asarray(kinds, np.int32)
        return np.concatenate([1 + kinds, 1 + self.types + kinds[::-1]])

    def every_bracket(self) -> np.ndarray:
        """One row: the pairs of each type, nested as deep as can be, as in [[[[]]]](((())))."""
        pairs = [self.nested([kind] * self.depth) for kind in range(self.types)]
        return np.concatenate([[START], *pairs])[None].astype(np.int32)

    @property
    def symbols(self) -> str:
        """How each token is written; START is a dot."""
        pairs = BRACKETS if self.types <= len(BRACKETS) else [f"{c}{c.upper()}" for c in LETTERS]
        opening, closing = zip(*pairs[: self.types], strict=True)
        return "".join(("·", *opening, *closing))

    def read(self, text: str) -> np.ndarray:
        """The tokens of a string of brackets, after START; stops unless it is a prefix."""
        brackets = self.symbols[1:]
        for place, letter in enumerate(text):
            if letter not in brackets:
                raise ConfigError(
                    f"place {place} of '{text}' has '{letter}', but the brackets of {self.types} "
                    f"types are {brackets}"
                )
        tokens = np.array([START, *(1 + brackets.index(letter) for letter in text)], np.int32)
        self.check(tokens[None])
        return tokens

    def check(self, tokens_BT: np.ndarray) -> np.ndarray:
        """The type on top after each token, in NumPy; stops at the first that may not come."""
        tokens_BT = np.asarray(tokens_BT)
        if tokens_BT.ndim != 2 or not np.issubdtype(tokens_BT.dtype, np.integer):
            raise ConfigError(
                f"tokens must be integers (batch, time), got {tokens_BT.dtype} of shape "
                f"{tokens_BT.shape}"
            )
        top_BT = np.full(tokens_BT.shape, EMPTY, np.int32)
        for row, tokens in enumerate(tokens_BT.tolist()):
            stack: list[int] = []
            for place, token in enumerate(tokens):
                if problem := self._problem(place, token, stack):
                    raise ConfigError(f"row {row}, place {place}: {problem}")
                if token > self.types:
                    stack.pop()
                elif token != START:
                    stack.append(token - 1)
                top_BT[row, place] = stack[-1] if stack else EMPTY
        return top_BT

    def _problem(self, place: int, token: int, stack: list[int]) -> str | None:
        """Why a token may not come on a stack."""
        if not 0 <= token < self.num_tokens:
            return f"token {token} is not of 0 to {self.num_tokens - 1}; rows begin with {START}"
        if (token == START) != (place == 0):
            return f"token {token}, but {START} is the first of a row and only there"
        if token == START:
            return None
        if token <= self.types and len(stack) == self.depth:
            return (
                f"an opening at depth {self.depth + 1}, but the language is {self.depth} deep; "
                f"set depth={self.depth + 1} or more"
            )
        if token > self.types and not stack:
            return "a closing where nothing is open"
        if token > self.types and stack[-1] != token - 1 - self.types:
            return f"closes type {token - 1 - self.types}, but type {stack[-1]} is open"
        return None

    def probability(self, tokens_T: np.ndarray) -> float:
        """That of one prefix, which begins with START; NumPy."""
        self.check(np.asarray(tokens_T)[None])
        found, depth = 1.0, 0
        for token in tokens_T[1:]:
            opens = token <= self.types
            if 0 < depth < self.depth:
                found *= self.opening if opens else 1 - self.opening
            if opens:
                found /= self.types
            depth += 1 if opens else -1
        return found
