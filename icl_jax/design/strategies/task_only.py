"""TAPT: the queries of the neighbour groups, each alone."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from icl_jax.design.groups import Groups, GroupShard, read_groups, read_keep, write_groups
from icl_jax.design.strategies.strategy import Strategy

if TYPE_CHECKING:
    from icl_jax.design.build import Build


def make_groups(build: "Build") -> Groups:
    """A group for each neighbour group that was kept."""
    neighbours = str(build.folders.groups / "neighbours")
    inputs, starts = build.kept_groups("neighbours"), build.sentences.query_table.starts
    return build.by_shard(
        "task_only", inputs, make_shard, lambda *place: (neighbours, *place), starts
    )


def make_shard(neighbours: str, folder: str, index: int) -> None:
    """One shard; `neighbours` is the folder of the neighbour groups."""
    groups = read_groups(Path(neighbours), index)
    queries = groups.ids[groups.offsets[:-1]][read_keep(Path(neighbours), index, len(groups))]
    alone = GroupShard(np.arange(len(queries) + 1), queries, np.ones(len(queries), np.float32))
    write_groups(Path(folder), index, alone)


STRATEGY = Strategy(make_groups, lambda reasons, ids, left: "this arm has each query alone")
