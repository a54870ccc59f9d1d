"""Which token comes next: the likeliest one, or one drawn by temperature, top-k and top-p.

Shape suffixes: B batch, V vocab, C blocks of N tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

BLOCK = 256  # tokens of the vocabulary that are drawn from together


class Sampling(NamedTuple):
    """How tokens are drawn: temperature first, then top-k, then top-p of what is left."""

    temperature: float = 1.0
    top_k: int = 0  # only the k likeliest tokens, and those level with the last; 0: all
    top_p: float = 1.0  # only the likeliest tokens that together have this probability
    seed: int = 0


class Draws(NamedTuple):
    """A `Sampling` on its way to the devices, with the number of each row's prompt."""

    seed: np.uint32
    numbers_B: np.ndarray
    temperature: np.float32
    top_k: np.int32 | None
    top_p: np.float32 | None


def make_draws(sampling: Sampling | None, numbers_B: np.ndarray) -> Draws | None:
    """The draws of rows by the numbers of their prompts, whatever else is in the batch."""
    if sampling is None:
        return None
    if not sampling.temperature > 0:
        raise ValueError(
            f"temperature must be above 0, got {sampling.temperature}; "
            "give no sampling for the likeliest tokens"
        )
    if sampling.top_k < 0 or not 0 < sampling.top_p <= 1:
        raise ValueError(
            "top_k must be 0 (all) or more and top_p above 0 and at most 1, "
            f"got {sampling.top_k} and {sampling.top_p}"
        )
    return Draws(
        np.uint32(sampling.seed),
        numbers_B.astype(np.uint32),
        np.float32(sampling.temperature),
        np.int32(sampling.top_k) if sampling.top_k else None,
        np.float32(sampling.top_p) if sampling.top_p < 1 else None,
    )


def choose(logits_BV: jax.Array, draws: Draws | None, step: jax.Array) -> jax.Array:
    """The next token of each row; without draws, the first of the likeliest."""
    if draws is None:
        return jnp.argmax(logits_BV, axis=-1)
    scores_BV = logits_BV / draws.temperature
    if draws.top_k is not None:
        scores_BV = keep_highest(scores_BV, jnp.ones_like(scores_BV), draws.top_k)
    if draws.top_p is not None:
        scores_BV = keep_highest(scores_BV, jax.nn.softmax(scores_BV), draws.top_p)
    return _draw(scores_BV, draws, step)


def _draw(scores_BV: jax.Array, draws: Draws, step: jax.Array) -> jax.Array:
    """Draws the block of tokens first and then the token in it.

    On a CPU, random noise for every token would take 20 times as long.
    """

    def uniform(number: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(draws.seed), number)
        return jax.random.uniform(jax.random.fold_in(key, step), (2,))

    uniform_B2 = jax.vmap(uniform)(draws.numbers_B)
    weights_BV = jnp.exp(scores_BV - jnp.max(scores_BV, axis=-1, keepdims=True))
    batch, size = weights_BV.shape
    weights_BV = jnp.pad(weights_BV, ((0, 0), (0, -size % BLOCK)))
    weights_BCN = weights_BV.reshape(batch, -1, BLOCK)
    block_B = _draw_by(jnp.sum(weights_BCN, axis=-1), uniform_B2[:, 0])
    weights_BN = jnp.take_along_axis(weights_BCN, block_B[:, None, None], axis=1)[:, 0]
    return block_B * BLOCK + _draw_by(weights_BN, uniform_B2[:, 1])


def _draw_by(weights_BN: jax.Array, uniform_B: jax.Array) -> jax.Array:
    """An index of each row by weight; never one of weight 0, however sums are rounded."""
    sums_BN = jnp.where(weights_BN > 0, jnp.cumsum(weights_BN, axis=-1), 0)
    drawn_B1 = uniform_B[:, None] * jnp.max(sums_BN, axis=-1, keepdims=True)
    return jnp.argmax(sums_BN > drawn_B1, axis=-1)


def keep_highest(scores_BV: jax.Array, weights_BV: jax.Array, enough: jax.Array) -> jax.Array:
    """The highest scores whose weights add up to `enough`, and -inf for the others.

    Scores level with the last one stay too. The last one is searched bit by bit: no sort.
    """
    bits_BV = jax.lax.bitcast_convert_type(scores_BV, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    rank_BV = jnp.where(bits_BV >= sign, ~bits_BV, bits_BV | sign)  # in the order of the scores
    enough = jnp.asarray(enough, jnp.float32)

    def set_bit(n: jax.Array, least_B: jax.Array) -> jax.Array:
        higher_B = least_B | (sign >> n.astype(jnp.uint32))
        held_B = jnp.sum(jnp.where(rank_BV >= higher_B[:, None], weights_BV, 0), axis=-1)
        return jnp.where(held_B >= enough, higher_B, least_B)

    least_B = jax.lax.fori_loop(0, 32, set_bit, jnp.zeros(scores_BV.shape[0], jnp.uint32))
    return jnp.where(rank_BV >= least_B[:, None], scores_BV, -jnp.inf)
