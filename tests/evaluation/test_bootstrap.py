import numpy as np
import pytest
from scipy import stats

from icl_jax.evaluation import bootstrap
from icl_jax.evaluation.bootstrap import draw, interval, mean_of, p_value, ratio_of, spearman_of

pytestmark = pytest.mark.delicate


def resampled(items, resamples, seed):
    """The items of each resample, one by one."""
    counts = draw_counts(items, resamples, seed)
    return [np.repeat(np.arange(items), row.astype(int)) for row in counts]


def draw_counts(items, resamples, seed):
    held = []

    def keep(counts_RN):
        held.extend(counts_RN)
        return np.zeros(len(counts_RN))

    draw(keep, items, resamples, seed)
    return held


def test_a_resample_has_as_many_items_each_as_likely():
    counts = np.array(draw_counts(items=7, resamples=3000, seed=1))
    assert (counts.sum(axis=1) == 7).all()
    assert stats.chisquare(counts.sum(axis=0)).pvalue > 1e-3
    assert np.var(counts) == pytest.approx(1 - 1 / 7, rel=0.03)  # of a binomial


def test_resamples_are_the_same_whatever_is_held_at_once(monkeypatch):
    scores = np.random.default_rng(0).normal(size=23)
    at_once = draw(mean_of(scores), 23, 100, seed=5)
    monkeypatch.setattr(bootstrap, "CELLS", 50)
    assert np.array_equal(draw(mean_of(scores), 23, 100, seed=5), at_once)
    assert not np.array_equal(draw(mean_of(scores), 23, 100, seed=6), at_once)
    assert not np.array_equal(draw(mean_of(scores), 23, 100, seed=[5, 1]), at_once)


def test_statistics_are_those_of_the_drawn_items():
    random = np.random.default_rng(0)
    x, y = random.integers(0, 4, size=19).astype(float), random.normal(size=19)  # with ties
    z = y + random.normal(size=19)
    drawn = resampled(19, 50, seed=3)
    expected = {
        mean_of(y): [y[items].mean() for items in drawn],
        ratio_of(y, x + 1): [y[items].sum() / (x[items] + 1).sum() for items in drawn],
        spearman_of(x, y): [stats.spearmanr(x[items], y[items])[0] for items in drawn],
        spearman_of(y, x): [stats.spearmanr(x[items], y[items])[0] for items in drawn],
        spearman_of(y, z): [stats.spearmanr(y[items], z[items])[0] for items in drawn],
    }
    for statistic, values in expected.items():
        np.testing.assert_allclose(draw(statistic, 19, 50, seed=3), values, atol=1e-12)


def test_a_correlation_with_equal_values_is_0():
    assert (draw(spearman_of([2.0] * 5, range(5)), 5, 10, seed=0) == 0).all()


