"""Counters and solvable groups: a layer for each step of the derived series.

Liu 2024, lemmas 15 and 17 to 19. Let N = G', H = G/N with representatives s, and h_t the coset of
g_t ... g_1. Then n_t(x) = s(x h_t^-1) g_t s(x h_(t-1)^-1)^-1 is in N, and g_t ... g_1 is
n_t(x) ... n_1(x) s(h_t) at x = h_t: count h_t, and follow N once for every x in H.
"""

import collections
import dataclasses
import math

import numpy as np

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata import algebra
from icl_jax.sandboxes.automata.exact.assembly import Draft
from icl_jax.sandboxes.automata.exact.gadgets import FeedForward, Form, combine, is_value
from icl_jax.sandboxes.automata.exact.prefix import count_layers
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton

Moves = dict[int, Form]  # element -> 1 where it comes; nothing for the identity


def counter(automaton: Semiautomaton, length: int) -> Draft:
    """Addition modulo n, or several side by side: one layer that sums, and a table."""
    group = _group(automaton, "counter", length)
    if group.derived_length != 1:
        raise ConfigError(
            f"{automaton.name}: a counter needs an abelian group of letters; expected "
            f"construction='solvable', {group.derived_length} layers"
        )
    state_E = group.maps_EQ[:, automaton.start]
    if len(set(state_E)) < group.order:
        raise ConfigError(
            f"{automaton.name}: the state does not tell its {group.order} elements apart, so they "
            "are no counts; use construction='solvable'"
        )
    quotient = group.quotient(np.arange(group.order), np.zeros(1, np.int64))
    orders = [order for _, order in quotient.basis]
    exponents_ER = quotient.exponents_KR[quotient.coset_E]
    exponents_SR = exponents_ER[[group.numbers[tuple(m)] for m in automaton.delta_SQ.tolist()]]
    draft = Draft(automaton, length)
    pad = draft.channel("count 0", pads=1.0)  # free after the pad: it takes the first sum
    log, layer = draft.logs(), draft.layer()
    sums = [pad, *(draft.channel(f"count {r}") for r in range(1, len(orders)))]
    values = [draft.channel(f"add {r}", letters=x) for r, x in enumerate(exponents_SR.T)]
    draft.count(layer, list(zip(values, sums, strict=True)), pad, log)
    for r, (order, total) in enumerate(zip(orders, sums, strict=True)):
        most = int(exponents_SR[:, r].max()) * length
        layer.mlp.overwrite(total, layer.mlp.interpolate(total, np.arange(most + 1) % order))
    layer.mlp.overwrite(log, 1.0)  # the constant that the readout needs
    codes_QR = np.full((automaton.num_states, len(orders)), np.nan)
    codes_QR[state_E] = exponents_ER
    draft.read(sums, log, codes_QR)
    draft.bounds = _counter_bounds(orders, length)
    return draft


def solvable(automaton: Semiautomaton, length: int) -> Draft:
    """A solvable group: as many layers as its derived series has steps."""
    group = _group(automaton, "solvable", length)
    draft = Draft(automaton, length)
    one = draft.channel("one", letters=1.0, pads=1.0)
    mlp, products = group_layers(draft, group, letter_moves(draft, group, automaton))
    state = draft.channel("state")
    for element, conditions in products.items():
        if target := int(group.maps_EQ[element, automaton.start]):
            mlp.add(state, target * mlp.both(conditions))
    if not products:  # the trivial group: nothing ever moves
        mlp.add(state, Form(constant=automaton.start))
    draft.read([state], one, np.arange(automaton.num_states))
    n, order = points(automaton), group.order
    draft.bounds = {
        "depth": (3 * math.log2(order), "3 log2|G|"),
        "width": (2 * order, "2|G|"),
        "heads": (2 * order, "2|G|"),
        "head_dim": (1, "1"),
        "mlp_width": (20 * n * length * order, "20 n T |G|"),
        "largest_weight": (6 * n * length, "6 n T"),
    }
    return draft


def points(automaton: Semiautomaton) -> int:
    """How many points its letters permute: those it has, or the states."""
    moves_SP = automaton.point_delta_SP
    return automaton.num_states if moves_SP is None else moves_SP.shape[1]


