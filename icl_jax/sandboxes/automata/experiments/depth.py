"""M1 (E1): how many layers an automaton takes. Liu 2024, 3.4.2 and Figures 3.15, 3.16."""

import math

from matplotlib.figure import Figure
import numpy as np

from icl_jax.sandboxes.automata.algebra import facts
from icl_jax.sandboxes.automata.experiments.published import BEST, MEDIANS, fewest_layers, median
from icl_jax.sandboxes.automata.experiments.settings import (
    GPT,
    accuracies,
    tests,
    trained_point,
)
from icl_jax.sandboxes.automata.library import PUBLISHED, make
from icl_jax.sandboxes.experiment import Experiment, Results, numbers
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import (
    Claim,
    Finding,
    compare_seeds,
    make_table,
    show_spread,
)

SETTINGS = {
    "mini": {"automata": ("Grid9", "C5", "D6", "A4"), "layers": (1, 2, 4), "length": 12},
    "paper": {"automata": PUBLISHED, "layers": (1, 2, 4, 8, 12, 16), "length": 100},
}
SOLVED = 0.99
# A dropout of 0.1 helps some and hurts others (Liu 2024, 3.4.5.1.1).
DROPOUT = {"mini": {}, "paper": {"D6": 0.1, "D8": 0.1, "Q8": 0.1}}


def points(scale: str) -> list[Point]:
    """One training for each automaton and depth."""
    settings = SETTINGS[scale]
    return [
        trained_point(
            _name(automaton, layers), automaton=automaton, layers=layers,
            length=settings["length"], tests=tests(settings["length"]),
            **GPT[scale] | {"dropout": DROPOUT[scale].get(automaton, 0.0)},
        )
        for automaton in settings["automata"]
        for layers in settings["layers"]
    ]  # fmt: skip


def _name(automaton: str, layers: int) -> str:
    return f"M1 {automaton}, {layers} layer{'s' * (layers > 1)}"


