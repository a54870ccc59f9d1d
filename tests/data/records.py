"""Small shards for the tests of data/."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from icl_jax.data.tfrecord import encode_example, write_records


def record(number: int, length: int, batch_group: int | None = None, groups: int = 0) -> bytes:
    """A record whose tokens are all `number`; its group ids rise to `groups` (0: no feature)."""
    features = {"tokens": np.full(length, number)}
    if groups:
        features["group"] = np.sort(np.arange(length) % groups) + 1
    if batch_group is not None:
        features["batch_group"] = [batch_group]
    return encode_example(features)


def write_source(folder: Path, shards: Sequence[Sequence[bytes]]) -> str:
    """A folder with these shards; the name to put into `DataConfig.sources`."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, records in enumerate(shards):
        write_records(folder / f"x.tfrecord-{i:05}-of-{len(shards):05}", records)
    return str(folder)


def flip_bit(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
