"""Flip-flop languages: one bit of memory, which Transformers misread on rare rows and LSTMs do not.

`ffl(512, 0.8).sample(key, 64)` draws rows; `rows("val_sparse")` has data for other programs.
"""

from icl_jax.sandboxes.flip_flop.language import Language, Mixture, ffl
from icl_jax.sandboxes.flip_flop.public_format import read_parquet, rows, write_parquet

__all__ = ["Language", "Mixture", "ffl", "read_parquet", "rows", "write_parquet"]
