"""Vectors are rows of many files, and take no descriptor each."""

import os

import numpy as np
import pytest

from icl_jax.config import StageError
from icl_jax.files.step_folder import write_json
from icl_jax.retrieval.vectors import Vectors, save_shard

pytestmark = pytest.mark.delicate


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for shard, rows in enumerate((3, 1, 0, 5)):
        save_shard(tmp_path, shard, rng.normal(size=(rows, 7)).astype(np.float16))
    write_json(tmp_path / "results.json", {"num_shards": 4})
    return tmp_path


def test_rows_of_all_shards_have_length_1_in_any_order(folder):
    rows = np.concatenate([np.load(path) for path in sorted(folder.glob("*.npy"))]).astype(float)
    vectors = Vectors.open(folder)
    ids = np.array([8, 0, 3, 3, 4])
    expected = rows[ids] / np.linalg.norm(rows[ids], axis=1, keepdims=True)
    assert (len(vectors), vectors.width) == (9, 7)
    np.testing.assert_allclose(vectors.take(ids), expected, rtol=1e-6)
    np.testing.assert_allclose(vectors.shard(3)[[4, 0]], expected[[0, 4]], rtol=1e-6)


def test_a_zero_row_stays_zero():
    vectors = Vectors([np.array([[0, 0], [3, 4]], np.float32)])
    assert vectors.take(np.array([0, 1])).tolist() == [
        [0, 0],
        [0.6000000238418579, 0.800000011920929],
    ]


def test_open_files_do_not_add_up(folder):
    before = len(os.listdir("/proc/self/fd"))
    vectors = [Vectors.open(folder) for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert vectors[0].take(np.array([1])).any()


def test_vectors_that_are_not_complete_are_refused(tmp_path):
    with pytest.raises(StageError, match="no complete vectors"):
        Vectors.open(tmp_path)
