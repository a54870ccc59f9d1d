"""Which sentences form a group: one module for each strategy, and what it needs."""
