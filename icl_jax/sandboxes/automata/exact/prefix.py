"""Theorem 10: any automaton, in ceil(log2 T) layers that compose maps of longer and longer runs.

Corrected: values are read from R, keys are turned so that queries look back, and the state is read
from the start's own channel, because at t = T no pad takes part.
"""

import math

import numpy as np

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata.exact.assembly import Draft, Head
from icl_jax.sandboxes.automata.exact.gadgets import Form, is_value, turned
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton

MOST_POINTS = 64  # the middle of the feed-forward layer has 2 points^2 x 2 points^2 weights


def prefix(automaton: Semiautomaton, length: int) -> Draft:
    """Right channels hold the map of the last 2^l letters, left ones that of those before them."""
    delta_SP, image_QP = automaton.point_delta_SP, automaton.image_QP
    pointwise = delta_SP is not None
    delta_SP = automaton.delta_SQ if delta_SP is None else delta_SP
    points = delta_SP.shape[1]
    if points > MOST_POINTS:
        raise ConfigError(
            f"{automaton.name}: composing the maps of {points} points takes feed-forward layers of "
            f"{2 * points**2} x {2 * points**2} weights; expected at most {MOST_POINTS} points: "
            "choose a smaller automaton, or another construction"
        )
    reach = 1 << count_layers(length)
    draft = Draft(automaton, length, [0] * reach)
    # Pads go to the start, or are the identity where the whole map is wanted.
    pad_P = np.arange(points) if pointwise else np.full(points, automaton.start)
    right = [
        draft.channel(f"R{p}", letters=delta_SP[:, p] + 1, pads=pad_P[p] + 1) for p in range(points)
    ]
    left = [draft.channel(f"L{p}") for p in range(points)]
    angle_N = np.pi * (np.arange(draft.rows) - (reach - 1)) / reach
    cosine = draft.channel("cos", place=np.cos(angle_N))
    sine = draft.channel("sin", place=np.sin(angle_N))
    back = 1
    while back < reach:
        _compose(draft, left, right, (cosine, sine), back)
        back *= 2
    if pointwise:
        start_P = image_QP[automaton.start]
        draft.read([right[p] for p in start_P], left[0], image_QP + 1)
    else:
        codes = np.arange(1, points + 1)
        draft.read([right[automaton.start]], left[0], codes)
    draft.bounds = _bounds(points, reach)
    return draft


def count_layers(length: int) -> int:
    """ceil(log2 T), but at least one."""
    return max(1, (length - 1).bit_length())


def _compose(draft: Draft, left: list[Form], right: list[Form], place, back: int) -> None:
    """A layer: copy R of `back` letters ago to L, then R after L takes the place of R."""
    layer, points, reach = draft.layer(), len(right), len(draft.pads)
    gap = math.log(64 * points * reach)
    scale = gap / (1 - math.cos(np.pi / reach))
    copies = [(ours, theirs, 1.0) for ours, theirs in zip(right, left, strict=True)]
    head = Head(list(place), turned(*place, np.pi * back / reach), copies, scale)
    draft.select(layer, head, scale, gap, points)
    mlp = layer.mlp
    for q, (ours, theirs) in enumerate(zip(right, left, strict=True)):
        products = [
            mlp.relu(points * mlp.staircase(theirs, is_value(p, points), low=1) + right[p] - points)
            for p in range(points)
        ]
        mlp.overwrite(ours, sum(products))
        # The last layer leaves the constant that the readout needs in the first left channel.
        mlp.overwrite(theirs, 1.0 if 2 * back == reach and q == 0 else 0.0)


def _bounds(points: int, reach: int) -> dict:
    norm = 10 * reach * math.sqrt(math.log(points) + math.log(reach))
    return {
        "depth": (math.log2(reach), "ceil(log2 T)"),
        "width": (2 * points + 2, "2|Q| + 2"),
        "heads": (2, "2"),
        "head_dim": (points, "|Q|"),
        "mlp_width": (4 * points**2 + points, "4|Q|^2 + |Q|; stated as |Q|^2 + |Q|"),
        "largest_weight": (
            max(4 * points + 2, norm), "max(4|Q| + 2, 10 T sqrt(log|Q| + log T))"
        ),
    }  # fmt: skip
