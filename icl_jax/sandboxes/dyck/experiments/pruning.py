"""pruning: two networks alike in a matrix, unlike in what they compute. Liu 2024, 3.6.2.2."""

from pathlib import Path

from matplotlib.figure import Figure
import numpy as np

from icl_jax.sandboxes.dyck.pruning import demonstrate, width_curve
from icl_jax.sandboxes.experiment import Experiment, Results
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import Claim, Finding, make_table

SEEDS = {"mini": 5, "paper": 20}
CURVE = "pruning, by width"
FAR_APART = 10  # times the bounds of the gaps to the targets


def points(scale: str) -> list[Point]:
    """Random networks, and how precise pruning is by width."""
    found = [Point(_name(n), run, {"seed": n}, seconds=60.0) for n in range(SEEDS[scale])]
    return [*found, Point(CURVE, run_curve, {}, seconds=60.0)]


def _name(seed: int) -> str:
    return f"pruning, random network {seed}"


def run(folder: Path, seed: int) -> dict:
    """One network, pruned to two targets."""
    return demonstrate(seed)


def run_curve(folder: Path) -> dict:
    """The error of a pruned pair of matrices."""
    return {"curve": width_curve()}


def report(scale: str, results: Results) -> Finding:
    """The gaps to the targets, the gap between the two, and the matrix that they share."""
    found = [results[_name(n)] for n in range(SEEDS[scale])]
    rows = [["random network", "weights", "kept", "gaps to the targets", "bounds of them",
             "between the two", "shared matrix", "kept of it"]]  # fmt: skip
    rows += [
        [each["seed"], f"{each['weights']:,}",
         " and ".join(f"{n:,}" for n in np.sum([row["kept"] for row in each["matrices"]], axis=0)),
         *(" and ".join(f"{gap:.0e}" for gap in each[what]) for what in ("gaps", "bounds")),
         f"{each['disagreement']:.2f}",
         f"layer {each['component']['layer']}, {each['component']['matrix']}",
         f"{each['component']['kept'][0]} of {each['component']['weights']:,}"]
        for each in found
    ]  # fmt: skip
    curve = results[CURVE]["curve"]
    widths = sorted({point["units"] for point in curve})
    wide = [["hidden units for each input", *widths]]
    wide += [["error, median", *(f"{np.median(_errors(curve, n)):.1e}" for n in widths)],
             ["largest", *(f"{max(_errors(curve, n)):.1e}" for n in widths)]]  # fmt: skip
    text = (
        "A random network of four layers is pruned twice, each weight kept or set to 0, to two "
        "random targets of one layer. Gaps are the largest ||f(X) - g(X)|| / ||X|| that a search "
        "over inputs of norm at most 1 found; bounds are for all of them. Two layers carry the "
        "target, the other two the identity, whatever the target is: in one of these is the "
        f"shared matrix.\n\n{make_table(rows)}\n\n"
        "How precisely a linear map is found in a random pair of matrices with a ReLU between "
        f"(lemma 25):\n\n{make_table(wide)}\n\nShown for these networks; the theorem is about "
        "all random networks, with probability 1 - delta, and targets of several layers."
    )
    return Finding(
        "pruning", "matrices that say nothing", text, _claims(found),
        {"scale": scale, "curve": curve,
         "networks": [{k: v for k, v in each.items() if k != "example"} for each in found]},
        lambda figure: _draw(figure, found[0], curve, widths), size=(9.5, 2.9),
    )  # fmt: skip


def _errors(curve: list[dict], units: int) -> list[float]:
    return [point["error"] for point in curve if point["units"] == units]


def _claims(found: list[dict]) -> list[Claim]:
    bounds = [bound for each in found for bound in each["bounds"]]
    apart = [each["disagreement"] for each in found]
    same = sum(each["component"]["same"] for each in found)
    return [
        Claim(
            "corollary 3: two networks pruned from one have a matrix in common and approximate "
            f"different targets (they are {FAR_APART} times as far apart as from these, or more)",
            "proved, with probability 1 - delta",
            f"alike in {same} of {len(found)}; from the targets at most {max(bounds):.0e}, from "
            f"each other at least {min(apart):.2f}",
            same == len(found) and min(apart) > FAR_APART * max(bounds),
        ),
    ]


def _draw(figure: Figure, example: dict, curve: list[dict], widths: list[int]) -> None:
    one, other, outputs, errors = figure.subplots(1, 4, width_ratios=(1, 1, 1.1, 1.1))
    component = example["component"]
    for axis, places, number in zip((one, other), component["places"], (1, 2)):
        row_N, column_N = np.transpose(places)
        axis.plot(column_N, row_N, "o", color="0.2", markersize=2)
        axis.set_title(f"network {number}: kept in layer {component['layer']}, "
                       f"{component['matrix']}", fontsize=8, loc="left")  # fmt: skip
        axis.set_yticks(range(row_N.max() + 1))
        axis.invert_yaxis()
        axis.set_xlabel("input")
        axis.set_ylabel("output")
    for number, colour in zip((0, 1), ("C0", "C3")):
        target, got = (np.ravel(example["example"][what][number]) for what in ("targets", "pruned"))
        outputs.plot(target, got, "o", color=colour, markersize=3, alpha=0.6,
                     label=f"network {number + 1}")  # fmt: skip
    outputs.axline((0, 0), slope=1, color="0.7", linewidth=0.8)
    outputs.set_xlabel("target, each its own")
    outputs.set_ylabel("pruned network")
    outputs.legend(fontsize=7, frameon=False)
    errors.plot(widths, [np.median(_errors(curve, n)) for n in widths], "o-", markersize=3)
    errors.set_yscale("log")
    errors.set_xlabel("hidden units for each input")
    errors.set_ylabel("error of a linear map")


EXPERIMENT = Experiment("pruning", "matrices that say nothing", points, report)
