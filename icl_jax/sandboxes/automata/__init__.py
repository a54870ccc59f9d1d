"""Automata: Transformers whose weights are written down, and those that must find them.

`make(name)` is an automaton of `names()`; `exact_network(name, length)` is a Transformer that
follows it without an error; `rows(name, length)` has data for other programs.
"""

from icl_jax.sandboxes.automata.exact.network import exact_network
from icl_jax.sandboxes.automata.library import make, names
from icl_jax.sandboxes.automata.public_format import public, rows
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton

__all__ = ["Semiautomaton", "exact_network", "make", "names", "public", "rows"]
