"""Which sentences share a training example.

`arms.py` is the table of arms; `stage.py` runs every step in order. A strategy of `strategies/`
makes groups of sentences (`groups.py`), which `gain/` may filter; `records/` writes them as
TFRecords, laid out in context or in batch. `explain/` and `card/` show the result,
`contamination/` compares it with evaluation files, and `export.py` converts it for other trainers.
"""
