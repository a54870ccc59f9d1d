"""What does not cure it (R5 to R7): size, decay, dropout, positions, gates, sharper attention.

Liu 2024, 3.5.4 and Figures 3.25, 3.27, 3.31, 3.32.
"""

from collections.abc import Iterator
import itertools

from matplotlib.figure import Figure
import numpy as np

from icl_jax.evaluation.compare.table import show_p
from icl_jax.sandboxes.experiment import Experiment, Results, numbers
from icl_jax.sandboxes.flip_flop.experiments.errors import (
    adjust,
    draw_seeds,
    free_of_errors,
    pooled,
    rank_sum_p,
    rates,
    show_seeds,
)
from icl_jax.sandboxes.flip_flop.experiments.settings import (
    DENSE,
    GPT,
    ID,
    OOD,
    POSITIONS,
    SEEDS,
    SPARSE,
    arm,
    baseline,
    baseline_arm,
    positions_arm,
)
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import SURE, Claim, Finding, make_table

TITLE = "partial cures"
SIZE, DECAY, DROPOUT, GATED = "size", "weight decay", "dropout", "feed-forward layer"
SHARPENING, OPTIMIZER, POSITION = "sharpening", "optimiser", "positions"
SIZE_SEEDS = {"mini": SEEDS["mini"], "paper": 3}
DROPOUTS = {  # what is left out: in which field, at which rates
    "mini": {"embedding": (0.5,), "attention": (0.3,), "residual": (0.3,)},
    "paper": dict.fromkeys(("embedding", "attention", "residual"), (0.1, 0.3, 0.5)),
}
DECAYS = {"mini": (0.0, 1.0), "paper": (0.0, 0.01, 1.0)}
# Norm, lambda, schedule, share of the steps after which it begins.
SHARPENERS = {
    "mini": (
        ("entropy", 0.1, "constant", 0.0), ("norm", 0.1, "constant", 0.0),
        ("max", 0.1, "constant", 0.0), ("entropy", 0.1, "linear", 0.0),
        ("entropy", 0.1, "oscillating", 0.5),
    ),
    "paper": tuple(itertools.product(
        ("entropy", "norm", "max"), (0.01, 0.03, 0.1, 0.3, 1.0, 10.0, 30.0),
        ("linear", "oscillating"), (0.0, 0.2, 0.5),
    )),
}  # fmt: skip
LARGE_DROPOUT = "embedding dropout 0.5"
SHALLOW = "1 layer"


def families(scale: str) -> dict[str, list[Point]]:
    """The arms beside the baseline, by what they change."""
    seeds, gpt = SEEDS[scale], GPT[scale]
    size = SIZE_SEEDS[scale]
    found = {
        SIZE: [arm(scale, name, size, **changes) for name, changes in _sizes(scale)],
        DECAY: [arm(scale, f"weight decay {x:g}", seeds, weight_decay=x) for x in DECAYS[scale]],
        DROPOUT: [
            arm(scale, f"{what} dropout {rate:g}", seeds, **{f"{what}_dropout": rate})
            for what, dropped in DROPOUTS[scale].items()
            for rate in dropped
        ],
        POSITION: [positions_arm(scale, x) for x in POSITIONS if x != gpt["position"]],
        GATED: [arm(scale, "gated", seeds, gated=True)],
        SHARPENING: [
            arm(scale, _sharpened(*way), seeds, sharpen=way[0], strength=way[1], schedule=way[2],
                sharpen_from=round(way[3] * gpt["steps"]))
            for way in SHARPENERS[scale]
        ],
    }  # fmt: skip
    if scale == "paper":
        found[OPTIMIZER] = [
            arm(scale, f"b1 {b1:g}, b2 {b2:g}, rate {rate:g}", seeds, b1=b1, b2=b2,
                learning_rate=rate)
            for b1, b2, rate in itertools.product(
                (0.85, 0.9, 0.95), (0.95, 0.99, 0.999), (1e-4, 3e-4, 1e-3, 3e-3)
            )
            if (b1, b2, rate) != (0.9, 0.999, gpt["learning_rate"])
        ]  # fmt: skip
    return found


def _sizes(scale: str) -> Iterator[tuple[str, dict]]:
    if scale == "mini":
        yield SHALLOW, {"layers": 1}
        yield "4 layers", {"layers": 4}
        yield "width 32", {"width": 32}
        return
    own = tuple(GPT[scale][field] for field in ("layers", "width", "heads"))
    for size in itertools.product((2, 4, 6, 8), (128, 256, 512, 1024), (2, 4, 8, 16)):
        if size != own:
            layers, width, heads = size
            name = f"{layers} layers, width {width}, {heads} heads"
            yield name, {"layers": layers, "width": width, "heads": heads}


def _sharpened(norm: str, strength: float, schedule: str, begins: float) -> str:
    late = f" from {begins:.0%} on" if begins else ""
    return f"{norm} {strength:g} {schedule}{late}"


def points(scale: str) -> list[Point]:
    """The baseline and every arm."""
    return [baseline_arm(scale), *(p for family in families(scale).values() for p in family)]


