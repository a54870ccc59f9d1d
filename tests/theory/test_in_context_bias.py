"""The measurement as a command: small sizes, a killed run that continues, a table and figures."""

import json

import pytest

from icl_jax.theory import in_context_bias
from icl_jax.theory.in_context_bias import Settings, measure_all
from icl_jax.theory.in_context_bias_report import measured_deficit, write_report

SMALL = Settings(
    depths=(1, 2), learning_rates=(1.0, 1e-6), points=24, seeds=1, rank_widths=(2,), ranks=(1, 2, 3)
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bias")
    return folder, measure_all(SMALL, folder)


def ranks_of(found, rate, weights="normal"):
    rows = [row for row in found if row.get("weights") == weights and row["learning_rate"] == rate]
    return [row["lower"] for row in sorted(rows, key=lambda row: row["depth"])]


def test_depth_raises_the_rank_in_context_and_a_small_step_relates_nothing(measured):
    _, found = measured
    in_context = ranks_of(found, None)
    assert in_context[0] >= 3 and in_context[1] > 2 * in_context[0]
    assert ranks_of(found, 1e-6) == ranks_of(found, 1e-6, "positive") == [1, 1]
    assert min(ranks_of(found, 1.0)) > 1
    assert [row["measured"] for row in found if "rank" in row and "width" in row] == [5, 15, 15]


def test_a_killed_run_continues_with_what_it_measured(measured, monkeypatch):
    folder, found = measured
    files = sorted((folder / "measurements").glob("0*.json"))
    files[0].unlink()
    calls = []
    original = in_context_bias._measure
    monkeypatch.setattr(
        in_context_bias, "_measure", lambda *a, **k: calls.append(k) or original(*a, **k)
    )
    assert measure_all(SMALL, folder) == found
    assert len(calls) == 1


def test_the_report_has_a_line_for_every_learning_rate_and_two_figures(measured):
    folder, found = measured
    text = write_report(vars(SMALL), found, folder)
    for expected in ("in context", "eta 1 |", "eta 1e-06", "| 1e-06 | 6.29 | more than 1 |"):
        assert expected in text
    for name in ("in_context_bias", "embedding_rank"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"{name}.md").read_text() in f"{text}\n"
    assert json.loads((folder / "measurements.json").read_text())["measurements"] == found


def test_the_deficit_is_read_off_the_curve_in_context():
    def curve(*ranks):
        return [{"depth": depth, "lower": rank} for depth, rank in enumerate(ranks, 1)]

    context = curve(2, 8, 32)
    assert measured_deficit(context, curve(1, 1, 8)) == "1.0"
    assert measured_deficit(context, curve(1, 1, 4)) == "1.5"
    assert measured_deficit(context, curve(1, 1, 1)) == "more than 2"
    assert measured_deficit(context, curve(1, 1, 40)) == "none"


def test_wrong_settings_stop_in_one_line(tmp_path):
    flags = [f"--to={tmp_path}", "--heads=3", "--depths=1,7", "--epsilon=2"]
    with pytest.raises(SystemExit) as stopped:
        in_context_bias.main(flags)
    assert str(stopped.value) == (
        "error: heads must divide the width 4, got 3; epsilon must be from 1e-11 to below 1, got "
        "2.0; depths must be from 1 to 4, got (1, 7): at 5 layers the polynomials are of degree "
        "243, beyond the precision of float64"
    )
    assert not list(tmp_path.iterdir())
