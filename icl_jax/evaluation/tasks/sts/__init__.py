"""Sentence similarity."""
