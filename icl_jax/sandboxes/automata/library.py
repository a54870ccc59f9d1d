"""Every automaton by its name: `make("D6")`, `make("Dyck(4,2)")`, `make("C2xC3")`.

Liu 2024, 3.4.5.1 and 3.3.1. D6 has 6 elements and D8 has 8; Dyck(n,k) is n deep, of k types.
"""

from collections.abc import Callable
import dataclasses
import difflib
import functools
import itertools
import math
import re

import numpy as np

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton

PUBLISHED = (  # the rows of Figures 3.15 and 3.16
    "Dyck(4,2)", "Grid4", "Grid9", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C2^2", "C2^3",
    "D6", "D8", "Q8", "A4", "A5", "S4", "S5",
)  # fmt: skip
OTHERS = ("flipflop", "memory4", "Grid4+", "Grid9+", "Grid4xGrid4", "abab", "C2xC3", "reset(D6)")
MOST_STATES = 5000
MOST_TRANSITIONS = 10_000_000  # letters x states of a product


def names() -> list[str]:
    """The published automata and some others; `make` knows every name of these forms."""
    return [*PUBLISHED, *OTHERS]


def make(name: str) -> Semiautomaton:
    """The automaton of a name: of `names()`, or of the same form with other numbers."""
    if not isinstance(name, str):
        raise ConfigError(f"expected the name of an automaton, as 'D6', got {name!r}")
    compact = re.sub(r"[\s_{}]", "", name).lower()
    factors = _factors(compact)
    if len(factors) > 1 and all(factors) and not re.fullmatch(PLANE, compact):
        return functools.reduce(product, map(make, factors))
    for pattern, build in FORMS.items():
        if found := re.fullmatch(pattern, compact):
            return build(*(int(n) if n and n.isdigit() else n for n in found.groups()))
    known = {known.lower(): known for known in names()}
    close = [known[n] for n in difflib.get_close_matches(compact, known, 3, 0.5)]
    suggestion = f"closest: {', '.join(close)}" if close else f"expected {', '.join(names())}"
    raise ConfigError(
        f"there is no automaton '{name}'; {suggestion}, or another of the forms Cn, Cn^k, Dn, Q8, "
        "An, Sn, Dyck(n,k), Gridn, Gridn+, GridnxGridk, memoryn, flipflop, abab, AxB and reset(A), "
        "with numbers n and k and names A and B"
    )


def as_automaton(given: Semiautomaton | str) -> Semiautomaton:
    """An automaton, or the one of a name."""
    return given if isinstance(given, Semiautomaton) else make(given)


def _factors(name: str) -> list[str]:
    """The parts between the 'x' that no parentheses enclose."""
    parts, depth = [""], 0
    for letter in name:
        depth += (letter == "(") - (letter == ")")
        if letter == "x" and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def cyclic(n: int) -> Semiautomaton:
    """C_n: addition modulo n; every element is a letter."""
    _check_size(f"C{n}", "n", n, 2, 1000)
    a, q = np.indices((n, n))
    return Semiautomaton(f"C{n}", (q + a) % n)


def cyclic_power(n: int, k: int) -> Semiautomaton:
    """C_n^k: k digits modulo n, each added on its own; every element is a letter."""
    _check_size(f"C{n}^{k}", "n", n, 2, 100)
    _check_size(f"C{n}^{k}", "k", k, 1, 10)
    _check_size(f"C{n}^{k}", "states", n**k, 2, 1000)
    elements = list(itertools.product(range(n), repeat=k))
    number = {element: place for place, element in enumerate(elements)}
    delta = [
        [number[tuple((x + y) % n for x, y in zip(q, a, strict=True))] for q in elements]
        for a in elements
    ]
    shown = tuple("".join(map(str, element)) for element in elements)
    return Semiautomaton(f"C{n}^{k}", np.array(delta), letters=shown, states=shown)


def dihedral(order: int) -> Semiautomaton:
    """D_2n of 2n elements: a place s modulo n and a direction b; letters advance and reverse."""
    if order % 2:
        raise ConfigError(f"a dihedral group has an even number of elements, got D{order}")
    _check_size(f"D{order}", "elements", order, 4, 2000)
    n = order // 2
    states = list(itertools.product(range(n), (1, -1)))
    number = {state: place for place, state in enumerate(states)}
    advance = [number[(s + b) % n, b] for s, b in states]
    reverse = [number[s, -b] for s, b in states]
    shown = tuple(f"{s}{'+' if b > 0 else '-'}" for s, b in states)
    return Semiautomaton(
        f"D{order}", np.array([advance, reverse]), letters=("advance", "reverse"), states=shown
    )


