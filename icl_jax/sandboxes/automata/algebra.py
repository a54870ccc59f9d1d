"""What an automaton's letters generate: groups, derived series, quotients, and cascades of holes.

All of it is computed from the transitions. A product of maps is later after earlier: the state is
(g_t o ... o g_1)(q0). Shape suffixes: S letters, Q states, E elements, K cosets, C contexts.
"""

from collections.abc import Sequence
import dataclasses
import functools

import numpy as np

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton

MOST_ELEMENTS = 2500  # of a group: its table of products has the square of that
MOST_MAPS = 20_000  # of a semigroup
MOST_CONTEXTS = 20_000  # of a level of a cascade

Map = tuple[int, ...]


def facts(automaton: Semiautomaton, most_maps: int = MOST_MAPS) -> dict:
    """What reports say of an automaton; the group is that of the letters that permute the states.

    `semigroup` counts the maps of nonempty strings, None if there are more than `most_maps`.
    """
    found = group(automaton)
    series = [len(members) for members in found.derived_series]
    try:
        size = len(semigroup(automaton, most_maps))
    except ConfigError:
        size = None
    return {
        "name": automaton.name,
        "states": automaton.num_states,
        "letters": automaton.num_letters,
        "is_group": is_group(automaton),
        "permutation_reset": is_permutation_reset(automaton),
        "order": found.order,
        "derived_series": series,
        "solvable": found.solvable,
        "derived_length": found.derived_length,
        "semigroup": size,
    }


# Maps of the states.


def semigroup(automaton: Semiautomaton, most: int = MOST_MAPS) -> list[Map]:
    """T(A): the maps of Q that nonempty strings of letters make."""
    letters = [tuple(move) for move in automaton.delta_SQ.tolist()]
    found = dict.fromkeys(letters)
    for earlier in (queue := list(found)):
        for later in letters:
            made = tuple(later[q] for q in earlier)
            if made not in found:
                found[made] = None
                queue.append(made)
        if len(found) > most:
            raise ConfigError(
                f"{automaton.name}: its letters make more than {most} maps of "
                f"{automaton.num_states} states; choose a smaller automaton, or raise the limit"
            )
    return list(found)


def is_permutation(move: Sequence[int]) -> bool:
    """Whether a map of Q is one to one."""
    return len(set(map(int, move))) == len(move)


def is_reset(move: Sequence[int]) -> bool:
    """Whether a map of Q takes every state to the same one."""
    return len(set(map(int, move))) == 1


def is_group(automaton: Semiautomaton) -> bool:
    """Whether every letter permutes the states: then the maps of strings are a group."""
    return all(is_permutation(move) for move in automaton.delta_SQ)


def is_permutation_reset(automaton: Semiautomaton) -> bool:
    """Whether every letter permutes the states, or takes all of them to one (definition 7)."""
    return all(is_permutation(move) or is_reset(move) for move in automaton.delta_SQ)


# Groups.


def group(automaton: Semiautomaton) -> "Group":
    """The group that those letters generate that permute the states."""
    moves = [tuple(move) for move in automaton.delta_SQ.tolist() if is_permutation(move)]
    return generate(moves, automaton.num_states, automaton.name)


