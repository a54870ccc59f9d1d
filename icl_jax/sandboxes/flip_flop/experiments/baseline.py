"""The long tail (R1): Transformers that read well in distribution misread rare rows.

Liu 2024, 3.5.2 and Figures 3.24, 3.25, 3.27.
"""

from matplotlib.figure import Figure
import numpy as np

from icl_jax.evaluation.compare.table import show_p
from icl_jax.sandboxes.experiment import Experiment, Results, numbers
from icl_jax.sandboxes.flip_flop.experiments.errors import (
    draw_curves,
    draw_seeds,
    pooled,
    rates,
    seeds_differ_p,
    show_pooled,
    show_seeds,
)
from icl_jax.sandboxes.flip_flop.experiments.settings import (
    DENSE,
    GPT,
    ID,
    LANGUAGE,
    LSTM,
    OOD,
    POSITIONS,
    SPARSE,
    baseline,
    baseline_arm,
    lstm_arm,
    positions_arm,
)
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import SURE, Claim, Finding, make_table, paired_p

TITLE = "the long tail of a Transformer's errors"
TIMES = 10  # sparse rows are misread this many times as often


def points(scale: str) -> list[Point]:
    """Learned positions and ALiBi, and an LSTM to compare with."""
    other = "alibi" if GPT[scale]["position"] == "learned" else "learned"
    return [baseline_arm(scale), positions_arm(scale, other), lstm_arm(scale)]


def report(scale: str, results: Results) -> Finding:
    """Errors in and out of distribution, by distance and by density."""
    names = [point.name for point in points(scale)]
    rows = [["arm", "seeds", *(test.replace("_", " ") for test in (ID, *OOD))]]
    rows += [
        [name, len(results[name]["tests"][ID]["errors"]),
         *(show_seeds(results[name], test) for test in (ID, *OOD))]
        for name in names
    ]  # fmt: skip
    language = LANGUAGE[scale]
    ignored = " and ".join(f"{ignore:g}" for ignore in language["ignore"])
    text = (
        f"Wrong reads on new rows of T = {language['length']}, trained on FFL({ignored}): the "
        "median over seeds (least to most). `< 3/N`: no error in N reads, and the one-sided 95% "
        f"limit of the rate.\n\n{make_table(rows)}"
    )
    found = {"scale": scale, "arm": baseline(scale), "points": numbers(results, points(scale))}
    return Finding(
        "baseline", TITLE, text, _claims(scale, results), pooled(results[baseline(scale)]) | found,
        lambda figure: _draw(figure, results), size=(9.5, 6.0),
    )  # fmt: skip


def _claims(scale: str, results: Results) -> list[Claim]:
    own = results[baseline(scale)]
    other = next(p.name for p in points(scale)[1:] if p.name != LSTM)
    near, far = (np.median(rates(own, test)) for test in (ID, SPARSE))
    limit = max(near, 1 / own["tests"][ID]["reads"])
    p = paired_p(rates(own, SPARSE), rates(own, ID))
    claims = [
        Claim(
            f"{baseline(scale)}: sparse rows are misread more than {TIMES} times as often as rows "
            "of the training's kind",
            "a long, irregular tail of errors (R1)",
            f"sparse {show_seeds(own, SPARSE)}, in distribution {show_seeds(own, ID)}; p "
            f"{show_p(p)}",
            far > TIMES * limit and p < SURE,
        )
    ]
    for name in (baseline(scale), other):
        p = seeds_differ_p(results[name], SPARSE)
        claims.append(Claim(
            f"{name}: seeds differ in their errors on sparse rows",
            "varies significantly between random seeds",
            f"{show_seeds(results[name], SPARSE)}; p {show_p(p)}", p < SURE,
        ))  # fmt: skip
    found = pooled(results[other])[DENSE], pooled(own)[DENSE]
    claims.append(Claim(
        "errors occur on dense rows too", "on both sparse and dense sequences",
        "; ".join(
            f"{name} {show_pooled(each)}" for name, each in zip((other, baseline(scale)), found)
        ),
        any(each["errors"] for each in found),
    ))  # fmt: skip
    for name in (baseline(scale), other):
        claims.append(_farther(name, results[name]))
    return claims


def _farther(name: str, result: dict) -> Claim:
    """Each seed's errors in the nearer and the farther half of distances, on sparse rows."""
    found = result["tests"][SPARSE]["by_distance"]
    reads_G, errors_SG = np.array(found["reads"]), np.array(found["errors"])
    half = len(reads_G) // 2
    near_S, far_S = (
        errors_SG[:, part].sum(axis=1) / reads_G[part].sum()
        for part in (slice(half), slice(half, None))
    )
    p = paired_p(far_S, near_S)
    border = found["up_to"][half - 1]
    measured = (
        f"more than {border} pairs {np.median(far_S):.2g}, up to {border} {np.median(near_S):.2g}; "
        f"p {show_p(p)}"
    )
    claim = f"{name}: on sparse rows, reads of what was written long ago are wrong more often"
    return Claim(claim, "long-range failure on sparse rows (Figure 3.24)", measured, p < SURE)


def _draw(figure: Figure, results: Results) -> None:
    panels = figure.subplots(2, 3)
    names = [name for name in (*POSITIONS.values(), LSTM) if name in results]
    shown, colours = {name: results[name] for name in names}, [f"C{n}" for n in range(len(names))]
    for axis, test in zip(panels[0], (ID, *OOD)):
        draw_seeds(axis, shown, test, colours)
    draw_curves(panels[1, 0], shown, (SPARSE,), "by_distance", colours)
    panels[1, 0].set_xlabel("pairs since the write, up to")
    draw_curves(panels[1, 1], shown, (DENSE,), "by_distance", colours)
    panels[1, 1].set_xlabel("pairs since the write, up to")
    draw_curves(panels[1, 2], shown, OOD, "by_density", colours)
    panels[1, 2].set_xlabel("writes in 100 instructions, up to")
    panels[1, 0].legend(fontsize=7, frameon=False)


EXPERIMENT = Experiment("baseline", TITLE, points, report)