def report(scale: str, results: Results) -> Finding:
    """Errors of every arm, and whether they are fewer than the baseline's."""
    own, by_family = results[baseline(scale)], families(scale)
    ps = {
        test: {
            name: rank_sum_p(rates(own, test), rates(results[name], test))
            for name in results if name != baseline(scale)
        }
        for test in OOD
    }  # fmt: skip
    rows = [["arm", ID.replace("_", " "), *OOD, "seeds without an error on these", *(
        f"p, fewer on {test}" for test in OOD)]]  # fmt: skip
    for point in points(scale):
        name = point.name
        shown = [show_p(ps[test][name]) if name in ps[test] else "" for test in OOD]
        free = f"{free_of_errors(results[name], OOD)} of {len(rates(results[name], ID))}"
        rows.append([name, *(show_seeds(results[name], t) for t in (ID, *OOD)), free, *shown])
    text = (
        f"The baseline ({baseline(scale)}) with one change each. Wrong reads: the median over "
        "seeds (least to most). p: by ranks, one-sided, that an arm makes fewer errors than the "
        f"baseline, each test by itself.\n\n{make_table(rows)}"
    )
    arms = {name: pooled(results[name]) for name in results if name != baseline(scale)}
    return Finding(
        "mitigations", TITLE, text, _claims(scale, results, ps, by_family),
        arms | {"scale": scale, "points": numbers(results, points(scale))},
        lambda figure: _draw(figure, scale, results, by_family),
        size=(min(30.0, 2.0 + 0.35 * len(results)), 6.5),
    )  # fmt: skip


def _claims(scale: str, results: Results, ps: dict, by_family: dict) -> list[Claim]:
    own = results[baseline(scale)]
    seeds = {name: len(rates(result, ID)) for name, result in results.items()}
    free = {name: free_of_errors(result, OOD) for name, result in results.items()}
    always = [name for name in results if free[name] == seeds[name]]
    most = max(free, key=lambda name: free[name] / seeds[name])
    claims = [Claim(
        "none of these reliably makes no error out of distribution",
        "nothing eliminates attention glitches entirely (R7)",
        f"arms without an error in all seeds: {', '.join(always) or 'none'}; seeds without one: "
        + (f"at most {free[most]} of {seeds[most]} ({most})" if free[most] else "none"),
        not always,
    )]  # fmt: skip
    if SHALLOW in results:
        shallow = results[SHALLOW]
        p = rank_sum_p(rates(shallow, ID), rates(own, ID))
        claims.append(Claim(
            "1 layer does not converge even in distribution", "shallow ones do not (Figure 3.27)",
            f"{show_seeds(shallow, ID)} against {show_seeds(own, ID)}; p {show_p(p)}", p < SURE,
        ))  # fmt: skip
    claims.append(_fewer(
        LARGE_DROPOUT, "sparse errors / 100 (Figure 3.31)", own, results[LARGE_DROPOUT],
        ps[SPARSE][LARGE_DROPOUT],
    ))  # fmt: skip
    learned = results[POSITIONS["learned"]]
    for position in ("alibi", "sinusoidal", "rotary", "none"):
        claims += _against_learned(POSITIONS[position], learned, results[POSITIONS[position]])
    names = {family: [point.name for point in arms] for family, arms in by_family.items()}
    everything = [name for arms in names.values() for name in arms]
    claims.append(_any_fewer(
        "all arms", "some choices have effects of orders of magnitude (R6)", everything, own,
        results, ps[SPARSE],
    ))  # fmt: skip
    for family, published in (
        (SHARPENING, "among the strongest improvements on sparse rows (R6)"),
        (SIZE, "no monotone effect of the size (R5)"), (OPTIMIZER, "no significant improvement"),
    ):  # fmt: skip
        if family in names:
            claims.append(_any_fewer(family, published, names[family], own, results, ps[SPARSE]))
    return claims


def _fewer(name: str, published: str, own: dict, result: dict, p: float) -> Claim:
    measured = f"{show_seeds(result, SPARSE)} against {show_seeds(own, SPARSE)}; p {show_p(p)}"
    return Claim(f"{name}: fewer errors on sparse rows", published, measured, p < SURE)


def _against_learned(name: str, learned: dict, result: dict) -> list[Claim]:
    """Published of positions that are not learnt: they help on dense rows, not on sparse ones."""
    found = []
    for test, published in ((DENSE, "help on dense rows"), (SPARSE, "no clear benefit there")):
        p = rank_sum_p(rates(learned, test), rates(result, test))
        found.append(Claim(
            f"{name}: {'fewer' if test == DENSE else 'not fewer'} errors on {test} rows than "
            "learned positions",
            published,
            f"{show_seeds(result, test)} against {show_seeds(learned, test)}; p {show_p(p)}",
            # That there is no benefit cannot be shown by a test: only that there is one.
            p < SURE if test == DENSE else (False if p < SURE else None),
        ))  # fmt: skip
    return found


def _any_fewer(family, published, names, own, results, ps) -> Claim:
    """Whether any arm of a family makes fewer errors, p adjusted for their number."""
    adjusted = adjust({name: ps[name] for name in names})
    best = min(adjusted, key=adjusted.__getitem__)
    helps = adjusted[best] < SURE
    measured = (
        f"{best}: {show_seeds(results[best], SPARSE)} against {show_seeds(own, SPARSE)}; p "
        f"{show_p(adjusted[best])} (Holm, {len(names)} arms)"
    )
    if published.startswith("no "):  # a test can only refute that there is no effect
        return Claim(f"{family}: no arm has fewer errors on sparse rows", published, measured,
                     False if helps else None)  # fmt: skip
    return Claim(f"{family}: an arm has fewer errors on sparse rows", published, measured, helps)


def _draw(figure: Figure, scale: str, results: Results, by_family: dict) -> None:
    colours = {baseline(scale): "0.4"}
    for n, family in enumerate(by_family.values()):
        colours |= {point.name: f"C{n}" for point in family}
    shown = {name: results[name] for name in colours}
    for axis, test in zip(figure.subplots(2, 1, sharex=True), OOD):
        draw_seeds(axis, shown, test, list(colours.values()))
        axis.axhline(np.median(rates(results[baseline(scale)], test)), color="0.4", linewidth=0.6)


EXPERIMENT = Experiment("mitigations", TITLE, points, report)
