"""constructed: balanced weights that are written down, and noise on them. Liu 2024, 3.6.2.1."""

from pathlib import Path

from matplotlib.figure import Figure
import numpy as np

from icl_jax.sandboxes.dyck.exact import approximate_balance, balanced, disturbed, noise_curve
from icl_jax.sandboxes.dyck.language import Dyck
from icl_jax.sandboxes.experiment import Experiment, Results
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import Claim, Finding, make_table

SETTINGS = {
    "mini": {"languages": ([2, 4], [3, 3]), "seeds": 5, "rows": 20},
    "paper": {"languages": ([2, 4], [3, 3], [2, 8], [8, 4]), "seeds": 40, "rows": 100},
}
NOISES = (0.0, 0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4)
LENGTHS = (28, 100, 450)
RANDOM, UNIFORM = "random", "uniform"
SPREADS = {RANDOM: 1.0, UNIFORM: 0.0}
BOUND_NOISES = (0.0, 0.01, 0.1)
BOUND_LENGTH = 1000
ROUNDING = 1e-9


def points(scale: str) -> list[Point]:
    """Each language, with random attention and with uniform one."""
    settings = SETTINGS[scale]
    return [
        Point(
            _name(types, depth, kind), run,
            {"types": types, "depth": depth, "spread": spread, "seeds": settings["seeds"],
             "rows": settings["rows"]},
            seconds=settings["seeds"] * settings["rows"] / 2,
        )
        for types, depth in settings["languages"]
        for kind, spread in SPREADS.items()
    ]  # fmt: skip


def _name(types: int, depth: int, kind: str) -> str:
    return f"constructed Dyck({types},{depth}), {kind} attention"


def run(folder: Path, types: int, depth: int, spread: float, seeds: int, rows: int) -> dict:
    """Violation and accuracy by the noise on the scores; both sides of theorem 2."""
    language = Dyck(types, depth)
    bounds = [
        {"noise": noise, "seed": seed} | approximate_balance(network, BOUND_LENGTH)._asdict()
        for seed in range(seeds)
        for noise in BOUND_NOISES
        for network in [disturbed(balanced(language, seed, spread), noise, seed)]
    ]
    return {
        "curve": noise_curve(language, NOISES, seeds, LENGTHS, rows, spread),
        "theorem_2": bounds,
    }


def report(scale: str, results: Results) -> Finding:
    """No errors without noise, and more of them, the longer the row, with it."""
    shown = list(results)
    rows = [["construction", "noise", "violation", *(f"(ii) at {n}" for n in LENGTHS)]]
    for name in shown:
        for noise in NOISES:
            at = [point for point in results[name]["curve"] if point["noise"] == noise]
            rows.append([
                name.removeprefix("constructed "), noise,
                f"{np.median([point['violation']['mean'] for point in at]):.3f}",
                *(f"{100 * np.median(_accuracies(at, n)):.1f}" for n in LENGTHS),
            ])  # fmt: skip
    text = (
        "Theorem 1 asks of attention only that matching brackets cancel: scores are random but for "
        "a number that a pair has in common, and values make it good (corollary 1: all scores "
        "equal). Nothing is trained. Then noise of a standard deviation is added to every score: "
        f"medians over {SETTINGS[scale]['seeds']} constructions of the balance violation and of "
        "accuracy (ii), in percent of the places after a closing at which a bracket is open."
        f"\n\n{make_table(rows)}"
    )
    return Finding(
        "constructed", "balanced attention that is written down", text, _claims(results),
        {"scale": scale, "points": results}, lambda figure: _draw(figure, results),
        size=(4.5 * len(SPREADS), 3.2),
    )  # fmt: skip


def _accuracies(at: list[dict], length: int) -> list[float]:
    return [point["accuracy"][str(length)]["closings"] for point in at]


def _claims(results: Results) -> list[Claim]:
    claims = []
    for kind, claim in (
        (RANDOM, "theorem 1: attention with random scores closes every bracket if it is balanced"),
        (UNIFORM, "corollary 1: so does uniform attention"),
    ):
        at = [
            point for name in results if kind in name for point in results[name]["curve"]
            if point["noise"] == 0
        ]  # fmt: skip
        largest = max(point["violation"]["largest"] for point in at)
        least = min(min(_accuracies(at, n)) for n in LENGTHS)
        claims.append(Claim(
            claim, "proved",
            f"{len(at)} constructions, lengths {', '.join(map(str, LENGTHS))}: accuracy (ii) "
            f"{100 * least:.1f} and more; largest violation {largest:.0e}",
            least == 1 and largest < ROUNDING,
        ))  # fmt: skip
    bounds = [bound for result in results.values() for bound in result["theorem_2"]]
    kept = sum(bound["largest"] <= bound["bound"] for bound in bounds)
    claims.append(Claim(
        f"theorem 2: the largest violation is below 16 D R / N (N = {BOUND_LENGTH}, R from how far "
        "outputs stay apart)", "proved",
        f"{kept} of {len(bounds)} constructions, noise {', '.join(map(str, BOUND_NOISES))}",
        kept == len(bounds),
    ))  # fmt: skip
    return claims


def _draw(figure: Figure, results: Results) -> None:
    panels = figure.subplots(1, len(SPREADS), sharey=True)
    first = [next(name for name in results if kind in name) for kind in SPREADS]
    for axis, name in zip(panels, first):
        for length, colour in zip(LENGTHS, ("C0", "C1", "C3")):
            betas = [point["violation"]["mean"] for point in results[name]["curve"]]
            values = np.multiply(100, _accuracies(results[name]["curve"], length))
            axis.plot(betas, values, "o", color=colour, markersize=3, alpha=0.7,
                      label=f"length {length}")  # fmt: skip
        axis.set_title(name.removeprefix("constructed "), fontsize=9, loc="left")
        axis.set_xlabel("balance violation")
    panels[0].set_ylabel("accuracy (ii), %")
    panels[0].legend(fontsize=7, frameon=False)


EXPERIMENT = Experiment("constructed", "balanced attention that is written down", points, report)
