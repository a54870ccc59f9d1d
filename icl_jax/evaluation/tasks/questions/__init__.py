"""Closed-book questions."""
