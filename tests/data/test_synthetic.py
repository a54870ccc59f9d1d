"""The random language: known followers, known entropy, made once."""

from etils import epath
import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.data.shards import Shards, find_shards
from icl_jax.data.synthetic import CHOICES, ENTROPY, draw_tokens, make_source


def test_the_entropy_is_that_of_the_drawn_followers():
    tokens = draw_tokens(count=400, length=200, vocab_size=17, seed=3)
    counts = np.zeros((17, 17))
    np.add.at(counts, (tokens[:, :-1].ravel(), tokens[:, 1:].ravel()), 1)
    assert (np.count_nonzero(counts, axis=1) == len(CHOICES)).all()
    shares = counts / counts.sum(axis=1, keepdims=True)
    measured = -np.sum(shares * np.log(np.where(shares > 0, shares, 1)), axis=1)
    np.testing.assert_allclose(measured, ENTROPY, rtol=0.03)


def test_records_are_made_once_per_size_and_seed(tmp_path):
    folder = make_source("synthetic:5", epath.Path(tmp_path), vocab_size=11, length=7, seed=0)
    written = next(iter(find_shards(str(folder)))).stat().mtime
    again = make_source("synthetic:5", epath.Path(tmp_path), vocab_size=11, length=7, seed=0)
    assert again == folder and next(iter(find_shards(str(folder)))).stat().mtime == written
    other = make_source("synthetic:5", epath.Path(tmp_path), vocab_size=11, length=7, seed=1)
    assert other != folder
    shards = Shards(find_shards(str(folder)))
    assert len(shards) == 5 and len(shards[0]["tokens"]) == 7
    np.testing.assert_array_equal(shards[3]["tokens"], draw_tokens(5, 7, 11, 0)[3])


def test_a_wrong_count_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"expected synthetic:COUNT .* got 'synthetic:many'"):
        make_source("synthetic:many", epath.Path(tmp_path), 11, 7, 0)
