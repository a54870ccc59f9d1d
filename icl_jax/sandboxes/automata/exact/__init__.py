"""Transformers whose weights are written down, and that follow an automaton without an error."""