def report(scale: str, results: Results) -> Finding:
    """Accuracy by depth, and the fewest layers that solve an automaton."""
    settings = SETTINGS[scale]
    automata, layers = settings["automata"], settings["layers"]
    test = f"T={settings['length']}"
    found = {(a, n): accuracies(results, _name(a, n), test) for a in automata for n in layers}
    needed = {a: _fewest({n: found[a, n] for n in layers}) for a in automata}
    known = {a: facts(make(a)) for a in automata}
    header = [
        "automaton",
        "states",
        "group",
        "derived length",
        *(f"{n} layer{'s' * (n > 1)}" for n in layers),
    ]
    rows = [[*header, "fewest at 99%", "published (T=100): median", "best of 20"]]
    rows += [
        [
            a, known[a]["states"], known[a]["order"] if known[a]["is_group"] else "-",
            _derived(known[a]), *(show_spread(found[a, n]) for n in layers),
            needed[a] or f"more than {max(layers)}", *_published_layers(a),
        ]
        for a in automata
    ]  # fmt: skip
    text = (
        f"Token accuracy in percent on 2,048 rows of T = {settings['length']}, newly drawn: the "
        "median over seeds (least to largest). The fewest layers are those whose median reaches "
        "99%; `at most` where copies of the text have lost numbers of fewer layers.\n\n"
        f"{make_table(rows)}\n\n{_by_position(settings, results)}"
    )
    return Finding(
        "M1", "depth by automaton", text, _claims(settings, found, needed, known),
        {
            "scale": scale,
            "fewest_layers": needed,
            "derived_length": {a: known[a]["derived_length"] for a in automata},
            "points": numbers(results, points(scale)),
        },
        lambda figure: _draw(figure, settings, found),
        size=(2.4 * min(len(automata), 4), 2.7 * -(-len(automata) // 4)),
    )  # fmt: skip


def _by_position(settings: dict, results: Results) -> str:
    """Early states are easy: few letters lead to them."""
    length = settings["length"]
    places = sorted({1, *(math.ceil(length * share) for share in (0.25, 0.5, 0.75, 1.0))})
    rows = [["accuracy at letter", *map(str, places)]]
    for automaton in settings["automata"]:
        for layers in settings["layers"]:
            name = _name(automaton, layers)
            values_ST = np.array(results[name]["tests"][f"T={length}"]["by_position"])
            shown = [show_spread(values_ST[:, place - 1]) for place in places]
            rows.append([name.removeprefix("M1 "), *shown])
    return make_table(rows)


def _fewest(by_layers: dict[int, list[float]]) -> int | None:
    return next((n for n, values in by_layers.items() if np.median(values) >= SOLVED), None)


def _published_layers(automaton: str) -> list[str]:
    return [
        fewest_layers(table[automaton]) if automaton in table else "-" for table in (MEDIANS, BEST)
    ]


def _derived(known: dict) -> str:
    if not known["solvable"]:
        return "not solvable"
    return str(known["derived_length"]) if known["is_group"] else "no group"


def _claims(settings, found, needed, known) -> list[Claim]:
    automata, layers = settings["automata"], settings["layers"]
    low, high = layers[0], 4 if 4 in layers else layers[-1]
    claims = []
    for a in (a for a in automata if a in MEDIANS):
        words, sure = compare_seeds(found[a, high], found[a, low])
        many, few = ("lost" if m is None else f"{m:g}" for m in (median(a, high), median(a, low)))
        claims.append(Claim(
            f"{a}: {high} layers do better than {low}",
            f"medians {many} against {few} (T = 100, d = 512)", words, sure,
        ))  # fmt: skip
    least = lambda a: needed[a] or max(layers) + 1  # noqa: E731
    kinds = {
        "what has no group in it takes the fewest layers to 99%": (
            [a for a in automata if not known[a]["is_group"]],
            [a for a in automata if known[a]["is_group"]],
        ),
        "non-abelian groups (derived length 2 and more) take more layers than abelian ones": (
            [a for a in automata if known[a]["is_group"] and known[a]["derived_length"] == 1],
            [a for a in automata if known[a]["is_group"] and known[a]["derived_length"] != 1],
        ),
    }
    shown = ", ".join(f"{a} {needed[a] or f'> {max(layers)}'}" for a in automata)
    published = ", ".join(f"{a} {fewest_layers(MEDIANS[a])}" for a in automata if a in MEDIANS)
    for claim, (fewer, more) in kinds.items():
        if not fewer or not more:
            continue
        holds = max(map(least, fewer)) < min(map(least, more))
        solved = any(needed[a] for a in (*fewer, *more))
        claims.append(Claim(claim, published, shown, holds if solved else None))
    return claims


def _draw(figure: Figure, settings: dict, found: dict) -> None:
    automata, layers = settings["automata"], settings["layers"]
    rows, columns = -(-len(automata) // 4), min(len(automata), 4)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for axis in panels[len(automata) :]:
        axis.set_visible(False)
    for place, (axis, a) in enumerate(zip(panels, automata)):
        for n in layers:
            axis.plot([n] * len(found[a, n]), np.multiply(100, found[a, n]), "o", color="C0",
                      alpha=0.5, markersize=4)  # fmt: skip
        medians = [100 * np.median(found[a, n]) for n in layers]
        axis.plot(layers, medians, color="C0", label="here: seeds, median")
        known = {n: median(a, n) for n in layers if median(a, n) is not None}
        axis.plot(known.keys(), known.values(), "x--", color="C1",
                  label="published median, T = 100")  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set_xticks(layers, [str(n) for n in layers])
        axis.set_title(a, fontsize=9, loc="left")
        axis.set_xlabel("layers")
        axis.set_ylim(0, 103)
        if place % 4 == 0:
            axis.set_ylabel("accuracy, %")
    panels[0].legend(fontsize=7, frameon=False, loc="lower right")


EXPERIMENT = Experiment("M1", "depth by automaton", points, report)
