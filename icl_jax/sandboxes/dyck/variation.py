"""How much attention differs between networks, and where a stack would look. Liu 2024, 3.6.3.1.

Shape suffixes: B batch, T time, S seeds, Q queries, K keys.
"""

import numpy as np

from icl_jax.sandboxes.dyck.language import START, Dyck


def top_places(language: Dyck, tokens_BT: np.ndarray) -> np.ndarray:
    """The place of the opening on top of the stack after each token, or -1."""
    place_BT = np.full(tokens_BT.shape, -1)
    for row, tokens in enumerate(tokens_BT.tolist()):
        stack: list[int] = []
        for place, token in enumerate(tokens):
            if token > language.types:
                stack.pop()
            elif token != START:
                stack.append(place)
            place_BT[row, place] = stack[-1] if stack else -1
    return place_BT


def variation(maps_SQK: np.ndarray) -> float:
    """The mean of ||A1 - A2||_F^2 over pairs of seeds: twice their variance."""
    return float(2 * np.asarray(maps_SQK, np.float64).var(axis=0, ddof=1).sum())


def random_variation(queries: int) -> float:
    """The same of causal rows that are uniform on the simplex, by their variance."""
    n = np.arange(1, queries + 1)
    return float(np.sum(2 * (n - 1) / (n * (n + 1))))
