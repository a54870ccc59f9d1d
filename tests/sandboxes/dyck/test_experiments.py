"""The experiments: their points, and reports that say what the numbers say, holding or not."""

import json
import subprocess
import sys

from matplotlib.figure import Figure
import numpy as np
import pytest

from icl_jax.files.step_folder import StepFolder
from icl_jax.sandboxes.dyck.__main__ import NAMES, main
from icl_jax.sandboxes.dyck.experiments import EXPERIMENTS, balance, constructed, variation
from icl_jax.sandboxes.dyck.experiments.settings import METRICS
from icl_jax.sandboxes.dyck.trained import FAR, NEAR, Training
from icl_jax.sandboxes.report import make_section

TRAINED = ("variation", "balance", "copying")


def made_up(name, values):
    """Results of every point; `values(point, what)` is the mean over its seeds."""
    results, random = {}, np.random.default_rng(0)
    language = Training().language
    shown = "".join(language.symbols[token] for token in language.every_bracket()[0])
    for point in EXPERIMENTS[name].points("mini"):
        seeds = point.arguments["seeds"]
        # Seed by seed, the more of a violation the less of an accuracy.
        rank = random.permutation(np.linspace(-1, 1, seeds))
        spread = lambda what, step=0.001: (values(point.name, what) + step * rank).tolist()  # noqa: E731, B023
        copies = {NEAR: {what: spread(what, 0) for what in ("copied", "copied_without_attention")}}
        tests = {
            test: {metric: spread(f"{test}, {metric}", -0.001) for metric in METRICS}
            for test in (NEAR, FAR)
        }
        layers = point.arguments["layers"]
        results[point.name] = {
            "tests": copies if name == "copying" else tests, "shown": shown, "parameters": 7,
            "seconds": 1.0, "losses": [[1.0, 0.5]] * seeds, "attention": [np.eye(17)] * seeds,
            "variation": values(point.name, "variation"), "on_top": spread("on top"),
            "on_top_if_equal": 0.1, "violation": spread("violation"),
            "largest_violation": spread("violation"), "on_closings": [[0.5] * layers] * seeds,
            "on_closings_if_equal": 0.4, "layers": [np.eye(17)] * layers,
            "by_length": {"length": [10.5, 30.5], "after_closings": [[1.0, 0.9]] * seeds},
        }  # fmt: skip
    return results


def as_published(point, what):
    """As the thesis says; violations fall as 1 / N."""
    if what == "variation":
        return 0.24 if "minimal" in point else 2.2
    if what == "violation":
        if "length" in point:
            return 0.3 * 28 / int(point.split()[-1])
        return 0.1 if "contrastive" in point else 0.3
    if what.startswith(FAR):
        return 0.95 if "contrastive" in point else 0.85
    return 0.3 if what == "on top" else 0.995


def otherwise(point, what):
    """Nothing is as the thesis says."""
    if what == "variation":
        return 2.2 if "minimal" in point else 0.24
    if what == "copied_without_attention":
        return 0.3
    return {"violation": 0.3, "on top": 0.9}.get(what, 0.85)


def verdicts(name, results):
    found = EXPERIMENTS[name].report("mini", results)
    return {claim.claim: claim.holds for claim in found.claims}


def test_the_command_knows_every_experiment_of_the_table():
    assert list(EXPERIMENTS) == list(NAMES)


@pytest.mark.parametrize("scale", ["mini", "paper"])
def test_points_have_names_of_their_own_in_both_sizes(scale):
    points = [point for e in EXPERIMENTS.values() for point in e.points(scale)]
    assert len({point.name for point in points}) == len(points)
    assert all(point.seconds > 0 for point in points)


def test_the_miniatures_are_as_long_as_the_authors_trained():
    points = {
        point.name: point.arguments for e in TRAINED for point in EXPERIMENTS[e].points("mini")
    }
    standard, linear = points["balance standard"], points[f"variation {variation.LINEAR}"]
    assert (standard["steps"], standard["learning_rate"], standard["seeds"]) == (360, 1e-2, 40)
    assert (linear["steps"], linear["learning_rate"]) == (1440, 3e-3) and linear["seeds"] >= 10
    assert standard["width"] == linear["width"] == 50 and standard["batch"] == 100
    assert points[f"balance {balance.FIXED}"]["contrast"] == 0.3
    wide = {point.name: point.arguments for point in EXPERIMENTS["variation"].points("paper")}
    assert wide[f"variation {variation.LINEAR}"]["width"] == 200
    assert wide[f"variation {variation.LINEAR}"]["seeds"] == 40
    assert wide[f"variation {variation.PAIRS}"]["width"] == 500


@pytest.mark.parametrize("name", TRAINED)
def test_a_report_has_its_tables_claims_and_figure(name, tmp_path):
    found = EXPERIMENTS[name].report("mini", made_up(name, as_published))
    text = make_section(found)
    assert found.name == name and "| claim | published | measured | holds? |" in text
    json.dumps(found.results, allow_nan=False)
    figure = Figure(figsize=found.size, layout="constrained")
    found.draw(figure)
    figure.savefig(tmp_path / "figure.png", dpi=30)
    assert (tmp_path / "figure.png").stat().st_size > 5000


