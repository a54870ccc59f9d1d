"""A query takes its neighbours in order until the next would pass the limit."""

import types

import numpy as np
import pytest

from icl_jax.config.design import PACKED, ROWS
from icl_jax.design.groups import read_counts, read_groups
from icl_jax.design.records.layout import Marks
from icl_jax.design.strategies import neighbours
from icl_jax.design.strategies.neighbours import take_until_full
from icl_jax.retrieval.neighbours import write_shard


def in_context_tokens(lengths: np.ndarray, marks: Marks) -> int:
    return int(np.sum(lengths)) + len(lengths) - 1 + marks.ends


def in_batch_tokens(lengths: np.ndarray, marks: Marks) -> int:
    return int(np.sum(lengths)) + len(lengths) * marks.ends


@pytest.mark.parametrize("marks", [Marks(None, 7, 8), Marks(6, 7, 8)])
@pytest.mark.parametrize("row_holds", ROWS)
@pytest.mark.parametrize("limit", [10, 31, 32, 33, 500])
def test_as_many_as_fit_by_a_plain_loop(marks, row_holds, limit):
    count = in_context_tokens if row_holds == PACKED else in_batch_tokens
    rng = np.random.default_rng(limit)
    counts = rng.integers(0, 8, 300)
    offsets = np.append(0, np.cumsum(counts))
    queries, lengths = rng.integers(1, 9, 300), rng.integers(1, 15, offsets[-1])
    expected = []
    for query, first, last in zip(queries, offsets, offsets[1:]):
        taken = 0
        while first + taken < last and (
            count(np.append(query, lengths[first : first + taken + 1]), marks) <= limit
        ):
            taken += 1
        expected.append(taken)
    between = marks.between(row_holds)
    assert take_until_full(queries, lengths, offsets, limit, marks, between).tolist() == expected


def test_a_query_whose_neighbours_do_not_fit_has_no_group(tmp_path, monkeypatch):
    lengths = np.array([5, 5, 5, 4, 50])  # three queries; one neighbour fits, the other does not
    sentences = types.SimpleNamespace(
        first_query=0, query_table=types.SimpleNamespace(starts=np.array([0, 3])),
        lengths_of=lambda ids: lengths[ids],
    )  # fmt: skip
    monkeypatch.setattr(neighbours, "open_sentences", lambda *place: sentences)
    scores = np.array([0.5, 0.75], np.float32)
    write_shard(tmp_path, 0, np.array([1, 1, 0]), np.array([3, 4]), scores, {})
    neighbours.make_shard("", "", str(tmp_path), Marks(None, 1, 2), 20, 1, 1, str(tmp_path), 0)
    groups = read_groups(tmp_path, 0)
    assert (groups.ids.tolist(), groups.similarities.tolist()) == ([0, 3], [1, 0.5])
    counts = {"queries": 3, "cut_by_limit": 0, "too_few_neighbours": 1, "too_long": 1}
    assert read_counts(tmp_path, 0) == counts | {"groups": 1, "sentences": 2}
