"""Flip-flop languages: rows of instructions and bits, in which what is read was written last.

A row is T/2 pairs of an instruction (write, read, ignore) and a bit. The first writes and the last
reads; the bit of a read is that of the latest write, all others are fair coins (Liu 2024, 3.5.1.2).
Shape suffixes: B batch, T tokens, N pairs, M languages.
"""

from collections.abc import Sequence
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import ConfigError

WRITE, READ, IGNORE, ZERO, ONE = range(5)
TOKENS = "wri01"
SHORTEST = 4  # a pair that writes and a pair that reads
TOLERANCE = 1e-6  # of the sum of probabilities


@dataclasses.dataclass(frozen=True)
class Language:
    """FFL(T, p): the distribution of rows of T tokens whose instructions have these chances."""

    length: int  # T
    write: float
    read: float
    ignore: float

    def __post_init__(self):
        if self.length < SHORTEST or self.length % 2:
            raise ConfigError(
                f"a flip-flop row has an even number of tokens, at least {SHORTEST}, got "
                f"length={self.length}"
            )
        chances = {"write": self.write, "read": self.read, "ignore": self.ignore}
        if not all(0 <= chance <= 1 for chance in chances.values()):
            raise ConfigError(f"probabilities must be from 0 to 1, got {chances}")
        total = sum(chances.values())
        if abs(total - 1) > TOLERANCE:
            raise ConfigError(
                f"the probabilities of write, read and ignore must sum to 1, got {chances}, which "
                f"sum to {total:g}"
            )

    def sample(self, key: jax.Array, batch: int) -> jax.Array:
        """Tokens, int32 (batch, length), drawn on the device."""
        return Mixture((self,)).sample(key, batch)


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Rows of several languages of one length, each row of one that is drawn uniformly."""

    languages: tuple[Language, ...]

    def __post_init__(self):
        lengths = {language.length for language in self.languages}
        if len(lengths) != 1:
            raise ConfigError(
                f"a mixture needs languages of one length, got lengths {sorted(lengths)}"
            )

    @property
    def length(self) -> int:
        """The tokens of a row."""
        return self.languages[0].length

    def sample(self, key: jax.Array, batch: int) -> jax.Array:
        """Tokens, int32 (batch, length), drawn on the device."""
        if batch < 1:
            raise ConfigError(f"expected a batch of at least 1 row, got {batch}")
        language_key, instruction_key, bit_key = jax.random.split(key, 3)
        chances_M3 = np.array([(x.write, x.read, x.ignore) for x in self.languages], np.float32)
        language_B = jax.random.randint(language_key, (batch,), 0, len(self.languages))
        logits_B13 = jnp.log(jnp.asarray(chances_M3))[language_B][:, None]
        shape = batch, self.length // 2
        instructions_BN = jax.random.categorical(instruction_key, logits_B13, shape=shape)
        instructions_BN = instructions_BN.astype(jnp.int32).at[:, 0].set(WRITE).at[:, -1].set(READ)
        coins_BN = ZERO + jax.random.bernoulli(bit_key, shape=shape).astype(jnp.int32)
        # The bit in memory is that beside the latest write.
        kept_BN = jnp.take_along_axis(coins_BN, latest_write(instructions_BN), axis=1)
        bits_BN = jnp.where(instructions_BN == READ, kept_BN, coins_BN)
        return jnp.stack([instructions_BN, bits_BN], axis=-1).reshape(batch, self.length)


def ffl(length: int, ignore: float) -> Language:
    """FFL(p_i): what is not ignored writes and reads equally often."""
    return Language(length, (1 - ignore) / 2, (1 - ignore) / 2, ignore)


# What is known of a row.


def latest_write(instructions_BN: jax.Array) -> jax.Array:
    """The number of the pair that wrote last, up to each pair."""
    number_N = jnp.arange(instructions_BN.shape[1])
    return jax.lax.cummax(jnp.where(instructions_BN == WRITE, number_N, 0), axis=1)


def is_read(tokens_BT: jax.Array) -> jax.Array:
    """True at the instructions that read: the token after them can be known."""
    return tokens_BT == READ


def memory(tokens_BT: jax.Array) -> jax.Array:
    """ZERO or ONE (batch, pairs): what a read gives there, whatever the row says of it."""
    latest_BN = latest_write(tokens_BT[:, ::2])
    return jnp.take_along_axis(tokens_BT[:, 1::2], latest_BN, axis=1)


def distance(tokens_BT: jax.Array) -> jax.Array:
    """How many pairs ago the latest write was, of each pair; 0 at a write."""
    instructions_BN = tokens_BT[:, ::2]
    return jnp.arange(instructions_BN.shape[1]) - latest_write(instructions_BN)


def density(tokens_BT: jax.Array) -> jax.Array:
    """Writes in 100 instructions up to each pair, rounded up to a whole number."""
    writes_BN = jnp.cumsum(tokens_BT[:, ::2] == WRITE, axis=1, dtype=jnp.int32)
    return -(-100 * writes_BN // jnp.arange(1, writes_BN.shape[1] + 1))


def check(tokens_BT: np.ndarray, first_row: int = 0) -> np.ndarray:
    """The tokens; stops on a row of no flip-flop language, with its number, place and reason."""
    tokens_BT = np.asarray(tokens_BT)
    if tokens_BT.ndim != 2 or not np.issubdtype(tokens_BT.dtype, np.integer):
        raise ConfigError(
            f"tokens must be integers (rows, tokens), got {tokens_BT.dtype} of shape "
            f"{tokens_BT.shape}"
        )
    length = tokens_BT.shape[1]
    if length < SHORTEST or length % 2:
        raise ConfigError(
            f"a flip-flop row has an even number of tokens, at least {SHORTEST}, got {length}"
        )
    instructions_BN, bits_BN = tokens_BT[:, ::2], tokens_BT[:, 1::2]
    number_N = np.arange(length // 2)
    last_N = number_N == number_N[-1]
    latest_BN = np.maximum.accumulate(np.where(instructions_BN == WRITE, number_N, 0), axis=1)
    wrong_BN = bits_BN != np.take_along_axis(bits_BN, latest_BN, axis=1)
    problems = {
        "expected an instruction, w, r or i": (0, ~np.isin(instructions_BN, (WRITE, READ, IGNORE))),
        "expected a bit, 0 or 1": (1, ~np.isin(bits_BN, (ZERO, ONE))),
        "the first instruction must be w": (0, (number_N == 0) & (instructions_BN != WRITE)),
        "the last instruction must be r": (0, last_N & (instructions_BN != READ)),
        "a read gives another bit than the latest write": (1, (instructions_BN == READ) & wrong_BN),
    }  # fmt: skip
    for reason, (of_pair, found_BN) in problems.items():
        if found_BN.any():
            row, pair = np.argwhere(found_BN)[0].tolist()
            place = 2 * pair + of_pair
            raise ConfigError(
                f"no flip-flop language: row {first_row + row}, place {place}: {reason}, got "
                f"{_show(tokens_BT[row, place])}"
            )
    return tokens_BT


def _show(token: int) -> str:
    return f"'{TOKENS[token]}'" if 0 <= token < len(TOKENS) else f"the id {token}"


# Rows as text.


def to_text(tokens_BT: np.ndarray) -> list[str]:
    """Each row as letters `w r i 0 1` without spaces."""
    letters = np.frombuffer(TOKENS.encode(), np.uint8)
    return [letters[row].tobytes().decode() for row in check(tokens_BT)]


def from_text(rows: Sequence[str], first_row: int = 0) -> np.ndarray:
    """Tokens, int32 (rows, tokens), of rows with or without spaces; stops as `check` does.

    `first_row`: the number of the first in the messages.
    """
    rows = ["".join(row.split()) for row in rows]
    if not rows:
        raise ConfigError("expected at least 1 row of text, got none")
    for n, row in enumerate(rows, first_row):
        strange = [place for place, letter in enumerate(row) if letter not in TOKENS]
        if strange:
            raise ConfigError(
                f"no flip-flop language: row {n}, place {strange[0]}: expected one of "
                f"{' '.join(TOKENS)}, got '{row[strange[0]]}'"
            )
        if len(row) != len(rows[0]):
            raise ConfigError(
                f"rows must have one length: row {first_row} has {len(rows[0])} tokens, row {n} "
                f"has {len(row)}"
            )
    number = np.zeros(128, np.int32)
    number[list(TOKENS.encode())] = range(len(TOKENS))
    letters = np.frombuffer("".join(rows).encode(), np.uint8)
    return check(number[letters].reshape(len(rows), -1), first_row)