def quaternion() -> Semiautomaton:
    """Q_8: +-1, +-i, +-j, +-k, multiplied on the right by one of 1, i, j, k."""
    units = "1ijk"
    # Products of two units: (sign, unit).
    table = {("i", "j"): (1, "k"), ("j", "k"): (1, "i"), ("k", "i"): (1, "j")}
    table |= {(b, a): (-1, c) for (a, b), (_, c) in table.items()}
    table |= {(u, u): (-1, "1") for u in "ijk"}
    table |= {("1", u): (1, u) for u in units} | {(u, "1"): (1, u) for u in units}
    states = [(sign, unit) for sign in (1, -1) for unit in units]
    delta = [
        [states.index((sign * table[q, a][0], table[q, a][1])) for sign, q in states] for a in units
    ]
    shown = tuple(f"{'-' if sign < 0 else ''}{unit}" for sign, unit in states)
    return Semiautomaton("Q8", np.array(delta), letters=tuple(units), states=shown)


def symmetric(n: int, generators: int = 8) -> Semiautomaton:
    """S_n: an n-cycle, a transposition and further permutations in lexicographic order."""
    _check_size(f"S{n}", "n", n, 2, 6)
    _check_size(f"S{n}", "generators", generators, 2, math.factorial(6))
    identity = tuple(range(n))
    letters = [(*identity[1:], 0), (1, 0, *identity[2:])]
    others = [p for p in itertools.permutations(identity) if p not in (identity, *letters)]
    letters = list(dict.fromkeys(letters)) + others
    return permutations(f"S{n}", letters[:generators])


def alternating(n: int) -> Semiautomaton:
    """A_n: the 3-cycles (1 2 i)."""
    _check_size(f"A{n}", "n", n, 3, 6)
    cycles = []
    for i in range(2, n):
        moved = list(range(n))
        moved[0], moved[1], moved[i] = 1, i, 0
        cycles.append(tuple(moved))
    return permutations(f"A{n}", cycles)


def permutations(name: str, letters: list[tuple[int, ...]]) -> Semiautomaton:
    """The group that permutations of points generate; the state is their product so far."""
    identity = tuple(range(len(letters[0])))
    found = {identity}
    frontier = [identity]
    while frontier:
        products = {_after(a, state) for state in frontier for a in letters}
        frontier = sorted(products - found)
        found |= products
    states = sorted(found)
    number = {state: place for place, state in enumerate(states)}
    delta = [[number[_after(a, state)] for state in states] for a in letters]
    show = lambda p: "".join(str(x + 1) for x in p)  # noqa: E731
    return Semiautomaton(
        name,
        np.array(delta),
        start=number[identity],
        letters=tuple(map(show, letters)),
        states=tuple(map(show, states)),
        point_delta_SP=np.array(letters, np.int32),
        image_QP=np.array(states, np.int32),
    )


