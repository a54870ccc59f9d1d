"""Attention layers with written weights that are balanced, and what noise on their scores does.

Liu 2024, theorem 1, corollary 1, theorem 2: NumPy float64 on (type, depth) tokens, which a minimal
first layer would make of brackets. Shape suffixes: B batch, T queries, S keys, M tokens, E embed,
K types, D depths.
"""

from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from icl_jax.config import ConfigError
from icl_jax.sandboxes.dyck.balance import closings, openings, queries_of, violation
from icl_jax.sandboxes.dyck.language import EMPTY, START, Dyck, Rows


@dataclasses.dataclass(frozen=True)
class Network:
    """One layer of attention, a layer norm, and a direction to read for each open bracket."""

    language: Dyck
    score_MM: np.ndarray  # [key, query], before the softmax
    value_ME: np.ndarray
    direction_KDE: np.ndarray  # orthonormal, and orthogonal to the vector of ones


class Accuracy(NamedTuple):
    """Shares of positions at which the last open bracket is of the type read off."""

    tokens: float  # wherever a bracket is open; an opening is read from itself
    closings: float  # after closings only, where attention must find it
    margin: float  # after closings: the smallest lead of the right type over the others


class Bound(NamedTuple):
    """The two sides of theorem 2, largest <= bound, and how far outputs stay apart."""

    separation: float
    bound: float
    largest: float


def balanced(language: Dyck, seed: int, spread: float = 1.0) -> Network:
    """The construction of theorem 1 with scores of this standard deviation.

    Otherwise they are random: only those of a pair differ by the same number for every query, which
    the values make good. With spread 0 attention is uniform (corollary 1).
    """
    rng = np.random.default_rng(seed)
    k, D, tokens = language.types, language.depth, language.num_typed
    opening_KD, closing_KD = openings(k, D), closings(k, D)
    gap_KD = spread * rng.normal(size=(k, D))
    score_MM = spread * rng.normal(size=(tokens, tokens))
    score_MM[opening_KD] = score_MM[closing_KD] + gap_KD[..., None]
    columns = np.concatenate([np.ones((tokens, 1)), rng.normal(size=(tokens, k * D))], axis=1)
    direction_KDE = np.linalg.qr(columns).Q[:, 1:].T.reshape(k, D, tokens)
    value_ME = np.zeros((tokens, tokens))  # START adds nothing
    value_ME[opening_KD] = direction_KDE
    value_ME[closing_KD] = -np.exp(gap_KD)[..., None] * direction_KDE
    return Network(language, score_MM, value_ME, direction_KDE)


def disturbed(network: Network, noise: float, seed: int) -> Network:
    """The network with Gaussian noise of this standard deviation on every score."""
    noise_MM = np.random.default_rng(seed).normal(scale=noise, size=network.score_MM.shape)
    return dataclasses.replace(network, score_MM=network.score_MM + noise_MM)


def attend(network: Network, typed_T: np.ndarray) -> np.ndarray:
    """The attention output after each token of a row, through the causal softmax: (T, E)."""
    weight_MM = np.exp(network.score_MM - network.score_MM.max(axis=0))
    weights_ST = np.triu(weight_MM[typed_T[:, None], typed_T])
    return (weights_ST / weights_ST.sum(axis=0)).T @ network.value_ME[typed_T]


def read_types(network: Network, typed_T: np.ndarray) -> np.ndarray:
    """How strongly each type is read at the depth after each token, once normalised: (T, K)."""
    output_TE = attend(network, typed_T)
    output_TE = output_TE - output_TE.mean(axis=1, keepdims=True)
    sizes_T1 = np.linalg.norm(output_TE, axis=1, keepdims=True)
    output_TE = np.divide(output_TE, sizes_T1, out=output_TE, where=sizes_T1 > 0)
    depth_T = depths(network.language, typed_T)
    direction_TKE = network.direction_KDE.swapaxes(0, 1)[np.maximum(depth_T, 1) - 1]
    return np.einsum("te,tke->tk", output_TE, direction_TKE)


