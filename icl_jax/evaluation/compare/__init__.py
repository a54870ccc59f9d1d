"""Comparison of evaluated models: one table, one figure, and what is significant."""