def test_intervals_are_scipys():
    scores = np.random.default_rng(4).exponential(size=80)
    theirs = stats.bootstrap(
        (scores,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    ours = bootstrap.mean_interval(scores, resamples=20_000, seed=0)
    np.testing.assert_allclose(ours, theirs, atol=0.01)


def test_95_of_100_intervals_hold_the_truth():
    random = np.random.default_rng(0)
    held = 0
    for n in range(400):
        low, high = bootstrap.mean_interval(random.random(100) < 0.3, resamples=400, seed=n)
        held += low <= 0.3 <= high
    assert 0.915 <= held / 400 <= 0.98  # 4 standard deviations of 400 trials


def test_scores_that_are_all_alike_have_the_exact_interval():
    """No resample could tell another share; Clopper and Pearson can."""
    for right, count in ((0, 600), (40, 40), (0, 2)):
        scores = [right > 0] * count
        theirs = stats.binomtest(right, count).proportion_ci(method="exact")
        assert bootstrap.share_interval(scores, resamples=9, seed=0) == pytest.approx([*theirs])
    some = [0.0] * 59 + [1.0]
    assert bootstrap.share_interval(some, 99, 0) == bootstrap.mean_interval(some, 99, 0)
    assert bootstrap.share_interval([0.0], 9, 0) is bootstrap.share_interval([], 9, 0) is None


def test_the_interval_of_equal_differences_reaches_to_both_sides():
    """Items that were not seen may differ the other way."""
    low, high = bootstrap.alike_interval(0.0, 600, -1.0, 1.0)
    assert low == -high and high == pytest.approx(0.00613, abs=1e-5)
    low, high = bootstrap.alike_interval(1.0, 600, -1.0, 1.0)
    assert (low, high) == (pytest.approx(1 - 2 * 0.00613, abs=2e-5), 1.0)


def test_paired_p_values_are_those_of_a_paired_t_test():
    """On many items with normal differences both tests ask the same."""
    random = np.random.default_rng(1)
    first = random.normal(size=400)
    for shift in (0.0, 0.05, 0.1):
        second = first + random.normal(loc=shift, scale=0.8, size=400)
        a, b = (draw(mean_of(scores), 400, 20_000, seed=0) for scores in (first, second))
        theirs = stats.ttest_rel(first, second).pvalue
        assert p_value(a - b, 400) == pytest.approx(theirs, abs=0.02)
        assert p_value(a - b, 400) == p_value(b - a, 400)
        low, high = interval(a - b)
        assert (p_value(a - b, 400) < 0.05) == (not low <= 0 <= high)


def test_where_there_is_no_difference_1_of_20_p_values_is_below_005():
    random = np.random.default_rng(2)
    below = 0
    for n in range(400):
        differences = random.normal(size=60)
        below += p_value(draw(mean_of(differences), 60, 400, seed=n), 60) < 0.05
    assert 0.02 <= below / 400 <= 0.1


def test_equal_arms_have_p_1_and_no_p_is_0():
    assert p_value(np.zeros(100), 0) == 1.0
    assert p_value(np.ones(99), 50) == pytest.approx(0.02)


def test_a_few_items_prove_nothing():
    assert p_value(np.ones(9999), differing=1) == 1.0
    assert p_value(np.ones(9999), differing=5) == stats.binomtest(5, 5).pvalue


def test_sign_test_is_mcnemars_exact_test():
    first = np.array([1] * 12 + [0] * 3 + [1] * 50 + [0] * 40)
    second = np.array([0] * 12 + [1] * 3 + [1] * 50 + [0] * 40)
    assert bootstrap.sign_test(first - second) == stats.binomtest(12, 15).pvalue
    assert bootstrap.sign_test(second - first) == stats.binomtest(12, 15).pvalue
    assert bootstrap.sign_test(np.zeros(9)) == 1.0


def test_holm_by_hand():
    # sorted: 0.01 x 4, 0.02 x 3, 0.03 x 2, 0.6 x 1, none below the one before
    assert bootstrap.holm([0.03, 0.01, 0.6, 0.02]) == pytest.approx([0.06, 0.04, 0.6, 0.06])
    assert bootstrap.holm([0.9, 0.8]) == [1.0, 1.0]
    assert bootstrap.holm([]) == []


def test_no_items_are_refused():
    with pytest.raises(ValueError, match="no items"):
        draw(mean_of([]), 0, resamples=10, seed=0)


def test_fewer_than_2_items_have_no_interval():
    assert bootstrap.mean_interval([1.0], resamples=10, seed=0) is None
    assert bootstrap.mean_interval([], resamples=10, seed=0) is None
    assert bootstrap.ratio_interval([1.0, 2.0, 0.0], [3, 0, 0], resamples=10, seed=0) is None
    low, high = bootstrap.ratio_interval([1.0, 4.0, 0.0], [1, 2, 0], resamples=99, seed=0)
    assert (low, high) == (1.0, 2.0)  # resamples of the third item alone count for nothing
    assert bootstrap.show_interval(None, "{:.1f}".format) == "-"
    assert bootstrap.show_interval([0.0, 0.25], "{:.2f}".format) == "0.00 to 0.25"


def test_a_table_says_where_items_are_few():
    narrow, none = "items, intervals are too narrow.", "Fewer than 2 items have no interval."
    assert bootstrap.note_few_items(30, 400) == []
    assert bootstrap.note_few_items(400, 29, 7) == [f"With only 7 {narrow}"]
    assert bootstrap.note_few_items(1, 29) == [f"With only 29 {narrow}", none]
    assert bootstrap.note_few_items(0) == [none]