def _after(later: tuple[int, ...], earlier: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(later[x] for x in earlier)


def dyck(depth: int, types: int) -> Semiautomaton:
    """Dyck: stacks of at most `depth` brackets; letters open a type, then close a type.

    The label of a stack is its number in base types + 1, bottom first: (types + 1)^depth labels.
    """
    name = f"Dyck({depth},{types})"
    _check_size(name, "depth", depth, 1, 12)
    _check_size(name, "types", types, 1, 26)
    _check_size(name, "stacks", sum(types**i for i in range(depth + 1)), 1, MOST_STATES)
    stacks = [s for i in range(depth + 1) for s in itertools.product(range(types), repeat=i)]
    number = {stack: place for place, stack in enumerate(stacks)}
    legal = np.zeros((len(stacks), 2 * types), bool)
    delta = np.tile(np.arange(len(stacks)), (2 * types, 1))  # illegal letters change nothing
    for stack, place in number.items():
        if len(stack) < depth:
            legal[place, :types] = True
            for kind in range(types):
                delta[kind, place] = number[*stack, kind]
        if stack:
            legal[place, types + stack[-1]] = True
            delta[types + stack[-1], place] = number[stack[:-1]]
    labels = [
        sum((kind + 1) * (types + 1) ** cell for cell, kind in enumerate(stack)) for stack in stacks
    ]
    kinds = "abcdefghijklmnopqrstuvwxyz"[:types]
    return Semiautomaton(
        name,
        delta,
        letters=(*kinds, *kinds.upper()),  # a opens, A closes it
        states=tuple("".join(kinds[kind] for kind in stack) or "empty" for stack in stacks),
        legal_QS=legal,
        label_Q=np.array(labels, np.int32),
        num_labels=(types + 1) ** depth,
    )


def grid(n: int, no_op: str | None = None) -> Semiautomaton:
    """Grid_n: a walk on 0 to n - 1 that stops at both ends; Gridn+ has a letter that stays."""
    name = f"Grid{n}{no_op or ''}"
    _check_size(name, "n", n, 2, 1000)
    q = np.arange(n)
    moves = [np.maximum(q - 1, 0), np.minimum(q + 1, n - 1)]
    moves += [q] if no_op else []
    return Semiautomaton(name, np.array(moves), letters=("L", "R", "-")[: len(moves)])


def memory(m: int, name: str = "") -> Semiautomaton:
    """The last value written: letter 0 keeps it, letter 1 + v writes v."""
    _check_size(f"memory{m}", "m", m, 2, 1000)
    q = np.arange(m)
    delta = np.array([q, *(np.full(m, value) for value in q)])
    letters = ("-", *(f"write {value}" for value in q))
    return Semiautomaton(name or f"memory{m}", delta, letters=letters)


def abab() -> Semiautomaton:
    """(abab)*: four states in a ring, entered by a, b, a, b, and a sink, 4, for all else."""
    a, b = [4, 2, 4, 0, 4], [1, 4, 3, 4, 4]
    return Semiautomaton("abab", np.array([a, b]), start=3, letters=("a", "b"), pattern=(0, 1))


def product(first: Semiautomaton, second: Semiautomaton) -> Semiautomaton:
    """Both side by side; a letter is a pair of letters, of which either may be 'stay'.

    Liu 2024, definition 10. Letters that do the same are kept once.
    """
    if first.legal_QS is not None or second.legal_QS is not None:
        raise ConfigError(f"{first.name}x{second.name}: a product needs automata without rules of "
                          "which letters may come")  # fmt: skip
    name = f"{first.name}x{second.name}"
    tables, letters = [], []
    for automaton in (first, second):
        moves = {tuple(range(automaton.num_states)): "-"}
        for letter, move in zip(automaton.letters, automaton.delta_SQ.tolist(), strict=True):
            moves.setdefault(tuple(move), letter)
        tables.append(np.array(list(moves)))
        letters.append(list(moves.values()))
    (one_SQ, two_SQ), (ones, twos) = tables, letters
    num_states = first.num_states * second.num_states
    _check_size(name, "states", num_states, 1, MOST_STATES)
    _check_size(name, "letters x states", len(ones) * len(twos) * num_states, 1, MOST_TRANSITIONS)
    pairs = one_SQ[:, None, :, None] * second.num_states + two_SQ[None, :, None, :]
    return Semiautomaton(
        name,
        pairs.reshape(-1, num_states),
        first.start * second.num_states + second.start,
        tuple(f"{a},{b}" for a, b in itertools.product(ones, twos)),
        tuple(f"{q},{p}" for q, p in itertools.product(first.states, second.states)),
    )


def plane(n: int, m: int) -> Semiautomaton:
    """A grid of n x m (Liu 2024, example 5): left, right, down, up, and stay."""
    one, other = grid(n).delta_SQ, grid(m).delta_SQ
    _check_size(f"Grid{n}xGrid{m}", "states", n * m, 4, MOST_STATES)
    first, second = np.divmod(np.arange(n * m), m)
    moves = [one[0][first] * m + second, one[1][first] * m + second]
    moves += [first * m + other[0][second], first * m + other[1][second], np.arange(n * m)]
    states = tuple(f"{i},{j}" for i, j in np.ndindex(n, m))
    return Semiautomaton(
        f"Grid{n}xGrid{m}", np.array(moves), 0, ("left", "right", "down", "up", "stay"), states
    )


def permutation_reset(group: Semiautomaton) -> Semiautomaton:
    """The letters of a group, and for each of its states a letter that resets to it."""
    if (np.sort(group.delta_SQ, axis=1) != np.arange(group.num_states)).any():
        raise ConfigError(f"reset({group.name}): every letter must permute the states")
    resets = np.tile(np.arange(group.num_states)[:, None], (1, group.num_states))
    return Semiautomaton(
        f"reset({group.name})",
        np.concatenate([group.delta_SQ, resets]),
        group.start,
        (*group.letters, *(f"reset {state}" for state in group.states)),
        group.states,
    )


def cascade(
    name: str,
    levels: list[Semiautomaton],
    wires: list[Callable[..., int]],
    num_letters: int,
) -> Semiautomaton:
    """Levels that read each other (Liu 2024, definition 6), as one automaton.

    Level i gets the letter `wires[i](letter, states of the levels before it)`.
    """
    sizes = [level.num_states for level in levels]
    _check_size(name, "states", math.prod(sizes), 1, MOST_STATES)
    delta = np.empty((num_letters, int(np.prod(sizes))), np.int32)
    for letter in range(num_letters):
        for place, before in enumerate(np.ndindex(*sizes)):
            after = [
                level.delta_SQ[wire(letter, *before[:i]), before[i]]
                for i, (level, wire) in enumerate(zip(levels, wires, strict=True))
            ]
            delta[letter, place] = np.ravel_multi_index(after, sizes)
    start = int(np.ravel_multi_index([level.start for level in levels], sizes))
    states = tuple(",".join(map(str, state)) for state in np.ndindex(*sizes))
    return Semiautomaton(name, delta, start, states=states)


# What is seen in the experiments with indirect supervision (Liu 2024, 3.4.5.2.1).


def indirect(name: str) -> Semiautomaton:
    """An automaton of the experiments in which only a part of the state is seen."""
    if name not in INDIRECT:
        raise ConfigError(f"expected one of {', '.join(INDIRECT)}, got '{name}'")
    return INDIRECT[name]()


def _stack_top(depth: int, types: int) -> Semiautomaton:
    automaton = dyck(depth, types)
    kinds = "abcdefghijklmnopqrstuvwxyz"
    return automaton.observed(
        f"Dyck({depth},{types}) top",
        lambda q: 0 if automaton.states[q] == "empty" else 1 + kinds.index(automaton.states[q][-1]),
        types + 1,
    )


def _abab_accepts(name: str, share: float) -> Semiautomaton:
    seen = abab().observed(name, lambda q: int(q == 3), 2)
    return dataclasses.replace(seen, pattern_share=share)


def _first_chair() -> Semiautomaton:
    """Which point is at the first place: the text's and the public set's pi(1).

    Theirs are inverses of ours (see `public_format`). Where the first point is would tell no less
    than a state: it moves by itself, an automaton of 5 states.
    """
    automaton = symmetric(5, generators=5)
    return automaton.observed("S5 first", lambda q: int(np.argmin(automaton.image_QP[q])), 5)


INDIRECT: dict[str, Callable[[], Semiautomaton]] = {
    "Dyck(4,8) top": lambda: _stack_top(4, 8),
    "Grid9 boundary": lambda: grid(9).observed("Grid9 boundary", lambda q: int(q in (0, 8)), 2),
    "S5 first": _first_chair,
    "C4 zero": lambda: cyclic(4).observed("C4 zero", lambda q: int(q == 0), 2),
    "D8 place": lambda: dihedral(8).observed("D8 place", lambda q: q // 2, 4),
    "abab 1": lambda: _abab_accepts("abab 1", 1.0),  # always abab...
    "abab 2": lambda: _abab_accepts("abab 2", 0.5),  # half of the rows random
}


def _check_size(name: str, what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name}: {what} must be from {least} to {most}, got {value}")


PLANE = r"grid(\d+)xgrid(\d+)"  # not the product of two grids: a step moves in one of them
FORMS: dict[str, Callable[..., Semiautomaton]] = {
    r"c(\d+)": cyclic,
    r"c(\d+)\^(\d+)": cyclic_power,
    r"d(\d+)": dihedral,
    r"q8": quaternion,
    r"s(\d+)": symmetric,
    r"a(\d+)": alternating,
    r"dyck\(?(\d+),(\d+)\)?": dyck,
    r"grid(\d+)(\+)?": lambda n, no_op=None: grid(n, no_op),
    PLANE: plane,
    r"memory(\d+)": memory,
    r"flip-?flop": lambda: memory(2, "flipflop"),
    r"\(?abab\)?\*?": abab,
    r"reset\((.+)\)": lambda name: permutation_reset(make(name)),
}
