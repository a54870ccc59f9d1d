"""Groups come back from disk as they were written; what cannot be read is named."""

import numpy as np
import pytest

from icl_jax.config import StageError
from icl_jax.design.groups import (
    NO_SCORE,
    Groups,
    GroupShard,
    group_file,
    keep_file,
    read_counts,
    read_groups,
    read_keep,
    write_groups,
)
from icl_jax.files.step_folder import write_json

RELATED = GroupShard(
    np.array([0, 2, 2, 5]), np.array([7, 3, 1, 2**40, 0]), np.array([1, 0.5, 1, 0.25, 0.125])
)
RUNNING = GroupShard(
    np.array([0, 1, 3]), np.array([4, 5, 6]), np.full(3, NO_SCORE), np.array([11, 12, 13, 14, 15]),
    np.array([0, 2, 5]), np.array([0, 0, 2]),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A strategy of two shards that is finished."""
    write_groups(tmp_path, 0, RELATED, {"too_long": 9})
    write_groups(tmp_path, 1, RUNNING)
    write_json(tmp_path / "results.json", {"shards": 2})
    return tmp_path


def test_shards_come_back_as_they_were_written(folder):
    for index, written in enumerate((RELATED, RUNNING)):
        read = read_groups(folder, index)
        for name, value in vars(written).items():
            np.testing.assert_array_equal(getattr(read, name), value, strict=False)
        assert len(read) == len(written)
    assert read.ids.dtype == np.int64 and read.similarities.dtype == np.float32
    assert read.tokens.dtype == read.starts.dtype == np.int32


def test_groups_are_numbered_through_all_shards(folder):
    groups = Groups.open(folder)
    assert len(groups) == 5 and groups.sizes.tolist() == [2, 0, 3, 1, 2]
    assert [groups.of(i)[0].tolist() for i in range(5)] == [[7, 3], [], [1, 2**40, 0], [4], [5, 6]]
    assert groups.of(2)[1].tolist() == [1, 0.25, 0.125] and np.isnan(groups.of(4)[1]).all()
    shard, row = groups.place(4)
    assert shard is groups.shards[1] and row == 1
    with pytest.raises(IndexError, match="0 to 4, got 5"):
        groups.place(5)


def test_counts_go_along(folder):
    assert read_counts(folder, 0) == {"groups": 3, "sentences": 5, "too_long": 9}
    assert read_counts(folder, 1) == {"groups": 2, "sentences": 3}


def test_all_groups_are_kept_where_no_filter_says_otherwise(folder):
    np.save(keep_file(folder, 1), [False, True])
    assert read_keep(folder, 0, 3).tolist() == [True, True, True]
    assert read_keep(folder, 1, 2).tolist() == [False, True]


def test_a_strategy_that_is_not_finished_is_not_opened(folder):
    (folder / "results.json").unlink()
    with pytest.raises(StageError, match="no finished groups"):
        Groups.open(folder)


def test_a_damaged_file_is_named_with_what_to_delete(folder):
    file = group_file(folder, 1)
    file.write_bytes(file.read_bytes()[:-100])
    for read in (Groups.open, lambda folder: read_counts(folder, 1)):
        with pytest.raises(
            StageError, match=rf"^{file} is damaged \(.*; delete {folder} and rerun"
        ):
            read(folder)