@pytest.mark.parametrize("name", TRAINED)
def test_claims_hold_as_published_and_fail_otherwise(name):
    assert all(verdicts(name, made_up(name, as_published)).values())
    failed = verdicts(name, made_up(name, otherwise))
    # Within an arm, made-up seeds always do worse the more they violate balance.
    assert not any(holds for claim, holds in failed.items() if not claim.startswith("standard: "))


def test_seeds_whose_accuracy_has_nothing_to_do_with_their_violation_leave_it_open():
    results = made_up("balance", as_published)
    standard = results["balance standard"]
    order = np.argsort(standard["violation"])
    values = np.sort(standard["tests"][FAR]["sure"])
    # Best, worst, second best, ...: no trend.
    zigzag = np.ravel(np.column_stack([values[:20], values[::-1][:20]]))
    found = np.empty(40)
    found[order] = zigzag
    standard["tests"][FAR]["sure"] = found.tolist()
    claim = next(c for c in verdicts("balance", results).items() if c[0].startswith("standard: "))
    assert claim[1] is None


def test_the_slope_of_violations_by_length_is_that_of_the_numbers():
    found = EXPERIMENTS["balance"].report("mini", made_up("balance", as_published))
    assert found.results["slope"] == pytest.approx(-1, abs=0.01)
    assert "slope of log beta on log N is -1.0" in found.text


def test_constructed_networks_are_run_and_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(constructed, "LENGTHS", (12, 30))
    monkeypatch.setattr(constructed, "NOISES", (0.0, 0.1))
    results = {
        f"constructed Dyck(2,3), {kind} attention": constructed.run(tmp_path, 2, 3, spread, 2, 4)
        for kind, spread in constructed.SPREADS.items()
    }
    found = EXPERIMENTS["constructed"].report("mini", results)
    assert [claim.holds for claim in found.claims] == [True, True, True]
    for point in results["constructed Dyck(2,3), random attention"]["curve"]:
        if point["noise"] == 0:
            point["accuracy"]["30"]["closings"] = 0.99
    for bound in results["constructed Dyck(2,3), random attention"]["theorem_2"]:
        bound["largest"] = 1e9
    found = EXPERIMENTS["constructed"].report("mini", results)
    assert [claim.holds for claim in found.claims] == [False, True, False]
    found.draw(Figure(figsize=found.size))


def pruned(disagreement, same=True):
    component = {"layer": 3, "matrix": "mlp 4", "shape": [4, 6], "weights": 24, "kept": [2, 2],
                 "same": same, "places": [[[0, 1], [2, 3]], [[0, 1], [2, 3]]]}  # fmt: skip
    example = {what: np.arange(16.0).reshape(2, 2, 4).tolist() for what in ("pruned", "targets")}
    network = {"seed": 0, "weights": 1000, "gaps": [1e-3, 2e-3], "disagreement": disagreement,
               "bounds": [2e-3, 4e-3], "matrices": [{"kept": [30, 40]}, {"kept": [2, 2]}],
               "component": component, "example": example}  # fmt: skip
    curve = [{"units": n, "seed": s, "error": 1 / n} for n in (8, 16) for s in (0, 1)]
    names = [point.name for point in EXPERIMENTS["pruning"].points("mini")]
    return dict.fromkeys(names[:-1], network) | {names[-1]: {"curve": curve}}


def test_pruned_networks_hold_if_they_are_alike_in_a_matrix_and_compute_something_else(tmp_path):
    found = EXPERIMENTS["pruning"].report("mini", pruned(0.5))
    assert [claim.holds for claim in found.claims] == [True]
    assert "| 32 and 42 |" in found.text
    json.dumps(found.results)
    figure = Figure(figsize=found.size, layout="constrained")
    found.draw(figure)
    figure.savefig(tmp_path / "figure.png", dpi=30)
    assert not any(verdicts("pruning", pruned(0.03)).values())
    assert not any(verdicts("pruning", pruned(0.5, same=False)).values())


def test_a_dry_run_lists_points_and_what_is_done(tmp_path, capsys):
    point = EXPERIMENTS["pruning"].points("mini")[0]
    step = StepFolder(
        tmp_path / "points" / point.folder,
        {"work": f"{point.work.__module__}.{point.work.__qualname__}",
         "arguments": point.arguments},
    )  # fmt: skip
    step.complete({})
    main([f"--to={tmp_path}", "--only=pruning", "--dry_run"])
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if "pruning" in line]) == 6
    assert next(line for line in lines if point.name in line).split("|")[2].strip() == "yes"


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--only=balanced"], "expected one of constructed, variation, balance"),
        (["--scale=full"], "expected one of mini, paper"),
        (["--only="], "expected --only=constructed,variation"),
    ],
)
def test_a_wrong_flag_is_reported_in_one_line(flags, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([f"--to={tmp_path}", *flags])
    assert message in capsys.readouterr().err


def test_the_command_is_one_of_the_package():
    run = subprocess.run(
        [sys.executable, "-m", "icl_jax.cli", "dyck", "--help"], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert "--scale=mini|paper" in run.stdout
