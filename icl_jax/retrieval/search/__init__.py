"""Vectors to related sentences: engines propose, exact rules decide."""
