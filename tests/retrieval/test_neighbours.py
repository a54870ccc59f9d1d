import numpy as np
import pytest

from icl_jax.config import StageError
from icl_jax.files.step_folder import write_json
from icl_jax.retrieval.neighbours import (
    Neighbours,
    shard_counts,
    shard_file,
    share_found,
    write_shard,
)

pytestmark = pytest.mark.delicate


def write(folder):
    similarities = np.array([0.9, 0.8, 0.7], np.float32)
    write_shard(folder, 0, np.array([2, 0, 1]), np.array([5, 3, 8]), similarities, {"rule": 4})
    write_shard(folder, 1, np.array([0, 1]), np.array([2**40]), similarities[:1], {"rule": 5})


def test_neighbours_come_back_for_every_query_of_every_shard(tmp_path):
    write(tmp_path)
    write_json(tmp_path / "results.json", {"shards": 2})
    found = Neighbours.open(tmp_path)
    assert len(found) == 5
    assert [found.of(query)[0].tolist() for query in range(5)] == [[5, 3], [], [8], [], [2**40]]
    assert found.of(0)[1].tolist() == pytest.approx([0.9, 0.8])
    assert found.shard(0)["ids"].to_pylist() == [[5, 3], [], [8]]
    assert shard_counts(found.shard(1)) == {"rule": 5}
    with pytest.raises(IndexError, match="0 to 4, got 5"):
        found.of(5)


def test_a_search_that_is_not_finished_is_not_opened(tmp_path):
    write(tmp_path)
    with pytest.raises(StageError, match="no finished search"):
        Neighbours.open(tmp_path)


def test_a_damaged_file_is_named_with_what_to_delete(tmp_path):
    write(tmp_path)
    write_json(tmp_path / "results.json", {"shards": 2})
    file = shard_file(tmp_path, 1)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(StageError, match=rf"^{file} is damaged \(.*; delete {tmp_path} and rerun"):
        Neighbours.open(tmp_path)
    file.unlink()
    with pytest.raises(StageError, match=f"^{file} is damaged"):
        Neighbours.open(tmp_path)


def test_the_share_found_counts_only_what_there_is_to_find():
    wanted = np.array([[1, 2, -1], [3, -1, -1], [-1, -1, -1]])
    assert share_found(wanted, np.array([[2, 9], [-1, -1], [-1, 4]])) == 0.3333
    assert share_found(wanted[2:], np.array([[1]])) is None
