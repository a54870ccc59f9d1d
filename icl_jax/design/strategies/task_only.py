"""TAPT: the queries of the neighbour groups, each alone."""

from pathlib import Path

import numpy as np

from icl_jax.design.groups import GroupShard, read_groups, read_keep, write_groups


def make_shard(neighbours: str, folder: str, index: int) -> None:
    """One shard; `neighbours` is the folder of the neighbour groups."""
    groups = read_groups(Path(neighbours), index)
    queries = groups.ids[groups.offsets[:-1]][read_keep(Path(neighbours), index, len(groups))]
    alone = GroupShard(np.arange(len(queries) + 1), queries, np.ones(len(queries), np.float32))
    write_groups(Path(folder), index, alone)
