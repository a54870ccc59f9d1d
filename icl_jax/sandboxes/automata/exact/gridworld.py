"""Theorem 12, shorter: a walk on 0 to S that stops at both ends, in two layers.

Let z be the walk without ends, a_k and b_k the last times it was k below and k above where it is.
The state is the number of k = 1 to S with a_k > b_(S+1-k): it is z less the least of the last S + 1
values seen. A row starts with S steps down, so that there are as many. Axes go side by side.
"""

import math

import numpy as np

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata.exact.assembly import Draft, Head
from icl_jax.sandboxes.automata.exact.gadgets import Form, turned
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton


def gridworld(automaton: Semiautomaton, length: int) -> Draft:
    """A grid of any number of axes: layer 1 sums the steps, layer 2 finds values of the sums."""
    sizes, steps_SA = _axes(automaton)
    if automaton.start:
        raise ConfigError(
            f"{automaton.name}: construction='gridworld' starts at the lower ends, state 0, got "
            f"state {automaton.start}; use construction='cascade'"
        )
    draft = Draft(automaton, length, [0] + [1] * (max(sizes) - 1))
    one = draft.channel("one", letters=1.0, pads=1.0)
    pad, log = draft.channel("pad", pads=[1.0, 0.0]), draft.logs()
    first, second = draft.layer(), draft.layer()
    steps = [
        draft.channel(f"step {axis}", letters=steps_SA[:, axis], pads=[0.0, -1.0])
        for axis in range(len(sizes))
    ]
    sums = [draft.channel(f"sum {axis}") for axis in range(len(sizes))]
    draft.count(first, list(zip(steps, sums, strict=True)), pad, log)
    states = [
        _axis(draft, first.mlp, second, axis, total, size)
        for axis, (total, size) in enumerate(zip(sums, sizes, strict=True))
    ]
    draft.read(states, one, np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1))
    draft.bounds = {
        "depth": (2, "2"),
        "width": (None, "5, then 2S + 1"),
        "heads": (sum(2 * size - 1 for size in sizes), "2S + 1 an axis"),
        "head_dim": (5, "5"),
        "mlp_width": (None, "O(T + S), of depth O(log S)"),
        "largest_weight": (None, "poly(T)"),
    }
    return draft


def _axis(draft: Draft, mlp, second, axis: int, total: Form, size: int) -> Form:
    rows, last = draft.rows, size - 1
    values = np.arange(-rows, rows + 1)
    unit = np.pi / (2 * rows)
    cosine, sine = draft.channel(f"cos {axis}"), draft.channel(f"sin {axis}")
    mlp.add(cosine, mlp.interpolate(total, np.cos(unit * values), low=-rows))
    mlp.add(sine, mlp.interpolate(total, np.sin(unit * values), low=-rows))
    place = draft.channel("place", place=np.arange(rows) / rows)
    keep = 2 / (1 - math.cos(unit))  # K: values decide before places do
    gap = math.log(64 * rows**4)
    scale = rows * gap
    penalty = rows + 1.0  # P: a value that was not looked for loses to every place
    state = draft.channel(f"state {axis}")
    for k in range(1, last + 1):
        difference = draft.channel(f"difference {axis} {k}")
        for shift, sign in ((-k, 1.0), (last + 1 - k, -1.0)):
            goal = turned(cosine, sine, unit * shift)
            query = [keep * goal[0], keep * goal[1], Form(constant=1.0)]
            value = rows * place - sign * penalty * total
            head = Head(query, [cosine, sine, place], [(value, difference, sign)], scale)
            # Both values of z that a score compares are rounded, hence twice the score.
            draft.select(second, head, 2 * scale * keep, gap, rows * (penalty + 1))
        # (a + P z - P k) - (b - P z - P j), j = S + 1 - k.
        ahead = difference + 2 * penalty * total + penalty * (last + 1 - 2 * k)
        second.mlp.add(state, second.mlp.relu(ahead + 0.5) - second.mlp.relu(ahead - 0.5))
    return state


def _axes(automaton: Semiautomaton) -> tuple[list[int], np.ndarray]:
    """The sizes of the axes, and the step of each letter along each."""
    for sizes in _factorings(automaton.num_states):
        found = []
        for move in automaton.delta_SQ:
            if (steps := _steps(move, sizes)) is None:
                break
            found.append(steps)
        else:
            return list(sizes), np.array(found)
    raise ConfigError(
        f"{automaton.name} is no grid: expected letters that step up, step down or stay along each "
        "axis and stop at its ends; use construction='cascade' or 'prefix'"
    )


def _steps(move: np.ndarray, sizes: tuple[int, ...]) -> list[int] | None:
    """The step of a letter along each axis, None if it is none of -1, 1 and 0."""
    places, moved = np.unravel_index(np.arange(len(move)), sizes), np.unravel_index(move, sizes)
    found = []
    for size, before, after in zip(sizes, places, moved, strict=True):
        fits = (s for s in (-1, 1, 0) if np.array_equal(np.clip(before + s, 0, size - 1), after))
        if (step := next(fits, None)) is None:
            return None
        found.append(step)
    return found


def _factorings(size: int) -> list[tuple[int, ...]]:
    """The ways to write a number as an ordered product of numbers above 1, short ones first."""
    found = [(size,)]
    for first in range(2, size // 2 + 1):
        if size % first == 0:
            found += [(first, *others) for others in _factorings(size // first)]
    return sorted(found, key=len)
