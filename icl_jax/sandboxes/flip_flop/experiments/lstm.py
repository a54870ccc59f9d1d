"""An LSTM makes no error (R2), after a fraction of the rows. Liu 2024, 3.5.2 and 3.5.6.2."""

from matplotlib.figure import Figure

from icl_jax.sandboxes.experiment import Experiment, Results, numbers
from icl_jax.sandboxes.flip_flop.experiments.errors import (
    draw_seeds,
    pooled,
    show_pooled,
    show_rate,
)
from icl_jax.sandboxes.flip_flop.experiments.settings import (
    DENSE,
    GPT,
    ID,
    LSTM,
    LSTM_FIELDS,
    OOD,
    SPARSE,
    baseline,
    baseline_arm,
    lstm_arm,
)
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import Claim, Finding, make_table

TITLE = "an LSTM without errors"
PUBLISHED = {
    ID: "an LSTM extrapolates perfectly (R2)", SPARSE: "no error in 100 of 100 runs",
    DENSE: "an LSTM extrapolates perfectly (R2)",
}  # fmt: skip


def points(scale: str) -> list[Point]:
    """The LSTM, and the Transformer that it is compared with."""
    return [lstm_arm(scale), baseline_arm(scale)]


def report(scale: str, results: Results) -> Finding:
    """Its errors on each test, of every seed and of all."""
    result = results[LSTM]
    found = pooled(result)
    rows = [["rows", "reads of a seed", "seeds without an error", "all seeds together (95%)"]]
    claims = []
    for test in (ID, *OOD):
        errors, reads = result["tests"][test]["errors"], result["tests"][test]["reads"]
        free = sum(number == 0 for number in errors)
        rows.append(
            [test.replace("_", " "), reads, f"{free} of {len(errors)}", show_pooled(found[test])]
        )
        claims.append(Claim(
            f"no LSTM makes an error, {test.replace('_', ' ')}", PUBLISHED[test],
            f"{free} of {len(errors)} runs without one; rate of the worst "
            f"{show_rate(max(errors), reads)}",
            free == len(errors),
        ))  # fmt: skip
    fields, gpt = LSTM_FIELDS[scale], GPT[scale]
    share = fields["steps"] * fields["batch"] / (gpt["steps"] * gpt["batch"])
    text = (
        f"{result['parameters']} parameters against {results[baseline(scale)]['parameters']} of "
        f"the Transformer, after {100 * share:.1f}% of its rows ({fields['steps']} steps).\n\n"
        f"{make_table(rows)}"
    )
    return Finding(
        "lstm", TITLE, text, claims,
        found | {"scale": scale, "points": numbers(results, [lstm_arm(scale)])},
        lambda figure: _draw(figure, scale, results), size=(7.0, 3.2),
    )  # fmt: skip


def _draw(figure: Figure, scale: str, results: Results) -> None:
    shown = {name: results[name] for name in (baseline(scale), LSTM)}
    for axis, test in zip(figure.subplots(1, 3), (ID, *OOD)):
        draw_seeds(axis, shown, test, ("C0", "C3"))


EXPERIMENT = Experiment("lstm", TITLE, points, report)