def generate(moves: Sequence[Map], num_points: int, name: str = "the group") -> "Group":
    """The permutations that some generate; element 0 is the identity."""
    number = {tuple(range(num_points)): 0}
    moves = list(dict.fromkeys(moves))
    parents, after = [], [[] for _ in moves]  # after[i][e]: the number of move i after element e
    for element, earlier in enumerate(queue := list(number)):
        for i, later in enumerate(moves):
            made = tuple(later[q] for q in earlier)
            if made not in number:
                number[made] = len(queue)
                parents.append((i, element))
                queue.append(made)
            after[i].append(number[made])
        if len(queue) > MOST_ELEMENTS:
            raise ConfigError(
                f"{name}: its letters generate more than {MOST_ELEMENTS} permutations, too many "
                "for a table of their products; choose a smaller automaton"
            )
    after = np.array(after, np.int32).reshape(len(moves), len(queue))
    product_EE = np.empty((len(queue), len(queue)), np.int32)
    product_EE[0] = np.arange(len(queue))
    for element, (i, parent) in enumerate(parents, 1):  # (i after parent) after f, for every f
        product_EE[element] = after[i][product_EE[parent]]
    return Group(np.array(queue, np.int32), product_EE)


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Permutations of states, closed under products; element 0 is the identity."""

    maps_EQ: np.ndarray
    product_EE: np.ndarray  # product_EE[g, f]: g after f

    @property
    def order(self) -> int:
        return len(self.maps_EQ)

    @functools.cached_property
    def inverse_E(self) -> np.ndarray:  # noqa: N802
        return np.argmin(self.product_EE, axis=1)

    @functools.cached_property
    def numbers(self) -> dict[Map, int]:
        """The number of the element that is a given map."""
        return {tuple(move): number for number, move in enumerate(self.maps_EQ.tolist())}

    @functools.cached_property
    def derived_series(self) -> list[np.ndarray]:
        """G, G', G'', ..., as numbers of elements, to the trivial group or a perfect one."""
        series = [np.arange(self.order)]
        while True:
            following = self.generated(self.commutators(series[-1]))
            if len(following) == len(series[-1]):
                return series
            series.append(following)

    @property
    def solvable(self) -> bool:
        return len(self.derived_series[-1]) == 1

    @property
    def derived_length(self) -> int | None:
        """The number of steps down to the trivial group; None if they never reach it."""
        return len(self.derived_series) - 1 if self.solvable else None

    def commutators(self, members: np.ndarray) -> np.ndarray:
        """Every g f g^-1 f^-1 of two members."""
        both = self.product_EE[np.ix_(members, members)]  # [i, j]: member i after member j
        return np.unique(self.product_EE[both, self.inverse_E[both.T]])

    def generated(self, elements: np.ndarray) -> np.ndarray:
        """The subgroup that elements generate, as sorted numbers."""
        members = np.zeros(1, np.int64)
        for element in elements:
            while not np.isin(element, members).item():
                members = self._closed(np.append(members, element))
        return members

    def _closed(self, members: np.ndarray) -> np.ndarray:
        while True:
            products = np.unique(self.product_EE[np.ix_(members, members)])
            if len(products) == len(members):
                return products
            members = products

    def quotient(self, whole: np.ndarray, normal: np.ndarray) -> "Quotient":
        """H = whole / normal, of two subgroups; coset 0 is the normal one, its section is 1."""
        coset_E = np.full(self.order, -1)
        section = []
        for element in whole:  # sorted: the identity comes first
            if coset_E[element] < 0:
                coset_E[self.product_EE[element, normal]] = len(section)
                section.append(element)
        section_K = np.array(section)
        return Quotient(coset_E, section_K, coset_E[self.product_EE[np.ix_(section_K, section_K)]])


@dataclasses.dataclass(frozen=True, eq=False)
class Quotient:
    """The cosets of a normal subgroup; coset 0 is the subgroup itself."""

    coset_E: np.ndarray  # pi: the coset of an element; -1 outside the larger subgroup
    section_K: np.ndarray  # s: an element of each coset; s(1) = 1
    product_KK: np.ndarray

    @property
    def order(self) -> int:
        return len(self.section_K)

    @functools.cached_property
    def inverse_K(self) -> np.ndarray:  # noqa: N802
        return np.argmin(self.product_KK, axis=1)

    @functools.cached_property
    def basis(self) -> list[tuple[int, int]]:
        """(generator, its order): every coset is one product of their powers. It must be abelian.

        Greedy: the element of largest order of whose powers only 1 is in the span so far.
        """
        if (self.product_KK != self.product_KK.T).any():
            raise ConfigError(f"a quotient of {self.order} elements is not abelian: no basis")
        powers = [self._powers(element) for element in range(self.order)]
        by_order = sorted(range(self.order), key=lambda element: -len(powers[element]))
        span, found = {0}, []
        for element in by_order:
            if len(powers[element]) > 1 and span.isdisjoint(powers[element][1:]):
                found.append((element, len(powers[element])))
                span = {int(self.product_KK[a, b]) for a in span for b in powers[element]}
        return found

    @functools.cached_property
    def exponents_KR(self) -> np.ndarray:  # noqa: N802
        """The power of each generator of the basis in each coset."""
        orders = [order for _, order in self.basis]
        exponents_KR = np.zeros((self.order, len(orders)), np.int64)
        for exponents in np.ndindex(*orders):
            coset = 0
            for (generator, _), exponent in zip(self.basis, exponents, strict=True):
                coset = self.product_KK[coset, self._powers(generator)[exponent]]
            exponents_KR[coset] = exponents
        return exponents_KR

    def _powers(self, element: int) -> list[int]:
        """1, a, a^2, ... up to the last that is not 1."""
        powers = [0]
        while (following := int(self.product_KK[element, powers[-1]])) != 0:
            powers.append(following)
        return powers


