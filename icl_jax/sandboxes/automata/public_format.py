"""Rows for other programs, and the automata of the public set synthseq/automata as it numbers them.

`datasets.Dataset.from_generator(rows, gen_kwargs={"automaton": "D6", "length": 20, "count": 512})`
is a data set with the fields of that set, and `IterableDataset` one without end.

`public("symmetric", n=5)` is an automaton of the set (Liu et al. 2023; its loader automata.py,
Apache 2, was read in a copy) with the same letters, states and labels. Where ours differ:

- The same, number for number: C2 (its parity), C_n (its cyclic with n_actions=n), Grid_n (its
  gridworld), Q8 and abab. But a quarter of its rows of abab is abab..., of ours none.
- D_2n: there, letter 0 reverses and 1 advances; states are n * reversed + place, ours 2 * place +
  reversed.
- memory_m: there, state 0 means that nothing was written yet, and half of the letters write:
  `rows(public("flipflop"), length, weights=(2, 1, 1))` draws as it does.
- S_n and A_n: there, letter 0 does nothing, and letters act on places, so that letters and states
  are the inverses of ours. With n_actions above 3 it overwrites the transposition with the next
  permutation, and so does `public`; we keep it.
- reset(G): there, the letters that reset come first in the alphabet. The first letter of a row
  resets, and so does one 1, 2, 4, ... letters later; `rows` draws every letter independently.
- Its gridworld takes the label types parity and boundary, but always gives the state; its dihedral
  takes position, but gives nothing. `public` gives what they are called.
- It has a binary adder too. Dyck, products, planes and cascades are ours alone.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import itertools

import jax
import numpy as np

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata import library
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton

DRAWN_AT_ONCE = 256  # rows; those of a seed are the same whatever the count
MOST_POINTS = 6  # of permutations: 720 states


def rows(
    automaton: Semiautomaton | str,
    length: int,
    count: int | None = None,
    seed: int = 0,
    weights: Sequence[float] | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """`input_ids` (letters) and `label_ids` (what is seen of the states), int32, row after row.

    Without a count there is no end. Weights are those of the letters, uniform unless given.
    """
    automaton = library.as_automaton(automaton)
    for what, value in {"length": length, "count": 1 if count is None else count}.items():
        if not isinstance(value, int | np.integer) or value < 1:
            raise ConfigError(f"{what} must be a whole number, at least 1, got {value!r}")
    automaton.sample(jax.random.key(0), 1, 1, weights)  # stops here on wrong weights
    return itertools.islice(_endless(automaton, length, seed, weights), count)


def _endless(automaton, length, seed, weights) -> Iterator[dict[str, np.ndarray]]:
    @jax.jit
    def draw(part):
        key = jax.random.fold_in(jax.random.key(seed), part)
        return automaton.sample(key, DRAWN_AT_ONCE, length, weights)

    for part in itertools.count():
        drawn = jax.device_get(draw(part))
        for letters, labels in zip(drawn["letters"], drawn["labels"], strict=True):
            yield {"input_ids": letters, "label_ids": labels}


def public(name: str, label_type: str = "state", **settings) -> Semiautomaton:
    """An automaton of synthseq/automata, by the name and with the settings that it has there."""
    if name not in PUBLIC:
        raise ConfigError(f"expected one of {', '.join(PUBLIC)}, got '{name}'")
    try:
        automaton, labels = PUBLIC[name](**settings)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from None
    if label_type == "state":
        return automaton
    if label_type not in labels:
        known = ", ".join(["state", *labels])
        raise ConfigError(f"{name} has the label types {known}, got '{label_type}'")
    seen = np.array(labels[label_type])
    return automaton.observed(f"{automaton.name} {label_type}", seen.__getitem__, seen.max() + 1)


Labels = dict[str, Sequence[int]]  # label type -> label of each state


def _parity() -> tuple[Semiautomaton, Labels]:
    return library.cyclic(2), {}


def _gridworld(n: int = 9) -> tuple[Semiautomaton, Labels]:
    q = np.arange(n)
    return library.grid(n), {"parity": q % 2, "boundary": (q == 0) | (q == n - 1)}


def _abab(prob_abab_pos_sample: float = 0.25) -> tuple[Semiautomaton, Labels]:
    automaton = dataclasses.replace(library.abab(), pattern_share=prob_abab_pos_sample)
    return automaton, {"boundary": [0, 0, 0, 1, 0]}


def _flipflop(n: int = 2) -> tuple[Semiautomaton, Labels]:
    written = library.memory(n + 1)
    keep_or_write = [0, *range(2, n + 2)]  # no letter writes the start, 0
    return Semiautomaton("flipflop", written.delta_SQ[keep_or_write]), {}


def _cyclic(n: int = 5, n_actions: int = 2) -> tuple[Semiautomaton, Labels]:
    _check_actions(n_actions, n)
    delta_SQ = library.cyclic(n).delta_SQ
    return Semiautomaton(f"C{n}", delta_SQ[:n_actions]), {}


def _dihedral(n: int = 4) -> tuple[Semiautomaton, Labels]:
    ours = library.dihedral(2 * n)
    theirs = np.arange(2 * n).reshape(n, 2).T.reshape(-1)  # our state of each of theirs
    number = np.argsort(theirs)
    delta = number[ours.delta_SQ[::-1][:, theirs]]
    states = tuple(ours.states[q] for q in theirs)
    labels = {"toggle": np.arange(2 * n) // n, "position": np.arange(2 * n) % n}
    return Semiautomaton(ours.name, delta, letters=ours.letters[::-1], states=states), labels


def _quaternion() -> tuple[Semiautomaton, Labels]:
    return library.quaternion(), {}


def _symmetric(n: int = 5, n_actions: int = 3) -> tuple[Semiautomaton, Labels]:
    states = _all_permutations(f"S{n}", n)
    _check_actions(n_actions, len(states))
    identity = states[0]
    shift, swap = (*identity[1:], 0), (1, 0, *identity[2:])
    letters = [identity, shift, swap]
    if n_actions > 3:
        letters = [identity, shift, *(p for p in states if p not in (identity, shift))]
    return _on_places(f"S{n}", states, letters[:n_actions])


def _alternating(n: int = 5) -> tuple[Semiautomaton, Labels]:
    states = [p for p in _all_permutations(f"A{n}", n) if _is_even(p)]
    cycles = [tuple(cycle) for cycle in library.alternating(n).point_delta_SP.tolist()]
    return _on_places(f"A{n}", states, [states[0], *cycles])


def _permutation_reset(
    n: int, generators: Sequence[Sequence[int] | str]
) -> tuple[Semiautomaton, Labels]:
    states = _all_permutations(f"reset(S{n})", n)
    number = {state: place for place, state in enumerate(states)}
    resets = [[place] * len(states) for place in range(len(states))]
    try:
        moves = [[int(point) for point in generator] for generator in generators]
    except (TypeError, ValueError):
        moves = []
    if not moves or any(tuple(move) not in number for move in moves):
        raise ConfigError(
            f"generators must be a list of permutations of 0 to {n - 1}, each as "
            f"'{''.join(map(str, range(n)))}', got {generators!r}"
        )
    turns = [[number[tuple(move[x] for x in state)] for state in states] for move in moves]
    return Semiautomaton(f"reset(S{n})", np.array(resets + turns)), {}


def _all_permutations(name: str, n: int) -> list[tuple[int, ...]]:
    if not 3 <= n <= MOST_POINTS:
        raise ConfigError(f"{name}: n must be from 3 to {MOST_POINTS}, got {n}")
    return list(itertools.permutations(range(n)))


def _check_actions(count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise ConfigError(f"n_actions must be from 1 to {most}, got {count}")


def _is_even(permutation: tuple[int, ...]) -> bool:
    return sum(a > b for a, b in itertools.combinations(permutation, 2)) % 2 == 0


def _on_places(name: str, states, letters) -> tuple[Semiautomaton, Labels]:
    """Letters that move what is at place a[i] to place i."""
    number = {state: place for place, state in enumerate(states)}
    delta = [[number[tuple(state[i] for i in letter)] for state in states] for letter in letters]
    return Semiautomaton(name, np.array(delta)), {"first_chair": [state[0] for state in states]}


PUBLIC: dict[str, Callable[..., tuple[Semiautomaton, Labels]]] = {
    "abab": _abab, "alternating": _alternating, "cyclic": _cyclic, "dihedral": _dihedral,
    "flipflop": _flipflop, "gridworld": _gridworld, "parity": _parity,
    "permutation_reset": _permutation_reset, "quaternion": _quaternion, "symmetric": _symmetric,
}  # fmt: skip
