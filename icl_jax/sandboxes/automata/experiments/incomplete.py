"""M3 (E3): learning from some of the states alone. Liu 2024, Figure 3.19."""

from matplotlib.figure import Figure
import numpy as np

from icl_jax.sandboxes.automata.experiments.settings import (
    GPT,
    LSTM,
    accuracies,
    tests,
    trained_point,
)
from icl_jax.sandboxes.experiment import Experiment, Results, numbers
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import (
    Claim,
    Finding,
    compare_seeds,
    make_table,
    mean_with_interval,
    show_spread,
)

SETTINGS = {
    "mini": {
        "hard": "D6", "easy": "C2", "length": 10, "layers": 2, "steps": 2000,
        "revealed": (1.0, 0.3, 0.1, 0.03),
    },
    "paper": {
        "hard": "S5", "easy": "C2", "length": 100, "layers": 16, "steps": 100_000,
        "revealed": (1.0, 0.3, 0.1, 0.03, 0.01),
    },
}  # fmt: skip
NETWORKS = ("GPT", "LSTM")
ROUNDING = 1e-6  # of a point of accuracy: no slope
MAINTAINED = 1.0  # points of accuracy that may be lost where it is said to be maintained


def points(scale: str) -> list[Point]:
    """Both networks on both automata at every share of labels."""
    settings = SETTINGS[scale]
    gpt = GPT[scale] | {"layers": settings["layers"], "steps": settings["steps"]}
    return [
        trained_point(
            _name(automaton, network, share), automaton=automaton, revealed=share,
            length=settings["length"], tests=tests(settings["length"]), **fields,
        )
        for automaton in (settings["hard"], settings["easy"])
        for network, fields in zip(NETWORKS, (gpt, LSTM[scale]))
        for share in settings["revealed"]
    ]  # fmt: skip


def _name(automaton: str, network: str, share: float) -> str:
    return f"M3 {automaton}, {network}, {share:g} of the labels"


def report(scale: str, results: Results) -> Finding:
    """Accuracy by the share of the labels that are seen."""
    settings = SETTINGS[scale]
    shares, test = settings["revealed"], f"T={settings['length']}"
    found = {
        (a, n): np.array([accuracies(results, _name(a, n, share), test) for share in shares])
        for a in (settings["hard"], settings["easy"])
        for n in NETWORKS
    }
    rows = [[f"T = {settings['length']}, share of labels", *(f"{share:g}" for share in shares)]]
    rows += [[f"{a}, {n}", *map(show_spread, values)] for (a, n), values in found.items()]
    text = (
        "Each state is a target with the given probability, drawn anew in every batch; the same "
        "number of steps at every share. Token accuracy in percent on newly drawn rows, all "
        f"states counted: median over seeds (least to largest).\n\n{make_table(rows)}"
    )
    return Finding(
        "M3", "some of the states as targets", text, _claims(settings, found),
        {"scale": scale, "points": numbers(results, points(scale))},
        lambda figure: _draw(figure, settings, found), size=(6.6, 2.9),
    )  # fmt: skip


def _claims(settings: dict, found: dict) -> list[Claim]:
    shares, claims = np.array(settings["revealed"]), []
    hard, easy = settings["hard"], settings["easy"]
    for a, published in ((hard, "degrades significantly (S5)"), (easy, "maintains (C2)")):
        words, worse = compare_seeds(found[a, "GPT"][0], found[a, "GPT"][-1])
        verb, holds = "falls", worse
        if a == easy:  # that no fall is significant does not show that there is none
            verb = f"loses less than {MAINTAINED:g} point"
            _, (_, most) = mean_with_interval(100 * (found[a, "GPT"][0] - found[a, "GPT"][-1]))
            holds = True if most < MAINTAINED else False if worse else None
            words += f"; {most:.2f} points lost at most (95%)"
        claim = f"{a}: GPT {verb} from {shares[0]:g} of the labels to {shares[-1]:g}"
        claims.append(Claim(claim, published, words, holds))
        gap = found[a, "LSTM"] - found[a, "GPT"]
        # Points of accuracy lost to the LSTM for each halving of the share of labels.
        slopes = np.polyfit(-np.log2(shares), 100 * gap, 1)[0]
        mean, ends = mean_with_interval(slopes)
        if a == hard:
            claims.append(Claim(
                f"{a}: the gap between LSTM and GPT grows as labels get rarer",
                "LSTM perfect, GPT falls",
                f"{mean:+.2f} points for each halving ({ends[0]:+.2f} to {ends[1]:+.2f})",
                ends[0] > ROUNDING,
            ))  # fmt: skip
    least = min(found[a, "LSTM"].min() for a in (hard, easy))
    claims.append(Claim(
        "LSTM is perfect at every share (99.9% and more in all seeds)", "perfect",
        f"least {100 * least:.2f}", least >= 0.999,
    ))  # fmt: skip
    return claims


def _draw(figure: Figure, settings: dict, found: dict) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    for axis, a in zip(panels, (settings["hard"], settings["easy"])):
        for network, colour in zip(NETWORKS, ("C0", "C7")):
            low, middle, high = np.percentile(100 * found[a, network], (0, 50, 100), axis=1)
            axis.plot(settings["revealed"], middle, "o-", color=colour, markersize=3, label=network)
            axis.fill_between(settings["revealed"], low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_xscale("log")
        axis.set_title(a, fontsize=9, loc="left")
        axis.set_xlabel("share of the labels")
    panels[0].set_ylabel("accuracy, %")
    panels[0].legend(fontsize=7, frameon=False)


EXPERIMENT = Experiment("M3", "some of the states as targets", points, report)
