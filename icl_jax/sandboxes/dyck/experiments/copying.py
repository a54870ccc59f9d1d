"""copying (D7): attention with a pattern, of networks that do not need any. Liu 2024, 3.6.5.1."""

from matplotlib.figure import Figure
import numpy as np

from icl_jax.sandboxes.dyck.experiments.settings import accuracy, numbers, show, trained_point
from icl_jax.sandboxes.dyck.experiments.variation import draw_map
from icl_jax.sandboxes.dyck.trained import NEAR
from icl_jax.sandboxes.experiment import Experiment, Results
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import Claim, Finding, make_table, show_spread

LAYERS = (4, 1)
PUBLISHED = {4: 0.96, 1: 0.90}  # Figures 3.41 and 3.42: more than this share is copied
SETTINGS = {"mini": {"seeds": 5, "steps": 360}, "paper": {"seeds": 40, "steps": 1440, "width": 200}}


def points(scale: str) -> list[Point]:
    """Networks that say again what they read."""
    fields = {"network": "gpt", "position": "linear", "learn": "copy", "learning_rate": 3e-3}
    return [
        trained_point(_name(layers), layers=layers, **fields | SETTINGS[scale]) for layers in LAYERS
    ]


def _name(layers: int) -> str:
    return f"copying, {layers} layer{'s' * (layers > 1)}"


def report(scale: str, results: Results) -> Finding:
    """What is copied with attention and without, and how much attention is on closings."""
    rows = [["network", "copied", "without attention", "weight on closings, by layer",
             "if equal"]]  # fmt: skip
    for layers in LAYERS:
        found = results[_name(layers)]
        rows.append([
            f"{layers} layer{'s' * (layers > 1)}",
            *(show_spread(accuracy(results, _name(layers), NEAR, what))
              for what in ("copied", "copied_without_attention")),
            "; ".join(map(show, np.transpose(found["on_closings"]))),
            f"{found['on_closings_if_equal']:.2f}",
        ])  # fmt: skip
    text = (
        "The output is to be the token that is read, for which the residual stream is enough. "
        "Percent of tokens, median over seeds (least to largest); without attention: what its "
        "layers add is set to zero in the trained network. A pattern, such as more weight on "
        "closings than equal weights have, says nothing of the task."
        f"\n\n{make_table(rows)}"
    )
    claims = []
    for layers in LAYERS:
        copied, without = (
            accuracy(results, _name(layers), NEAR, what)
            for what in ("copied", "copied_without_attention")
        )
        claims += [
            Claim(f"{layers}-layer GPTs copy", f"more than {PUBLISHED[layers]:.0%}",
                  show_spread(copied), min(copied) > PUBLISHED[layers]),
            Claim(f"{layers}-layer GPTs copy as much without their attention, whatever it is on "
                  "(to a point of accuracy)", "attention is not informative of the task",
                  f"{show_spread(copied)} with, {show_spread(without)} without",
                  min(np.subtract(without, copied)) > -0.01),
        ]  # fmt: skip
    return Finding(
        "copying", "patterns that mean nothing", text, claims,
        {"scale": scale, "points": numbers(results, points(scale))},
        lambda figure: _draw(figure, results), size=(9.0, 4.6),
    )  # fmt: skip


def _draw(figure: Figure, results: Results) -> None:
    above, below = figure.subplots(2, max(LAYERS))
    deep, flat = (results[_name(layers)] for layers in LAYERS)
    for n, (axis, weights) in enumerate(zip(above, deep["layers"])):
        draw_map(axis, np.array(weights), deep["shown"])
        axis.set_title(f"4 layers, seed 0: layer {n + 1}", fontsize=7, loc="left")
    for seed, (axis, weights) in enumerate(zip(below, flat["attention"])):
        draw_map(axis, np.array(weights), flat["shown"])
        axis.set_title(f"1 layer: seed {seed}", fontsize=7, loc="left")


EXPERIMENT = Experiment("copying", "patterns that mean nothing", points, report)
