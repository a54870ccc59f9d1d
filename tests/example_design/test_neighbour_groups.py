"""A query takes its neighbours in order until the next would pass the limit."""

import numpy as np
import pytest

from icl_jax.example_design.layout import Marks, in_context_tokens
from icl_jax.example_design.neighbour_groups import take_until_full


@pytest.mark.parametrize("marks", [Marks(None, 7, 8), Marks(6, 7, 8)])
@pytest.mark.parametrize("limit", [10, 31, 32, 33, 500])
def test_as_many_as_fit_by_a_plain_loop(marks, limit):
    rng = np.random.default_rng(limit)
    counts = rng.integers(0, 8, 300)
    offsets = np.append(0, np.cumsum(counts))
    queries, lengths = rng.integers(1, 9, 300), rng.integers(1, 15, offsets[-1])
    expected = []
    for query, first, last in zip(queries, offsets, offsets[1:]):
        taken = 0
        while first + taken < last and (
            in_context_tokens(np.append(query, lengths[first : first + taken + 1]), marks) <= limit
        ):
            taken += 1
        expected.append(taken)
    assert take_until_full(queries, lengths, offsets, limit, marks).tolist() == expected
