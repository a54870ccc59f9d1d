"""Which sentences share a training example.

`build.py` runs it all. A strategy (`contiguous`, `neighbour_groups`, `random_groups`, `task_only`,
`document_path`, `shared_entity`) writes groups of sentences (`groups.py`), which `gain_filter.py`
may thin out; `records.py` writes them as TFRecords, laid out in context or in batch (`layout.py`).
`explain.py` and `card/` show what came out, `export.py` hands it to other trainers.
"""
