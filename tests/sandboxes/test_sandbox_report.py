import itertools
import json

import numpy as np
import pytest

from icl_jax.sandboxes.report import (
    Claim,
    Finding,
    compare_seeds,
    make_claims,
    mean_with_interval,
    paired_p,
    show_spread,
    write_finding,
    write_together,
)


def test_the_paired_test_counts_all_signs_of_the_differences():
    more, less = np.array([3.0, 1.0, 4.0, 1.0, 5.0]), np.array([2.0, 7.0, 1.0, 0.5, 2.0])
    differences = more - less
    signs = np.array(list(itertools.product((1, -1), repeat=5)))
    expected = np.mean(signs @ differences >= differences.sum() - 1e-9)
    assert paired_p(more, less) == pytest.approx(expected)


def test_five_of_five_seeds_are_sure_and_four_of_five_are_not():
    words, sure = compare_seeds([0.9, 0.8, 0.9, 0.7, 0.8], [0.5, 0.5, 0.6, 0.4, 0.3])
    assert sure and "ahead in 5 of 5 seeds, p 0.031" in words
    _, sure = compare_seeds([0.9, 0.8, 0.9, 0.7, 0.1], [0.5, 0.5, 0.6, 0.4, 0.3])
    assert not sure
    _, sure = compare_seeds([1.0] * 5, [1.0] * 5)
    assert not sure


def test_a_spread_is_the_median_and_the_range():
    assert show_spread([0.5, 1.0, 0.25]) == "50.0 (25.0 to 100.0)"
    assert show_spread([0.999999, 0.999999]) == "100.0"


def test_an_interval_of_seeds_holds_their_mean():
    mean, (low, high) = mean_with_interval([1.0, 2.0, 3.0, 4.0])
    means = np.mean(list(itertools.product((1.0, 2.0, 3.0, 4.0), repeat=4)), axis=1)  # all draws
    assert mean == 2.5
    np.testing.assert_allclose((low, high), np.percentile(means, (2.5, 97.5)), atol=0.01)


def test_a_claim_that_fails_is_reported_as_failing():
    claims = [
        Claim("a", "yes", "no", np.bool_(False)),
        Claim("b", "yes", "yes", np.bool_(True)),
        Claim("c", "yes", "-", None),
    ]
    table = make_claims(claims)
    assert "| a | yes | no | **fails** |" in table
    assert "| b | yes | yes | holds |" in table
    assert "| c | yes | - | cannot tell |" in table


def test_experiments_that_ran_one_by_one_are_put_together_in_order(tmp_path):
    for name in ("M2", "M1"):
        claims, draw = [Claim("x", "y", "z", True)], lambda figure: figure.subplots()
        found = Finding(name, f"title of {name}", "Some text.", claims, {"value": 1.5}, draw)
        write_finding(found, tmp_path)
    report = write_together("All", ["M0", "M1", "M2"], tmp_path)
    assert report.index("## M1: title of M1") < report.index("## M2")
    assert (tmp_path / "report.md").read_text() == report
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results) == ["M1", "M2"]
    assert results["M1"]["claims"][0]["holds"] is True
    assert (tmp_path / "M1.png").read_bytes().startswith(b"\x89PNG")
