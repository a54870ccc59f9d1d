"""Brackets of bounded depth, in two layers (ours: Liu 2024 gives no construction for them).

Layer 1 counts the height. In layer 2, head i finds the last bracket that opened up to height i: it
is in cell i of the stack, as long as the height is at least i.
"""

import numpy as np

from icl_jax.config import ConfigError
from icl_jax.sandboxes.automata import library
from icl_jax.sandboxes.automata.exact.assembly import Draft
from icl_jax.sandboxes.automata.exact.gadgets import is_value
from icl_jax.sandboxes.automata.exact.resets import look_up
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton


def dyck(automaton: Semiautomaton, length: int) -> Draft:
    """The cells of the stack, each 0 or the type of its bracket; letters must be legal."""
    same = _same(automaton)
    depth, types = max(map(len, same.states[1:])), automaton.num_letters // 2
    draft = Draft(automaton, length)
    one = draft.channel("one", letters=1.0, pads=1.0)
    pad, log = draft.channel("pad", pads=1.0), draft.logs()
    kinds = np.arange(2 * types)
    opens = draft.channel("opens", letters=kinds < types)
    kind = draft.channel("kind", letters=np.where(kinds < types, kinds + 1, 0))
    step = draft.channel("step", letters=np.where(kinds < types, 1, -1))
    height, first, second = draft.channel("height"), draft.layer(), draft.layer()
    draft.count(first, [(step, height)], pad, log)
    opened = 2 * height + opens  # 2i + 1 where a bracket opens up to height i
    cells = []
    for i in range(1, depth + 1):
        here, high = draft.channel(f"opens to {i}"), draft.channel(f"at least {i}")
        table = np.arange(2 * depth + 2)
        first.mlp.add(here, first.mlp.interpolate(opened, is_value(2 * i + 1, 2 * depth + 2)))
        first.mlp.add(high, first.mlp.interpolate(opened, table >= 2 * i))
        cell = draft.channel(f"cell {i}")
        look_up(draft, second, here, [(kind, cell, 1.0)], types)
        inside = second.mlp.relu(cell + types * high - types)
        second.mlp.overwrite(cell, inside)
        cells.append(cell)
    draft.read(cells, one, _codes(same, depth))
    parts = ("depth", "width", "heads", "head_dim", "mlp_width", "largest_weight")
    draft.bounds = dict.fromkeys(parts, (None, "none is published"))
    return draft


def _codes(automaton: Semiautomaton, depth: int) -> np.ndarray:
    codes_QD = np.zeros((automaton.num_states, depth))
    for q, stack in enumerate(automaton.states):
        for cell, kind in enumerate("" if stack == "empty" else stack):
            codes_QD[q, cell] = 1 + automaton.letters.index(kind)
    return codes_QD


def _same(automaton: Semiautomaton) -> Semiautomaton:
    """The Dyck automaton of the library that this one is."""
    types = max(automaton.num_letters // 2, 1)
    for depth in range(1, 13):
        if sum(types**i for i in range(depth + 1)) == automaton.num_states:
            same = library.dyck(depth, types)
            if np.array_equal(same.delta_SQ, automaton.delta_SQ) and np.array_equal(
                same.legal_QS, automaton.legal_QS
            ):
                return same
    raise ConfigError(
        f"{automaton.name}: construction='dyck' needs the states, letters and rules of "
        "Dyck(n,k) as the library makes it; use 'cascade' or 'prefix'"
    )
