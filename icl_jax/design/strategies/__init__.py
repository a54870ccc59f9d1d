"""Which sentences form a group: a module for each strategy; `strategy.py` says what it exposes."""
