"""Memory and permutation-reset automata (Liu 2024, lemmas 16 and 20).

The last reset is found by score c (j/N - 2 [no reset at j]). Corrected: 2, not 1, or the start
token ties with the last place; and the row begins with a reset to the start.
"""

import collections
import math

import numpy as np

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata import algebra
from icl_jax.sandboxes.automata.exact.assembly import Draft, Head
from icl_jax.sandboxes.automata.exact.gadgets import FeedForward, Form, combine, is_value
from icl_jax.sandboxes.automata.exact.groups import (
    Moves,
    group_layers,
    letter_moves,
    points,
    refuse_unsolvable,
)
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton


def memory(automaton: Semiautomaton, length: int) -> Draft:
    """The last value written: one layer that looks it up, and rounds."""
    values = _reset_states(automaton)
    if any(value is None and tuple(move) != tuple(range(len(move)))
           for value, move in zip(values, automaton.delta_SQ.tolist(), strict=True)):  # fmt: skip
        raise ConfigError(
            f"{automaton.name}: a memory has letters that keep the state or set it; use "
            "construction='reset' or 'cascade'"
        )
    draft, count = Draft(automaton, length), automaton.num_states
    value = draft.channel("value", [x or 0 for x in values], automaton.start)
    resets = draft.channel("reset", [x is not None for x in values], 1.0)
    copied, layer = draft.channel("copied"), draft.layer()
    look_up(draft, layer, resets, [(value, copied, 1.0)], count)
    layer.mlp.overwrite(copied, layer.mlp.staircase(copied, np.arange(count)))
    layer.mlp.overwrite(resets, 1.0)  # the constant that the readout needs
    draft.read([copied], resets, np.arange(count))
    draft.bounds = {
        "depth": (1, "1"),
        "width": (4, "4"),
        "heads": (1, "1"),
        "head_dim": (2, "2"),
        "mlp_width": (4 * count, "4|Q|"),
        "largest_weight": (2 * length * math.log(count * length), "2 T log(|Q| T)"),
    }
    return draft


def reset(automaton: Semiautomaton, length: int) -> Draft:
    """Letters permute the states or reset them: a group, then the last reset."""
    if not algebra.is_permutation_reset(automaton):
        raise ConfigError(
            f"{automaton.name}: construction='reset' needs letters that permute the states or take "
            "all of them to one; use 'cascade' or 'prefix'"
        )
    group = algebra.group(automaton)
    refuse_unsolvable(automaton.name, group, length)
    draft = Draft(automaton, length)
    one = draft.channel("one", letters=1.0, pads=1.0)
    values = _reset_states(automaton)
    written = draft.channel(
        "written", [0 if x is None else x + 1 for x in values], automaton.start + 1
    )
    resets = draft.channel("reset", [x is not None for x in values], 1.0)
    moves = letter_moves(draft, group, automaton)
    mlp, states = follow(draft, automaton, group, moves, written, resets)
    state = draft.channel("state")
    mlp.add(state, combine((q, here) for q, here in states.items()))
    draft.read([state], one, np.arange(automaton.num_states))
    draft.bounds = _bounds(automaton, group, length)
    return draft


def follow(
    draft: Draft,
    automaton: Semiautomaton,
    group: algebra.Group,
    moves: Moves,
    written: Form,
    resets: Form,
) -> tuple[FeedForward, dict[int, Form]]:
    """Adds the layers of a permutation-reset automaton; 1 at its state, at the last of them.

    `written` is state + 1 at a reset, of which the pad is the first, and 0 elsewhere.
    """
    start, count = automaton.start, automaton.num_states
    has_resets = any(value is not None for value in _reset_states(automaton))
    if group.order > 1:
        mlp, products = group_layers(draft, group, moves)
    if not has_resets:
        if group.order == 1:
            return draft.layer().mlp, {start: Form(constant=1.0)}
        elements = collections.defaultdict(list)
        for element, conditions in products.items():
            elements[int(group.maps_EQ[element, start])].append(mlp.both(conditions))
        return mlp, {q: sum(units) for q, units in elements.items()}
    copied = draft.channel("copied")
    if group.order == 1:
        layer = draft.layer()
        look_up(draft, layer, resets, [(written, copied, 1.0)], count)
        mlp = layer.mlp
        states = {q: mlp.staircase(copied, is_value(q, count), low=1) for q in range(count)}
    else:
        origin, product = _origins(draft, group, mlp, products, written)
        layer = draft.layer()
        look_up(draft, layer, resets, [(origin, copied, 1.0)], count)
        mlp = layer.mlp
        states = _apply(group, mlp, product, copied)
        mlp.overwrite(origin, 0.0)
        mlp.overwrite(product, 0.0)
    mlp.overwrite(copied, 0.0)
    return mlp, states


def _origins(draft: Draft, group: algebra.Group, mlp: FeedForward, products: dict, written: Form):
    """Channels of the point that g_t ... g_1 takes to where a reset goes, and of g_t ... g_1."""
    origin, product = draft.channel("origin"), draft.channel("product")
    count = group.maps_EQ.shape[1]
    for element, conditions in products.items():
        mlp.add(product, element * mlp.both(conditions))
        for q in range(count):
            here = mlp.interpolate(written, is_value(q + 1, count + 1))
            before = int(np.flatnonzero(group.maps_EQ[element] == q)[0])
            mlp.add(origin, before * mlp.both([*conditions, here]))
    return origin, product


def look_up(draft: Draft, layer, resets: Form, reads: list, spread: int) -> None:
    """A head that copies from the last reset: score c (j/N - 2 [not a reset])."""
    place = draft.channel("place", place=np.arange(draft.rows) / draft.rows)
    gap = math.log(16 * spread * draft.rows)
    scale = draft.rows * gap
    key = place + 2 * resets - 2
    draft.select(layer, Head([Form(constant=1.0)], [key], reads, scale), 2 * scale, gap, spread)


def _apply(group, mlp: FeedForward, product: Form, copied: Form) -> dict[int, Form]:
    """g_t ... g_1 of what was copied, by ANDs of the two."""
    order, count = group.maps_EQ.shape
    found = collections.defaultdict(list)
    for element in range(order):
        is_element = mlp.interpolate(product, is_value(element, order))
        for p in range(count):
            is_point = mlp.staircase(copied, is_value(p, count))
            found[int(group.maps_EQ[element, p])].append(mlp.both([is_element, is_point]))
    return {q: sum(units) for q, units in found.items()}


def _reset_states(automaton: Semiautomaton) -> list[int | None]:
    """Where each letter resets the state to; None if it permutes the states."""
    return [
        int(move[0]) if algebra.is_reset(move) and not algebra.is_permutation(move) else None
        for move in automaton.delta_SQ
    ]


def _bounds(automaton: Semiautomaton, group: algebra.Group, length: int) -> dict:
    n, order, count = points(automaton), group.order, automaton.num_states
    return {
        "depth": (3 * math.log2(order) + 2, "3 log2|G| + 2"),
        "width": (4 * order + 4, "4|G| + 4, the sum of its parts; stated as |G| + |Q| + 4"),
        "heads": (2 * order + 1, "2|G| + 1"),
        "head_dim": (2 * order + 3, "2|G| + 3, the sum of its parts; stated as |Q| + 3"),
        "mlp_width": (
            20 * n * length * order + 4 * count + order**2 * count, "20 n T |G| + 4|Q| + |G|^2|Q|"
        ),
        "largest_weight": (6 * count * length * math.log(length), "6|Q| T log T"),
    }  # fmt: skip