def letter_moves(draft: Draft, group: algebra.Group, automaton: Semiautomaton) -> Moves:
    """A channel for each element that letters stand for; resets, if any, stand for none."""
    letters = collections.defaultdict(list)
    for letter, move in enumerate(automaton.delta_SQ.tolist()):
        if element := group.numbers.get(tuple(move), 0):
            letters[element].append(letter)
    return {
        element: draft.channel(f"move {n}", np.isin(np.arange(automaton.num_letters), which))
        for n, (element, which) in enumerate(letters.items())
    }


@dataclasses.dataclass
class Copy:
    """A network for one x; it is the one that counts where `path` holds."""

    moves: Moves
    path: list[tuple[str, int, int]]  # (channel of a residue, its order, the value it must have)
    element: int = 0  # s(h) s(h') ... of the path, later ones first


def group_layers(
    draft: Draft, group: algebra.Group, moves: Moves
) -> tuple[FeedForward, dict[int, list[Form]]]:
    """Adds the layers; at the last feed-forward layer all of some conditions hold at an element."""
    copies = [Copy(moves, [])]
    steps = list(zip(group.derived_series, group.derived_series[1:], strict=False))
    if not steps:
        return draft.layer().mlp, {}
    quotients = [group.quotient(whole, normal) for whole, normal in steps]
    # Tables may be off by so much that ANDs, times the number of an element or a state, are not.
    largest = max(group.order, draft.automaton.num_states)
    tolerance = 0.125 / (largest * sum(1 + len(quotient.basis) for quotient in quotients))
    for depth, quotient in enumerate(quotients):
        layer, last = draft.layer(), depth == len(steps) - 1
        counts = _count(draft, layer, quotient, copies)
        # What is counted again adds up over the row.
        allowed = tolerance if last else tolerance / draft.rows
        residues = [_Residues(draft, layer.mlp, quotient, sums, allowed) for sums in counts]
        if last:
            found = _products(group, layer.mlp, quotient, copies, residues)
        else:
            copies = _descend(group, layer.mlp, quotient, copies, residues, depth)
        _renew(draft, layer.mlp, [] if last else copies)
        for channel, _ in (pair for sums in counts for pair in sums):
            layer.mlp.overwrite(channel, 0.0)
    return layer.mlp, found


def _count(draft: Draft, layer, quotient: algebra.Quotient, copies: list[Copy]) -> list:
    """One head that sums the exponents of all copies; channels, each with the most it may hold."""
    counts, reads = [], []
    for copy in copies:
        sums = []
        for r in range(len(quotient.basis)):
            exponent = {e: int(quotient.exponents_KR[quotient.coset_E[e], r]) for e in copy.moves}
            value = combine((exponent[e], move) for e, move in copy.moves.items())
            channel = draft.channel(f"count {len(reads)}")
            reads.append((value, channel))
            sums.append((channel, max(exponent.values(), default=0) * draft.length))
        counts.append(sums)
    draft.count(layer, reads, draft.channel("pad", pads=1.0), draft.logs())
    return counts


class _Residues:
    """h of one copy, from its counts: conditions on this feed-forward layer."""

    def __init__(self, draft: Draft, mlp: FeedForward, quotient, sums, tolerance: float):
        self.draft, self.mlp, self.quotient, self.sums = draft, mlp, quotient, sums
        self.tolerance = tolerance
        self.orders = [order for _, order in quotient.basis]

    def conditions(self, coset: int) -> list[Form]:
        exponents = self.quotient.exponents_KR[coset]
        return [
            self._table(r, np.arange(most + 1) % order == exponents[r])
            for r, (order, (_, most)) in enumerate(zip(self.orders, self.sums, strict=True))
        ]

    def keep(self, name: str) -> list[tuple[str, int]]:
        """Writes the residues to channels; their names and orders."""
        kept = []
        for r, (order, (_, most)) in enumerate(zip(self.orders, self.sums, strict=True)):
            kept.append((f"{name} {r}", order))
            # An earlier level of a cascade may have left its residues there.
            write = self.mlp.overwrite if kept[-1][0] in self.draft.channels else self.mlp.add
            write(self.draft.channel(kept[-1][0]), self._table(r, np.arange(most + 1) % order))
        return kept

    def _table(self, r: int, table: np.ndarray) -> Form:
        return self.mlp.interpolate(self.sums[r][0], table, tolerance=self.tolerance)


