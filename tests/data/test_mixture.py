"""Weights become whole rows, and every row of every source is used in turn."""

import pytest

from icl_jax.config import ConfigError
from icl_jax.data.mixture import Mixture, rows_of_sources


@pytest.mark.parametrize(
    "weights, batch_size, rows",
    [
        ((1, 1), 8, [4, 4]),
        ((1, 1), 7, [4, 3]),
        ((0.1, 0.1, 0.1), 9, [3, 3, 3]),
        ((0.7, 0.2, 0.1), 10, [7, 2, 1]),
        ((5, 3, 1), 8, [4, 3, 1]),  # 4.44, 2.67, 0.89
        ((1, 0), 8, [8, 0]),
        ((1e-9, 1e9), 2, [0, 2]),
    ],
)
def test_rows_follow_the_weights_by_largest_remainder(weights, batch_size, rows):
    assert rows_of_sources(weights, batch_size) == rows


def test_equal_weights_unless_phases_say_otherwise():
    source, number = Mixture((), 3, 6).rows(5)
    assert source.tolist() == [0, 0, 1, 1, 2, 2]
    assert number.tolist() == [10, 11, 10, 11, 10, 11]


def test_a_source_too_light_for_a_row_is_an_error():
    with pytest.raises(ConfigError, match=r"step 3 on, sources\[1\] with weight 1 of 100 gets 0"):
        Mixture(((0, (1, 1)), (3, (99, 1))), 2, 8)


def test_every_row_of_every_source_is_used_in_turn_over_all_phases():
    phases = ((0, (1, 0, 0)), (3, (1, 1, 0)), (7, (2, 1, 1)), (8, (0, 0, 1)))
    rows = [[8, 0, 0]] * 3 + [[4, 4, 0]] * 4 + [[4, 2, 2]] + [[0, 0, 8]] * 4
    mixture, used = Mixture(phases, 3, 8), [0, 0, 0]
    for step in range(12):
        source, number = mixture.rows(step)
        for s in range(3):
            expected = range(used[s], used[s] + rows[step][s])
            assert number[source == s].tolist() == list(expected)
            used[s] = expected.stop


def test_a_distant_step_costs_no_more_than_the_first():
    source, number = Mixture(((0, (1, 0)), (200_000, (1, 1))), 2, 512).rows(10**12)
    after = (10**12 - 200_000) * 256
    assert number[source == 0].tolist() == list(range(200_000 * 512 + after, number[255] + 1))
    assert number[source == 1].tolist() == list(range(after, after + 256))


def test_rows_together_divide_the_part_of_a_source_in_every_phase():
    mixture = Mixture(((0, (1, 0)), (3, (1, 3)), (7, (1, 1))), 2, 24)
    assert mixture.counts.tolist() == [[24, 0], [6, 18], [12, 12]]
    assert [mixture.rows_together(s) for s in (0, 1)] == [6, 6]
    assert Mixture(((0, (1, 0)),), 2, 24).rows_together(1) == 1
