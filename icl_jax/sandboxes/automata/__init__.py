"""Automata: Transformers whose weights are written down, and those that must find them."""

from icl_jax.sandboxes.automata.library import make, names
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton

__all__ = ["Semiautomaton", "make", "names"]
