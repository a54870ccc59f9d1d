"""Why attention misreads flip-flops, as numbers: it dilutes, or positions outweigh tokens.

Liu 2024, propositions 4 (soft attention, bounded scores) and 5 (hard attention, linear positions).
Shape suffixes: L layers, B batch, H heads, T queries, S keys, V vocab, K head_dim.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import ConfigError, head_dim
from icl_jax.models.gpt import GPT
from icl_jax.models.layers import first_block
from icl_jax.sandboxes.flip_flop.language import READ

ROUNDING = 1e-12  # of the largest term: scores that differ by less are a tie


# Soft attention: what one token can get of a row (proposition 4).


def largest_weight(sigma: float, length: int) -> float:
    """The most that one of `length` tokens can get from unit vectors, sigma = ||W_K^T W_Q||."""
    return 1 / (1 + (length - 1) * math.exp(-2 * sigma))


def needed_sigma(weight: float, length: int) -> float:
    """The least sigma for which a token can get this weight."""
    if not 0 < weight < 1 or length < 2:
        raise ConfigError(
            f"expected a weight between 0 and 1 and a length of at least 2, got {weight:g} and "
            f"{length}"
        )
    return 0.5 * math.log((length - 1) * weight / (1 - weight))


def score_range(weights_BHTS: jax.Array) -> jax.Array:
    """The highest less the lowest score of each causal query (batch, heads, T), of its weights.

    A weight that float32 rounds to 0 counts as the smallest it has: the range is at least that.
    """
    length = weights_BHTS.shape[-1]
    if weights_BHTS.shape[-2] != length:
        raise ConfigError(f"expected as many queries as keys, got {weights_BHTS.shape}")
    logs_BHTS = jnp.log(jnp.maximum(weights_BHTS, jnp.finfo(jnp.float32).tiny))
    seen_BHTS = jnp.where(np.tri(length, dtype=bool), logs_BHTS, 0.0)  # logs are not above 0
    return logs_BHTS.max(axis=-1) - seen_BHTS.min(axis=-1)


def half_length(spread: np.ndarray | float) -> np.ndarray | float:
    """T_half: no token of a longer row can get half if scores stay within a range of `spread`."""
    return 1 + np.exp(spread)


class Dilution(NamedTuple):
    """Of each layer and head (L, H), the medians over the queries that read."""

    score_range: np.ndarray
    half_length: np.ndarray
    weight: np.ndarray  # of the token that gets most


def dilution(model: GPT, tokens_BT: np.ndarray, reads_BT: np.ndarray | None = None) -> Dilution:
    """How sharp the heads of a trained GPT can be; `reads_BT`: other queries than those that read.

    Positions that enter the scores (ALiBi, rotary, linear) can widen the range with the length.
    """
    tokens_BT = np.asarray(tokens_BT)
    reads_BT = tokens_BT == READ if reads_BT is None else np.asarray(reads_BT)
    if not reads_BT.any():
        raise ConfigError(f"no token of {tokens_BT.shape} reads; expected at least one")
    row, place = np.nonzero(reads_BT)
    _, readings = model(tokens_BT, read_attention=_range_and_weight)
    range_LH, weight_LH = (
        np.median(np.asarray(x_LBHT)[:, row, :, place], axis=0) for x_LBHT in readings
    )
    return Dilution(range_LH, half_length(range_LH), weight_LH)


def _range_and_weight(weights_BHTS: jax.Array) -> tuple[jax.Array, jax.Array]:
    return score_range(weights_BHTS), weights_BHTS.max(axis=-1)


# Hard attention: where positions that are added to embeddings outweigh them (proposition 5).


class Terms(NamedTuple):
    """The score of query i on key j, tokens x at positions i and j, in the first layer.

    A[x_i, x_j] + b[x_i] j/C + c[x_j] i/C + kappa ij/C^2
    """

    content_VV: np.ndarray  # A: query, key
    key_place_V: np.ndarray  # b, of the query's token
    query_place_V: np.ndarray  # c, of the key's token
    kappa: float
    unit: float  # C
    first: int  # the position of the first token of a row

    def of_last(self, tokens_S: np.ndarray) -> np.ndarray:
        """The scores of the last token on all tokens of a row."""
        tokens_S = np.asarray(tokens_S)
        key_S = (self.first + np.arange(len(tokens_S))) / self.unit
        query, token = key_S[-1], tokens_S[-1]
        own_S = self.content_VV[token, tokens_S] + self.key_place_V[token] * key_S
        return own_S + (self.query_place_V[tokens_S] + self.kappa * key_S) * query


def read_terms(model: GPT) -> list[Terms]:
    """The terms of each head in a GPT of one layer, without norms, with linear positions."""
    config = model.config
    found = {"num_layers": config.num_layers, "norm": config.norm, "position": config.position}
    expected = {"num_layers": 1, "norm": "none", "position": "linear"}
    if found != expected:
        raise ConfigError(
            f"the score is a sum of four terms where {_show(expected)}, got {_show(found)}"
        )
    layer = first_block(model.blocks, config).attention
    embedding_VD = _float64(model.token_embedding(np.arange(config.vocab_size, dtype=np.int32)))
    direction_D = _float64(model.positions.direction)

    def project(dense) -> tuple[np.ndarray, np.ndarray]:
        kernel_DHK = _float64(dense.kernel)
        content_VHK = np.einsum("vd,dhk->vhk", embedding_VD, kernel_DHK) + _float64(dense.bias)
        return content_VHK, np.einsum("d,dhk->hk", direction_D, kernel_DHK)

    query_VHK, query_HK = project(layer.query)
    key_VHK, key_HK = project(layer.key)
    scale = head_dim(config) ** -0.5
    return [
        Terms(
            content_VV=scale * query_VHK[:, h] @ key_VHK[:, h].T,
            key_place_V=scale * query_VHK[:, h] @ key_HK[h],
            query_place_V=scale * key_VHK[:, h] @ query_HK[h],
            kappa=float(scale * query_HK[h] @ key_HK[h]),
            unit=config.context_length,
            first=0,
        )
        for h in range(config.num_heads)
    ]


class Failures(NamedTuple):
    """The shortest rows whose last token does not attend most to the latest write; None: all do."""

    one_write: int | None  # (write, idle, idle, ...): too long where kappa > 0
    two_writes: int | None  # (other write, idle, ..., write, idle): too long where kappa < 0


def predict_failures(terms: Terms, write: int, other_write: int, idle: int) -> Failures:
    """Where hard attention fails on the two rows of the proof, for tokens of these three kinds.

    Scores are linear in the key's position, so that only the keys at the ends of a stretch count.
    """
    first, second, before, last = (0, terms.first), (0, terms.first + 1), (1, -1), (1, 0)
    score = lambda key, place: _score(terms, idle, key, place)  # noqa: E731
    alone, latest = score(write, first), score(write, before)
    in_one = [_first_loss(alone - score(idle, place), terms.first + 1) for place in (second, last)]
    in_two = [
        _first_loss(latest - score(other_write, first), terms.first + 2),
        _first_loss(latest - score(idle, last), terms.first + 2),
        _first_loss(latest - score(idle, second), terms.first + 3),
        _first_loss(latest - score(idle, (1, -2)), terms.first + 3),
    ]
    return Failures(_shortest(in_one, terms), _shortest(in_two, terms))


def _score(terms: Terms, query: int, key: int, place: tuple[int, int]) -> np.ndarray:
    """The score as a polynomial of the query's position q, the constant first.

    `place` (slope, constant): the key's position, a linear function of q.
    """
    slope, constant = place
    b, c, unit = terms.key_place_V[query], terms.query_place_V[key], terms.unit
    return np.array([
        terms.content_VV[query, key] + b * constant / unit,
        (b * slope + c) / unit + terms.kappa * constant / unit**2,
        terms.kappa * slope / unit**2,
    ])  # fmt: skip


def _first_loss(lead: np.ndarray, start: int) -> int | None:
    """The first whole number from `start` on where a polynomial is not above 0."""

    def lost(q: int) -> bool:
        parts = lead * [1.0, q, float(q) ** 2]
        return parts.sum() <= ROUNDING * np.abs(parts).max()

    roots = np.polynomial.polynomial.polyroots(np.trim_zeros(lead, "b")) if lead[1:].any() else []
    real = [root.real for root in roots if np.isreal(root) and np.isfinite(root)]
    near = [math.floor(root) + n for root in real for n in (-1, 0, 1, 2)]
    return next((q for q in sorted([start, *near]) if q >= start and lost(q)), None)


def _shortest(positions: Sequence[int | None], terms: Terms) -> int | None:
    """The number of tokens of the shortest row, of positions of its last one."""
    found = [position for position in positions if position is not None]
    return min(found) - terms.first + 1 if found else None


def _float64(parameter) -> np.ndarray:
    return np.asarray(parameter[...], np.float64)


def _show(fields: dict) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in fields.items())