def _descend(group, mlp, quotient, copies, residues, depth: int) -> list[Copy]:
    """What the copies of the next step read: n_t(x), by ANDs of h_t and g_t."""
    product, inverse, found = group.product_EE, group.inverse_E, []
    for number, (copy, residue) in enumerate(zip(copies, residues, strict=True)):
        kept = residue.keep(f"residue {depth} {number}")
        parts = [collections.defaultdict(list) for _ in range(quotient.order)]
        for h in range(quotient.order):
            conditions = residue.conditions(h)
            back = quotient.inverse_K[h]
            for element, move in copy.moves.items():
                unit = mlp.both([*conditions, move])
                for x in range(quotient.order):
                    now = quotient.product_KK[x, back]
                    before = quotient.product_KK[now, quotient.coset_E[element]]
                    s_now, s_before = quotient.section_K[[now, before]]
                    n = int(product[product[s_now, element], inverse[s_before]])
                    if n:
                        parts[x][n].append(unit)
        for x in range(quotient.order):
            exponents = quotient.exponents_KR[x]
            path = [(name, order, int(e)) for (name, order), e in zip(kept, exponents, strict=True)]
            moves = {n: combine((1.0, unit) for unit in units) for n, units in parts[x].items()}
            section = int(product[quotient.section_K[x], copy.element])
            found.append(Copy(moves, copy.path + path, section))
    return found


def _renew(draft: Draft, mlp: FeedForward, copies: list[Copy]) -> None:
    """The moves of the next step take the channels of this one's."""
    forms = [(copy, element) for copy in copies for element in copy.moves]
    held = [name for name in draft.channels if name.startswith("move ")]
    for n in range(max(len(held), len(forms))):
        name = f"move {n}"
        channel = draft.channel(name)
        if n < len(forms):
            copy, element = forms[n]
            form, copy.moves[element] = copy.moves[element], channel
        else:
            form = Form()
        mlp.overwrite(channel, form) if name in held else mlp.add(channel, form)


def _products(group, mlp, quotient, copies, residues) -> dict[int, list[Form]]:
    """For each element g_t ... g_1, the path that leads to it and the last coset."""
    found = {}
    for copy, residue in zip(copies, residues, strict=True):
        path = [
            mlp.interpolate(Form({name: 1.0}), is_value(value, order))
            for name, order, value in copy.path
        ]
        for coset in range(quotient.order):
            element = int(group.product_EE[quotient.section_K[coset], copy.element])
            found[element] = path + residue.conditions(coset)
    return found


def _group(automaton: Semiautomaton, construction: str, length: int) -> algebra.Group:
    if not algebra.is_group(automaton):
        raise ConfigError(
            f"{automaton.name}: construction='{construction}' needs letters that permute the "
            "states; use 'reset', 'cascade' or 'prefix'"
        )
    group = algebra.group(automaton)
    refuse_unsolvable(automaton.name, group, length)
    return group


def refuse_unsolvable(name: str, group: algebra.Group, length: int) -> None:
    """Stops on a group that constant depth cannot follow (theorem 13)."""
    if not group.solvable:
        raise ConfigError(
            f"{name}: its letters generate a non-solvable group of {group.order} elements, whose "
            f"derived series stops at {len(group.derived_series[-1])}; no depth that is constant "
            "in T can follow it with polynomial width and O(log T) bits, unless TC0 = NC1 (theorem "
            f"13); use construction='prefix', ceil(log2 T) = {count_layers(length)} layers"
        )


def _counter_bounds(orders: list[int], length: int) -> dict:
    count, largest = len(orders), max(orders)
    return {
        "depth": (1, "1"),
        "width": (3 * count, "3" if count == 1 else "3 a counter"),
        "heads": (count, "1" if count == 1 else "1 a counter"),
        "head_dim": (1, "1"),
        "mlp_width": (4 * sum(orders) * length, "4 n T" if count == 1 else "sum of 4 n T"),
        "largest_weight": (4 * largest * length + 2, "4 n T + 2"),
    }
