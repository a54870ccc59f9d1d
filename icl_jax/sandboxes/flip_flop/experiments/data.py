"""What the data can do (R4, R5): rare rows in training, more rows, more steps on the same rows.

Liu 2024, 3.5.4.1 and Figure 3.30; data and first weights apart, and learning every token: 3.5.6.2.
"""

from matplotlib.figure import Figure
import numpy as np

from icl_jax.evaluation.compare.table import show_p
from icl_jax.sandboxes.experiment import Experiment, Results, numbers
from icl_jax.sandboxes.flip_flop.experiments.errors import (
    draw_seeds,
    free_of_errors,
    pooled,
    rank_sum_p,
    rates,
    seeds_differ_p,
    show_seeds,
)
from icl_jax.sandboxes.flip_flop.experiments.settings import (
    DENSE,
    GPT,
    ID,
    MORE_SEEDS,
    OOD,
    SEEDS,
    SPARSE,
    arm,
    baseline,
    baseline_arm,
)
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import SURE, Claim, Finding, make_table

TITLE = "what the training data can do"
# p_i of the languages: in the first as published, where writes are half as frequent as in the
# baseline's training, very rare, or frequent; in the second with the baseline's own for the first.
MIXTURES = {
    "mini": ((0.75, 0.95, 0.1), (0.5, 0.95, 0.1)),
    "paper": ((0.9, 0.98, 0.1), (0.8, 0.98, 0.1)),
}
TIMES = {"mini": (2,), "paper": (2, 4)}
SAME_WEIGHTS, SAME_DATA, GENERATIVE = "same first weights", "same data", "every token learnt"
FAR_BELOW = 1e-3  # the p of the mixture against the baseline


def points(scale: str) -> list[Point]:
    """The baseline, mixtures, more rows, more steps, and where the variation is from."""
    steps, few, many = GPT[scale]["steps"], SEEDS[scale], MORE_SEEDS[scale]
    found = [baseline_arm(scale)]
    found += [
        arm(scale, mixture(p), count, ignore=p)
        for p, count in zip(MIXTURES[scale], (many, few), strict=True)
    ]
    for times in TIMES[scale]:
        found += [
            arm(scale, fresh(times), few, steps=times * steps),
            arm(scale, repeated(times), few, steps=times * steps, batches=steps),
        ]
    return [
        *found,
        arm(scale, GENERATIVE, few, generative=True),
        arm(scale, SAME_WEIGHTS, few, shared="weights"),
        arm(scale, SAME_DATA, few, shared="data"),
    ]


def mixture(ignore: tuple[float, ...]) -> str:
    """What reports call an arm that is trained on several languages."""
    return f"mixture {', '.join(f'{p:g}' for p in ignore)}"


def fresh(times: int) -> str:
    """What reports call an arm that reads more rows."""
    return f"{times} times the rows"


def repeated(times: int) -> str:
    """What reports call an arm that makes more steps on as many rows."""
    return f"{times} times the steps, same rows"


def report(scale: str, results: Results) -> Finding:
    """Errors of every arm."""
    names = [point.name for point in points(scale)]
    rows = [["arm", "seeds", ID.replace("_", " "), *OOD, "seeds without an error"]]
    rows += [
        [name, len(results[name]["tests"][ID]["errors"]),
         *(show_seeds(results[name], test) for test in (ID, *OOD)),
         free_of_errors(results[name], (ID, *OOD))]
        for name in names
    ]  # fmt: skip
    text = (
        f"The baseline ({baseline(scale)}) with other data. Wrong reads: the median over seeds "
        "(least to most). A mixture draws each row from one of the languages FFL(p_i). "
        f"`{repeated(TIMES[scale][0])}`: the batches of the baseline's number of steps, drawn "
        f"again and again. `{SAME_WEIGHTS}` and `{SAME_DATA}`: only data, or only weights, differ "
        f"between seeds.\n\n{make_table(rows)}"
    )
    return Finding(
        "data", TITLE, text, _claims(scale, results),
        {
            "scale": scale,
            "arms": {name: pooled(results[name]) for name in names},
            "points": numbers(results, points(scale)),
        },
        lambda figure: _draw(figure, names, results), size=(9.5, 4.2),
    )  # fmt: skip


def _claims(scale: str, results: Results) -> list[Claim]:
    own, claims = results[baseline(scale)], []
    first = mixture(MIXTURES[scale][0])
    for name in map(mixture, MIXTURES[scale]):
        p = rank_sum_p(rates(own, SPARSE), rates(results[name], SPARSE))
        claims.append(Claim(
            f"{name}: far fewer errors on sparse rows than the baseline", "best by a wide margin",
            f"{show_seeds(results[name], SPARSE)} against {show_seeds(own, SPARSE)}; p {show_p(p)}",
            p < FAR_BELOW,
        ))  # fmt: skip
    free, seeds = free_of_errors(results[first], OOD), len(rates(results[first], SPARSE))
    claims.append(Claim(
        f"{first}: some runs, not all, make no error", "6 of 25 runs", f"{free} of {seeds}",
        0 < free < seeds,
    ))  # fmt: skip
    least = {name: float(np.median(rates(results[name], SPARSE))) for name in results}
    best = min(least, key=least.__getitem__)
    claims.append(Claim(
        "of all these arms, a mixture has the fewest errors on sparse rows", "by far",
        f"{best}: {show_seeds(results[best], SPARSE)}", best.startswith("mixture"),
    ))  # fmt: skip
    for times in TIMES[scale]:
        for name in (fresh(times), repeated(times)):
            claims += _more(name, own, results[name])
    generative = results[GENERATIVE]
    p = rank_sum_p(rates(generative, SPARSE), rates(generative, ID))
    claims.append(Claim(
        "learning every token leaves the tail: sparse rows are misread more often than others",
        "similar failure to extrapolate",
        f"sparse {show_seeds(generative, SPARSE)}, in distribution {show_seeds(generative, ID)}; "
        f"p {show_p(p)}", p < SURE,
    ))  # fmt: skip
    for name, what in ((SAME_WEIGHTS, "data"), (SAME_DATA, "first weights")):
        p = seeds_differ_p(results[name], SPARSE)
        claims.append(Claim(
            f"{what} alone make networks differ on sparse rows", "both sources matter",
            f"{show_seeds(results[name], SPARSE)}; p {show_p(p)}", p < SURE,
        ))  # fmt: skip
    return claims


def _more(name: str, own: dict, result: dict) -> list[Claim]:
    """Both published directions: sparse better, dense worse."""
    found = []
    for test, published, (more, less) in (
        (SPARSE, "improves sparse rows", (own, result)),
        (DENSE, "at the expense of dense rows", (result, own)),
    ):
        p = rank_sum_p(rates(more, test), rates(less, test))
        word = "fewer" if test == SPARSE else "more"
        found.append(Claim(
            f"{name}: {word} errors on {test} rows", published,
            f"{show_seeds(result, test)} against {show_seeds(own, test)}; p {show_p(p)}", p < SURE,
        ))  # fmt: skip
    return found


def _draw(figure: Figure, names: list[str], results: Results) -> None:
    shown = {name: results[name] for name in names}
    colours = ["C2" if name.startswith("mixture") else "C0" for name in names]
    colours[0] = "0.4"
    for axis, test in zip(figure.subplots(1, 3), (ID, *OOD)):
        draw_seeds(axis, shown, test, colours)


EXPERIMENT = Experiment("data", TITLE, points, report)
