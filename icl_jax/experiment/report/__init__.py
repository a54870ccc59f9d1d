"""The report of an experiment with branches."""
