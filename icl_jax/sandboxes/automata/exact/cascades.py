"""Theorem 11: solvable automata as a cascade of permutation-reset levels (lemma 21).

The levels are those of `algebra.hole_cascade`. Between two of them, a layer copies the states
of the earlier levels at t - 1, and its feed-forward layer makes the letters of the next one.
"""

import collections
import math

import numpy as np

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata import algebra
from icl_jax.sandboxes.automata.exact.assembly import Draft, Head
from icl_jax.sandboxes.automata.exact.gadgets import FeedForward, Form, combine, is_value, turned
from icl_jax.sandboxes.automata.exact.groups import Moves
from icl_jax.sandboxes.automata.exact.prefix import count_layers
from icl_jax.sandboxes.automata.exact.resets import follow
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton


def cascade(automaton: Semiautomaton, length: int) -> Draft:
    """Any solvable automaton of at most 5 states, many of more; never deeper for longer rows."""
    found = algebra.hole_cascade(automaton)
    for number, level in enumerate(found.levels, 1):
        _refuse_level(automaton, number, algebra.group(level.automaton), length)
    draft = Draft(automaton, length)
    one = draft.channel("one", letters=1.0, pads=1.0)
    letters = [
        draft.channel(f"letter {a}", letters=is_value(a, automaton.num_letters))
        for a in range(automaton.num_letters)
    ]
    states: list[Form] = []
    for number, level in enumerate(found.levels):
        group = algebra.group(level.automaton)
        parts = _wire(draft, level, group, letters, states)
        mlp, here = follow(draft, level.automaton, group, *parts)
        if number < len(found.levels) - 1:
            states.append(draft.channel(f"level {number}"))
            mlp.add(states[-1], combine(here.items()))
    _join(draft, mlp, found, states, here)
    draft.read([draft.channel("state")], one, np.arange(automaton.num_states))
    draft.bounds = _bounds(automaton, length)
    return draft


def _wire(
    draft: Draft,
    level: algebra.Level,
    group: algebra.Group,
    letters: list[Form],
    states: list[Form],
) -> tuple[Moves, Form, Form]:
    """(moves, written, reset) of a level: what its letter does, from those before it."""
    mlp, befores = _look_back(draft, states) if states else (None, [])
    moves, written, resets = collections.defaultdict(list), [], []
    for context, row in zip(level.contexts, level.letter_CS, strict=True):
        for letter, own_letter in zip(letters, row, strict=True):
            move = level.automaton.delta_SQ[own_letter]
            element = group.numbers.get(tuple(move.tolist()))
            if element == 0:
                continue  # the identity
            here = letter
            if mlp is not None:
                known = [before[q] for before, q in zip(befores, context, strict=True)]
                here = mlp.both([*known, letter])
            if element is not None:
                moves[element].append((1.0, here))
            else:
                written.append((move[0] + 1.0, here))
                resets.append((1.0, here))
    pad = draft.channel("pad", pads=1.0)  # the first reset, to the start
    pad = pad if mlp is None else mlp.relu(pad)
    written.append((level.automaton.start + 1.0, pad))
    resets.append((1.0, pad))

    named = {
        element: _write(draft, mlp, f"move {n}", parts)
        for n, (element, parts) in enumerate(moves.items())
    }
    return named, _write(draft, mlp, "written", written), _write(draft, mlp, "reset", resets)


def _write(draft: Draft, mlp: FeedForward | None, name: str, parts: list) -> Form:
    """A channel of the next level; of the first level, it comes with the embeddings."""
    channel, form = draft.channel(name), combine(parts)
    if mlp is None:
        _embed(draft, channel, form)
    elif name.startswith("move"):
        mlp.add(channel, form)  # earlier levels left these empty
    else:
        mlp.overwrite(channel, form)
    return channel


