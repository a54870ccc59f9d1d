"""Dyck(k, D): balanced brackets, and attention that solves them without looking like a stack.

`Dyck(types, depth, opening)` is the language; `python -m icl_jax.sandboxes.dyck` runs everything.
"""

from icl_jax.sandboxes.dyck.language import Dyck

__all__ = ["Dyck"]
