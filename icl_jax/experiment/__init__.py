"""All of an experiment: its stages, its branches, its rounds, and what they add up to."""
