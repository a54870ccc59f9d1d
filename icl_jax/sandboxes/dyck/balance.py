"""How far matching brackets are from cancelling in an attention layer. Liu 2024, 3.6.2.

Tokens are (type, depth of the stack after it): START is 0, then openings, then closings. Scores are
those before the softmax, [key, query]; values are what a key adds to the attention output.
Shape suffixes: M tokens, E embed, K types, D depths, Q queries, S strings of open brackets.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from icl_jax.config import ConfigError


class Violation(NamedTuple):
    """||S|| / P over all matching pairs and queries: 0 if every pair cancels."""

    mean: float  # beta
    largest: float


class Query(NamedTuple):
    """What a closing bracket that leaves others open attends to, before the softmax divides."""

    depth: int  # how many others it leaves open
    pairs_KDE: np.ndarray  # S: what each matching pair adds, by type and depth inside it
    nearest_E: np.ndarray  # Q(t): the smallest output of a prefix without matching pairs
    rival_E: np.ndarray  # Q(t'): the smallest of those whose last open bracket is of another type

    @property
    def ratios(self) -> np.ndarray:
        """||S|| / P, with P the norm of the rival."""
        sizes_KD, size = np.linalg.norm(self.pairs_KDE, axis=-1), np.linalg.norm(self.rival_E)
        return sizes_KD / size if size else np.full(sizes_KD.shape, np.inf)


def openings(k: int, D: int) -> np.ndarray:
    """The tokens that open each type, to each depth from 1 to D: (types, depths)."""
    return 1 + np.arange(k * D).reshape(k, D)


def closings(k: int, D: int) -> np.ndarray:
    """The tokens that close each type, to each depth from 0 to D - 1: (types, depths)."""
    return openings(k, D) + k * D


def is_balanced(score_MM: np.ndarray, k: int, D: int, tolerance: float) -> bool:
    """Whether the scores of a pair differ by the same number for every query (3.28).

    Queries are the closings that leave a bracket open.
    """
    score_MM = _check(score_MM, "scores [key, query]", k, D, square=True)
    queries = closings(k, D)[:, 1:].ravel()
    gap_KDQ = (score_MM[openings(k, D)] - score_MM[closings(k, D)])[..., queries]
    return bool(np.ptp(gap_KDQ, axis=-1).max() <= tolerance)


def violation(score_MM: np.ndarray, value_ME: np.ndarray, k: int, D: int) -> Violation:
    """The balance violation beta: what a pair adds, against what tells two prefixes apart.

    Infinite where the attention output of a prefix is zero.
    """
    ratios = np.array([query.ratios for query in queries_of(score_MM, value_ME, k, D)])
    return Violation(float(ratios.mean()), float(ratios.max()))


def queries_of(score_MM: np.ndarray, value_ME: np.ndarray, k: int, D: int) -> Iterator[Query]:
    """Every closing bracket that leaves 1 to D - 1 others open, by depth and type.

    All of a query are scaled by one positive number, so that no score is too large for exp.
    """
    score_MM = _check(score_MM, "scores [key, query]", k, D, square=True)
    value_ME = _check(value_ME, "values [key, embed]", k, D)
    value_ME = value_ME - value_ME.mean(axis=1, keepdims=True)  # LayerNorm takes the mean away
    opening_KD, closing_KD = openings(k, D), closings(k, D)
    for depth in range(1, D):
        strings_SD = np.stack(np.meshgrid(*[np.arange(k)] * depth, indexing="ij"), axis=-1)
        strings_SD = strings_SD.reshape(-1, depth)
        for kind in range(k):
            own = closing_KD[kind, depth]
            added_ME = np.exp(score_MM[:, [own]] - score_MM[:, own].max()) * value_ME
            own_pair_E = added_ME[opening_KD[kind, depth]] + added_ME[own]
            open_SDE = added_ME[opening_KD[strings_SD, np.arange(depth)]]
            output_SE = added_ME[0] + open_SDE.sum(axis=1) + own_pair_E
            size_S = np.linalg.norm(output_SE, axis=1)
            nearest = size_S.argmin()
            is_other_S = strings_SD[:, -1] != strings_SD[nearest, -1]
            rival = np.where(is_other_S, size_S, np.inf).argmin()
            pairs_KDE = added_ME[opening_KD] + added_ME[closing_KD]
            yield Query(depth, pairs_KDE, output_SE[nearest], output_SE[rival])


def _check(array: np.ndarray, what: str, k: int, D: int, square: bool = False) -> np.ndarray:
    if k < 2 or D < 2:
        raise ConfigError(
            f"expected at least 2 types and depth 2, got k={k} and D={D}: with fewer, no closing "
            "bracket leaves open what the network has to tell apart"
        )
    array = np.asarray(array, np.float64)
    tokens = 2 * k * D + 1
    expected = f"({tokens}, {tokens if square else 'any'})"
    if array.ndim != 2 or array.shape[0] != tokens or (square and array.shape[1] != tokens):
        raise ConfigError(
            f"{what}: expected shape {expected} for k={k}, D={D} (START, {k * D} openings, "
            f"{k * D} closings), got {array.shape}"
        )
    if not np.isfinite(array).all():
        raise ConfigError(
            f"{what}: expected finite numbers, got {(~np.isfinite(array)).sum()} others"
        )
    return array