def depths(language: Dyck, typed_T: np.ndarray) -> np.ndarray:
    """The size of the stack after each (type, depth) token."""
    is_opening_T = (typed_T != START) & (typed_T <= language.types * language.depth)
    return np.where(typed_T == START, 0, (typed_T - 1) % language.depth + is_opening_T)


def measure(network: Network, rows: Rows) -> Accuracy:
    """How often the network finds the last open bracket."""
    language = network.language
    typed_BT, top_BT = np.asarray(language.typed(rows.tokens_BT)), np.asarray(rows.top_BT)
    is_closing_BT = np.asarray(language.is_closing(rows.tokens_BT))
    reads_BTK = np.stack([read_types(network, typed_T) for typed_T in typed_BT])
    is_open_BT = top_BT != EMPTY
    is_asked_BT = is_open_BT & is_closing_BT
    if not is_asked_BT.any():
        raise ConfigError("these rows have no closing that leaves a bracket open; make them longer")
    is_right_BTK = np.arange(language.types) == top_BT[..., None]
    right_BT = np.where(is_right_BTK, reads_BTK, -np.inf).max(axis=-1)
    lead_BT = right_BT - np.where(is_right_BTK, -np.inf, reads_BTK).max(axis=-1)
    found_BT = ~is_closing_BT | (lead_BT > 0)
    return Accuracy(
        float(found_BT[is_open_BT].mean()), float(found_BT[is_asked_BT].mean()),
        float(lead_BT[is_asked_BT].min()),
    )  # fmt: skip


def noise_curve(
    language: Dyck,
    noises: Sequence[float] = (0.0, 0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4),
    seeds: int = 5,
    lengths: Sequence[int] = (28, 100, 450),
    rows: int = 20,
    spread: float = 1.0,
) -> list[dict]:
    """Balance violation against accuracy at each length: a plain point for each noise and seed."""
    keys = jax.random.split(jax.random.key(0), len(lengths))
    made = {n: language.sample(key, rows, n) for n, key in zip(lengths, keys, strict=True)}
    points = []
    for seed in range(seeds):
        network = balanced(language, seed, spread)
        for noise in noises:
            noisy = disturbed(network, noise, seed)
            beta = violation(noisy.score_MM, noisy.value_ME, language.types, language.depth)
            found = {str(n): measure(noisy, drawn)._asdict() for n, drawn in made.items()}
            points.append(
                {"noise": noise, "seed": seed, "violation": beta._asdict(), "accuracy": found}
            )
    return points


def approximate_balance(network: Network, length: int) -> Bound:
    """Theorem 2 with what its proof needs: ||S|| <= 16 D R / length x P, R = 4 / separation + 1.

    The separation is measured on the pairs of prefixes of the proof, which differ in the last open
    bracket alone. The theorem has it from a loss near (q (1 - q) / k^2)^length, which no training
    comes near: 2e-34 for length 28.
    """
    k, D = network.language.types, network.language.depth
    if length < 8 * D:
        raise ConfigError(f"theorem 2 is about lengths from 8 x depth = {8 * D}, got {length}")
    separations, largest = [], 0.0
    for query in queries_of(network.score_MM, network.value_ME, k, D):
        # d openings of one type, pairs inside them, d closings; t; the pair of the query.
        pairs_D = length // 2 - np.arange(D) - query.depth - 2
        nested_KDE = np.cumsum(query.pairs_KDE, axis=1) - query.pairs_KDE
        common_KDE = nested_KDE + pairs_D[:, None] * query.pairs_KDE
        apart_KDE = _unit(common_KDE + query.nearest_E) - _unit(common_KDE + query.rival_E)
        separations.append(np.linalg.norm(apart_KDE, axis=-1).min())
        largest = max(largest, float(query.ratios.max()))
    separation = float(min(separations))
    return Bound(separation, 16 * D * (4 / separation + 1) / length, largest)


def _unit(x_KDE: np.ndarray) -> np.ndarray:
    return x_KDE / np.linalg.norm(x_KDE, axis=-1, keepdims=True)