# Cascades.


@dataclasses.dataclass(frozen=True, eq=False)
class Level:
    """A permutation-reset automaton whose letters follow from what the levels before it were."""

    automaton: Semiautomaton
    contexts: list[tuple[int, ...]]  # states of the levels before it that can occur
    letter_CS: np.ndarray  # its letter, by those states at t - 1 and the letter at t


@dataclasses.dataclass(frozen=True, eq=False)
class Cascade:
    """Levels that read those before them (Liu 2024, definition 6), and the state they stand for."""

    levels: list[Level]
    states: dict[tuple[int, ...], int]  # of the states of all levels

    @property
    def solvable(self) -> bool:
        return all(group(level.automaton).solvable for level in self.levels)


def hole_cascade(automaton: Semiautomaton) -> Cascade:
    """Any automaton as a cascade of at most states - 1 permutation-reset levels.

    A level follows a hole: a point where the state is not. Letters that permute the points move the
    hole, all others put it outside their image. What remains has a point less; the next level
    continues with its points, numbered in order, and the last one follows the state itself.
    """
    contexts, move_CSQ = [()], automaton.delta_SQ[None]
    following_CS = np.zeros((1, automaton.num_letters), np.int64)  # the context after a letter
    start, levels = automaton.start, []
    while True:
        moves, letter_CS = _distinct(move_CSQ)
        name = f"level {len(levels) + 1} of {automaton.name}"
        if all(is_permutation(move) or is_reset(move) for move in moves):
            levels.append(Level(Semiautomaton(name, np.array(moves), start), contexts, letter_CS))
            points = range(len(moves[0]))
            states = {(*holes, q): _state(holes, q) for holes in contexts for q in points}
            return Cascade(levels, states)
        hole_moves = np.array([_move_of_hole(move) for move in moves])
        hole = 0 if start else 1  # any point but the start
        distinct, letter_of_move = _distinct(hole_moves)
        level = Semiautomaton(name, np.array(distinct), hole)
        levels.append(Level(level, contexts, letter_of_move[letter_CS]))
        contexts, following_CS, move_CSQ = _extend(
            automaton, contexts, following_CS, move_CSQ, hole_moves[letter_CS], hole
        )
        start -= start > hole


def _distinct(moves: np.ndarray) -> tuple[list[Map], np.ndarray]:
    """The different maps of the last axis, and which of them each is."""
    number: dict[Map, int] = {}
    numbers = [
        number.setdefault(tuple(move), len(number))
        for move in moves.reshape(-1, moves.shape[-1]).tolist()
    ]
    return list(number), np.array(numbers).reshape(moves.shape[:-1])


def _move_of_hole(move: Map) -> Map:
    if is_permutation(move):
        return move
    missed = min(set(range(len(move))) - set(move))
    return (missed,) * len(move)


def _extend(automaton, contexts, following_CS, move_CSQ, hole_move_CSQ, hole: int):
    """The contexts of the next level, what follows each, and the maps of the points left over."""
    number, queue = {(0, hole): 0}, [(0, hole)]
    following, moves = [], []
    for place, hole in queue:
        row_following, row_moves = [], []
        for letter in range(automaton.num_letters):
            then = int(hole_move_CSQ[place, letter, hole])
            pair = (int(following_CS[place, letter]), then)
            if pair not in number:
                number[pair] = len(queue)
                queue.append(pair)
            row_following.append(number[pair])
            left = np.delete(move_CSQ[place, letter], hole)
            row_moves.append(left - (left > then))
        following.append(row_following)
        moves.append(row_moves)
        if len(queue) > MOST_CONTEXTS:
            raise ConfigError(
                f"{automaton.name}: the levels before level {len(contexts[0]) + 2} of its cascade "
                f"have more than {MOST_CONTEXTS} joint states; choose fewer than "
                f"{automaton.num_states} states"
            )
    contexts = [(*contexts[place], hole) for place, hole in queue]
    return contexts, np.array(following), np.array(moves)


def _state(holes: Sequence[int], point: int) -> int:
    """The state that is a point of those that the holes leave over."""
    for hole in reversed(holes):
        point += point >= hole
    return point