def _look_back(draft: Draft, states: list[Form]) -> tuple[FeedForward, list]:
    """A layer whose head copies the earlier levels' states of t - 1; conditions on each."""
    layer, rows = draft.layer(), draft.rows
    unit = math.pi / rows
    angle_N = unit * np.arange(rows)
    cosine = draft.channel("cos", place=np.cos(angle_N))
    sine = draft.channel("sin", place=np.sin(angle_N))
    befores = [draft.channel(f"before {n}") for n in range(len(states))]
    spread = draft.automaton.num_states
    gap = math.log(16 * spread * rows)
    scale = gap / (1 - math.cos(unit))
    reads = [(state, before, 1.0) for state, before in zip(states, befores, strict=True)]
    draft.select(
        layer, Head([cosine, sine], turned(cosine, sine, unit), reads, scale), scale, gap, spread
    )
    size = spread  # levels have at most as many states
    conditions = [
        [layer.mlp.staircase(before, is_value(q, size)) for q in range(size)] for before in befores
    ]
    for before in befores:
        layer.mlp.overwrite(before, 0.0)
    return layer.mlp, conditions


def _embed(draft: Draft, channel: Form, form: Form) -> None:
    """Lets the embeddings of a channel be a form of other channels'."""
    (name,) = channel.terms
    target = draft.channels[name]
    for source, value in form.terms.items():
        target.letters += value * draft.channels[source].letters
        target.pads += value * draft.channels[source].pads


def _join(draft: Draft, mlp: FeedForward, found: algebra.Cascade, states, here) -> None:
    """The state that the levels' states stand for."""
    joint = draft.channel("state")
    size = draft.automaton.num_states
    for (*holes, last), state in found.states.items():
        if state and last in here:
            earlier = [
                mlp.interpolate(channel, is_value(q, size))
                for channel, q in zip(states, holes, strict=True)
            ]
            mlp.add(joint, state * mlp.both([*earlier, here[last]]))


def _refuse_level(automaton: Semiautomaton, number: int, group: algebra.Group, length: int) -> None:
    if group.solvable:
        return
    way_out = f"use construction='prefix', ceil(log2 T) = {count_layers(length)} layers"
    if (order := unsolvable_subgroup(automaton)) is not None:
        raise ConfigError(
            f"{automaton.name}: its letters generate a non-solvable group of {order} elements; no "
            "depth that is constant in T can follow it with polynomial width and O(log T) bits, "
            f"unless TC0 = NC1 (theorem 13); {way_out}"
        )
    raise ConfigError(
        f"{automaton.name} is solvable, but level {number} of its cascade of holes generates a "
        f"non-solvable group of {group.order} elements: it comes from the decomposition, not from "
        f"the automaton, and can happen from 6 states on (this has {automaton.num_states}); "
        f"{way_out}"
    )


def unsolvable_subgroup(automaton: Semiautomaton) -> int | None:
    """The order of a non-solvable group within T(A), None if there is none.

    Its groups are what maps do to the image of an idempotent one that they permute.
    """
    if not (group := algebra.group(automaton)).solvable:
        return group.order
    maps = np.array(algebra.semigroup(automaton))
    idempotent = (np.take_along_axis(maps, maps, axis=1) == maps).all(axis=1)
    for image in {tuple(sorted(set(move))) for move in maps[idempotent].tolist()}:
        moved = maps[:, image]
        permuting = moved[(np.sort(moved, axis=1) == np.array(image)).all(axis=1)]
        number = {point: n for n, point in enumerate(image)}
        moves = {tuple(number[q] for q in move) for move in permuting.tolist()}
        group = algebra.generate(sorted(moves), len(image), automaton.name)
        if not group.solvable:
            return group.order
    return None


def _bounds(automaton: Semiautomaton, length: int) -> dict:
    n, letters = automaton.num_states, automaton.num_letters
    return {
        "depth": (3 * n**2 * math.log2(n) + 7 * n, "3|Q|^2 log|Q| + 7|Q|"),
        "width": (None, "O(2^|Q| |T(A)|)"),
        "heads": (None, "2^(|Q|+1) (|T(A)| + 1)"),
        "head_dim": (None, "max over levels of 2|G| + 3; stated as |Q| + 3"),
        "mlp_width": (None, "|Q|^O(2^|Q|) + O(2^|Q| |Q| |T(A)| T)"),
        "largest_weight": (
            6 * n * length * math.log(length) + 6 * max(n, letters),
            "6|Q| T log T + 6 max(|Q|, |Sigma|)",
        ),
    }
