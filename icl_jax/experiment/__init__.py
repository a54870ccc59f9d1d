"""An experiment: its stages, its branches, its rounds, and their reports."""
