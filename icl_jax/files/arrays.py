"""Arrays on disk, each in a `.npy` file of its own."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from icl_jax.files.step_folder import beside


def save_array(file: Path, array: np.ndarray) -> None:
    """Writes an array, whole or not at all."""
    with beside(file) as partial, partial.open("wb") as opened:
        np.save(opened, array, allow_pickle=False)


def map_array(file: Path) -> np.ndarray:
    """As `np.load(mmap_mode="r")`, which would keep a file open for each of thousands of shards."""
    with file.open("rb") as opened:
        np.lib.format.read_magic(opened)
        shape, _, dtype = np.lib.format.read_array_header_1_0(opened)
        start = opened.tell()
    with pa.memory_map(str(file)) as mapped:
        content = mapped.read_buffer()
    return np.frombuffer(content, dtype, offset=start).reshape(shape)
