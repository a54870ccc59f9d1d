"""Rates of error: exact intervals, exact tests, and no rate of zero."""

import itertools

from matplotlib.figure import Figure
import numpy as np
import pytest
from scipy import stats

from icl_jax.sandboxes.flip_flop.experiments.errors import (
    adjust,
    draw_curves,
    draw_seeds,
    free_of_errors,
    interval95,
    pooled,
    rank_sum_p,
    rates,
    seeds_differ_p,
    show_pooled,
    show_rate,
    show_seeds,
    together,
)


def one_test(errors=(0, 3, 10), reads=1000, rows=500):
    """What a point has of one test with three seeds."""
    split = [[e // 2, e - e // 2] for e in errors]
    grouped = {"up_to": [1, 2], "reads": [reads // 2] * 2, "errors": split}
    test = {"rows": rows, "reads": reads, "errors": list(errors)}
    return {"tests": {"sparse": test | {"by_distance": grouped, "by_density": grouped}}}


@pytest.mark.parametrize(("errors", "total"), [(0, 20_437), (1, 50), (7, 90), (90, 90)])
def test_intervals_are_those_of_clopper_and_pearson(errors, total):
    low = stats.beta.ppf(0.025, errors, total - errors + 1) if errors else 0.0
    high = stats.beta.ppf(0.975, errors + 1, total - errors) if errors < total else 1.0
    assert interval95(errors, total) == pytest.approx([low, high])


def test_no_error_of_n_has_an_upper_limit():
    assert show_rate(0, 20_437) == "< 3/20437"
    one_sided = stats.beta.ppf(0.95, 1, 20_437)
    assert one_sided == pytest.approx(3 / 20_437, rel=2e-3)
    assert show_rate(5, 1000) == "0.005"
    assert interval95(0, 20_437)[1] == pytest.approx(1 - 0.025 ** (1 / 20_437))


def test_errors_of_all_seeds_are_pooled_and_shown_with_their_interval():
    found = pooled(one_test())["sparse"]
    assert (found["errors"], found["total"]) == (13, 3000)
    assert found["interval95"] == interval95(13, 3000)
    assert show_pooled(found).startswith("13 of 3000: 0.0043 (0.0023 to 0.0074)")
    assert show_seeds(one_test(), "sparse") == "0.003 (< 3/1000 to 0.01)"
    assert show_seeds(one_test((0, 0)), "sparse") == "< 3/1000"
    assert rates(one_test(), "sparse") == [0.0, 0.003, 0.01]


def test_a_seed_is_free_of_errors_only_if_it_is_in_every_test():
    both = one_test((0, 0, 2))
    both["tests"]["dense"] = one_test((0, 1, 0))["tests"]["sparse"]
    assert free_of_errors(both, ("sparse", "dense")) == 1
    assert free_of_errors(both, ("sparse",)) == 2


def test_the_rank_sum_counts_all_divisions_also_with_ties():
    for more, less in (([3, 5, 5, 9], [0, 0, 5]), ([0, 0, 0], [0, 0, 1]), ([4.0, 2.0], [1.0])):
        ranks = stats.rankdata([*more, *less])
        sums = [sum(part) for part in itertools.combinations(ranks, len(more))]
        expected = np.mean(np.array(sums) >= ranks[: len(more)].sum() - 1e-9)
        assert rank_sum_p(more, less) == pytest.approx(expected)
    random = np.random.default_rng(0)
    more, less = random.normal(0.5, size=10), random.normal(size=10)
    exact = stats.mannwhitneyu(more, less, alternative="greater", method="exact").pvalue
    assert rank_sum_p(more, less) == pytest.approx(exact)
    assert rank_sum_p(range(10, 20), range(10)) == pytest.approx(1 / 184_756)
    more, less = random.normal(0.3, size=25), random.normal(size=25)
    exact = stats.mannwhitneyu(more, less, alternative="greater", method="exact").pvalue
    assert rank_sum_p(more, less) == pytest.approx(exact)


def test_holm_multiplies_by_the_number_of_tests_that_are_left():
    found = adjust({"a": 0.02, "b": 0.001, "c": 0.9, "d": 0.015})
    assert found == pytest.approx({"b": 0.004, "d": 0.045, "a": 0.045, "c": 0.9})
    assert list(found) == ["a", "b", "c", "d"]
    assert adjust({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}


def test_seeds_differ_only_beyond_what_rows_explain():
    random = np.random.default_rng(0)
    # Ten equal networks; all reads of a row are wrong together: variance 5 times the binomial's.
    ps = []
    for _ in range(200):
        errors = 5 * random.binomial(200, 0.3, size=10)
        ps.append(seeds_differ_p(one_test(errors.tolist(), reads=1000, rows=200), "sparse"))
    assert np.mean(np.array(ps) < 0.05) < 0.12
    assert seeds_differ_p(one_test((100, 300, 500), rows=200), "sparse") < 1e-6
    assert seeds_differ_p(one_test((0, 0, 0)), "sparse") == 1.0
    usual = one_test((31, 25, 40), rows=1000)  # a read a row: the usual test
    table = [[31, 25, 40], [969, 975, 960]]
    expected = stats.chi2_contingency(table, correction=False).pvalue
    assert seeds_differ_p(usual, "sparse") == pytest.approx(expected)


def test_groups_are_added_over_seeds_and_tests():
    result = one_test((2, 4))
    result["tests"]["dense"] = one_test((6, 8))["tests"]["sparse"]
    result["tests"]["dense"]["by_distance"] = {
        "up_to": [2, 4], "reads": [10, 20], "errors": [[1, 2], [3, 4]],
    }  # fmt: skip
    up_to, errors, reads = together(result, ("sparse", "dense"), "by_distance")
    assert up_to.tolist() == [1, 2, 4]
    assert errors.tolist() == [3, 3 + 4, 6] and reads.tolist() == [1000, 1020, 40]


def test_networks_without_an_error_are_drawn_apart():
    figure = Figure()
    seeds, curve = figure.subplots(1, 2)
    results = {"none": one_test((0, 0, 0)), "some": one_test((0, 10, 500))}
    draw_seeds(seeds, results, "sparse", ("C0", "C1"))
    dots = [line.get_ydata() for line in seeds.lines[::2]]
    assert (dots[0] == dots[0][0]).all() and dots[0][0] < 1 / 1000
    assert dots[1][0] == dots[0][0] and dots[1][2] == 0.5
    draw_curves(curve, results, ("sparse",), "by_distance", ("C0", "C1"))
    assert np.isnan(curve.lines[0].get_ydata()).all()  # no rate, but an interval
    figure.canvas.draw()
