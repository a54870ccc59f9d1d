"""M5 (E6, E7): position encodings, and what the heads look at. Liu 2024, Figures 3.6, 3.17, 3.22.

Shape suffixes: S seeds, L layers, B rows, H heads, T queries, K keys.
"""

from pathlib import Path

import jax
from matplotlib.figure import Figure
import numpy as np

from icl_jax.sandboxes.automata.experiments.settings import (
    GPT,
    accuracies,
    tests,
    trained_point,
)
from icl_jax.sandboxes.automata.trained import TEST_SEED, Training, train_and_read
from icl_jax.sandboxes.experiment import Experiment, Results, numbers
from icl_jax.sandboxes.fit import Fitted
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import (
    SURE,
    Claim,
    Finding,
    compare_seeds,
    make_table,
    show_spread,
)

SETTINGS = {
    "mini": {"length": 20, "layers": 2, "steps": 2000, "looked": {"length": 20, "layers": 2}},
    "paper": {
        "length": 40, "layers": 8, "steps": 100_000, "looked": {"length": 128, "layers": 4},
    },
}  # fmt: skip
ENCODINGS = ("sinusoidal", "linear", "none", "alibi", "rotary")
GRID, BOUNDARIES = "Grid9", (0, 8)
TASKS = {GRID: ENCODINGS, "abab 2": ("sinusoidal", "linear")}
LOOKED = "M5 attention"
ROWS = 128  # whose attention is read
PERMUTATIONS = 999


def points(scale: str) -> list[Point]:
    """Every encoding, tested on twice the length, and a network whose attention is read."""
    settings = SETTINGS[scale]
    gpt = GPT[scale] | {"layers": settings["layers"], "steps": settings["steps"]}
    found = [
        trained_point(
            f"M5 {task}, {position}", automaton=task, length=settings["length"],
            position=position, tests=tests(2 * settings["length"], settings["length"]), **gpt,
        )
        for task, positions in TASKS.items()
        for position in positions
    ]  # fmt: skip
    looked = settings["looked"]
    fields = gpt | {"layers": looked["layers"]}
    found.append(
        trained_point(
            LOOKED, train_and_look, automaton=GRID, length=looked["length"],
            tests=tests(looked["length"]), **fields,
        )
    )  # fmt: skip
    return found


# What the heads look at.


def train_and_look(folder: Path, **fields) -> dict:
    """Trains on a gridworld and reads the attention of new rows."""
    return train_and_read(folder, look, **fields)


def look(training: Training, fitted: Fitted, folder: Path) -> dict:
    """Of every seed: how flat the first layer is, and how much of the last is on boundaries."""
    automaton = training.automaton_of()
    rows = automaton.sample(jax.random.key(TEST_SEED), ROWS, training.length)
    letters_BT, states_BT = rows["letters"], np.asarray(rows["states"])
    weights_SLBHTK = fitted.of_each_seed(lambda model: model.attention_weights(letters_BT))()
    boundary_BT = last_boundary(states_BT)
    seeds = []
    for weights_LBHTK in weights_SLBHTK:
        mass_H, usual_H, p = boundary_mass(weights_LBHTK[-1], boundary_BT)
        seeds.append(
            {
                "first_layer_from_flat": from_flat(weights_LBHTK[0]),
                "last_layer_from_flat": from_flat(weights_LBHTK[-1]),
                "on_last_boundary": mass_H.tolist(),
                "at_the_same_lag": usual_H.tolist(),
                "p": p,
            }
        )
    head = int(np.argmax(np.subtract(seeds[0]["on_last_boundary"], seeds[0]["at_the_same_lag"])))
    example = {
        "head": head,
        "states": states_BT[0].tolist(),
        "weights": np.round(weights_SLBHTK[0, -1, 0, head], 3).tolist(),
    }
    return {"attention": {"seeds": seeds, "example": example}}


def last_boundary(states_BT: np.ndarray) -> np.ndarray:
    """The last place up to each at which the walker is at an end of the grid; -1: never so far."""
    place_BT = np.where(np.isin(states_BT, BOUNDARIES), np.arange(states_BT.shape[1]), -1)
    return np.maximum.accumulate(place_BT, axis=1)


def boundary_mass(
    weights_BHTK: np.ndarray, boundary_BT: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """The attention of each head on the row's last boundary, and on that of other rows.

    Where other rows have theirs, this one has any state: the same lags without the boundary. p: how
    often the best head does as well when rows and boundaries are paired at random, over all heads.
    """
    random = np.random.default_rng(0)
    own_H = _mass(weights_BHTK, boundary_BT)
    others_PH = np.array(
        [_mass(weights_BHTK, random.permutation(boundary_BT)) for _ in range(PERMUTATIONS)]
    )
    usual_H = others_PH.mean(axis=0)
    above = (own_H - usual_H).max()
    as_high = np.sum((others_PH - usual_H).max(axis=1) >= above)
    return own_H, usual_H, float((1 + as_high) / (1 + PERMUTATIONS))


def _mass(weights_BHTK: np.ndarray, boundary_BT: np.ndarray) -> np.ndarray:
    row_N, query_N = np.nonzero(
        (boundary_BT >= 0) & (boundary_BT < np.arange(boundary_BT.shape[1]))
    )
    return weights_BHTK[row_N, :, query_N, boundary_BT[row_N, query_N]].mean(axis=0)


def from_flat(weights_BHTK: np.ndarray) -> list[float]:
    """For each head, the mean total variation distance from equal weights on all that is seen."""
    length = weights_BHTK.shape[-1]
    flat_TK = np.tril(np.ones((length, length))) / np.arange(1, length + 1)[:, None]
    return (np.abs(weights_BHTK - flat_TK).sum(axis=-1) / 2).mean(axis=(0, 2)).tolist()


# The report.


def report(scale: str, results: Results) -> Finding:
    """Accuracy at the length of training and at twice that, and the attention on boundaries."""
    settings = SETTINGS[scale]
    near, far = f"T={settings['length']}", f"T={2 * settings['length']}"
    found = {
        (task, position): [accuracies(results, f"M5 {task}, {position}", t) for t in (near, far)]
        for task, positions in TASKS.items()
        for position in positions
    }
    rows = [["task, positions", f"{near}, as trained", far]]
    rows += [[f"{t}, {p}", *map(show_spread, values)] for (t, p), values in found.items()]
    looked = results[LOOKED]["attention"]
    best = [int(np.argmax(np.subtract(s["on_last_boundary"], s["at_the_same_lag"])))
            for s in looked["seeds"]]  # fmt: skip
    heads = [["seed", "head", "on the last boundary", "at the same lag, no boundary", "p"]]
    heads += [
        [n, head, f"{seed['on_last_boundary'][head]:.3f}", f"{seed['at_the_same_lag'][head]:.3f}",
         f"{seed['p']:.3f}"]
        for n, (seed, head) in enumerate(zip(looked["seeds"], best, strict=True))
    ]  # fmt: skip
    text = (
        "Token accuracy in percent on newly drawn rows: median over seeds (least to largest). "
        "Learned positions are left out: there are none for rows twice as long.\n\n"
        f"{make_table(rows)}\n\n"
        f"Attention of the last of {settings['looked']['layers']} layers on {GRID}, "
        f"T = {settings['looked']['length']}: the share of its weight that the best head of each "
        "seed puts on the last place at which the walker was at an end, and on the places of the "
        "ends of other rows, which are as far back. p: rows and ends paired at random "
        f"{PERMUTATIONS} times, the best of all heads each time.\n\n{make_table(heads)}"
    )
    kept = {key: value for key, value in looked.items() if key != "example"}
    return Finding(
        "M5", "positions and attention", text, _claims(settings, found, looked, best),
        {"scale": scale, "attention": kept, "points": numbers(results, points(scale))},
        lambda figure: _draw(figure, settings, found, looked["example"]), size=(9.0, 3.2),
    )  # fmt: skip


def _claims(settings: dict, found: dict, looked: dict, best: list[int]) -> list[Claim]:
    claims = []
    for task in TASKS:
        gaps = {
            p: np.subtract(*found[task, p]).tolist() for p in ("sinusoidal", "linear")
        }  # accuracy lost at twice the length
        words, sure = compare_seeds(gaps["sinusoidal"], gaps["linear"])
        claims.append(Claim(
            f"{task}: sinusoidal positions lose more at twice the length than linear ones",
            "linear extrapolates better", f"points lost: {words}", sure,
        ))  # fmt: skip
    words, sure = compare_seeds(found["abab 2", "sinusoidal"][0], found["abab 2", "linear"][0])
    claims.append(Claim(
        "abab 2: sinusoidal positions are better at the length of training",
        "a clear advantage", words, sure,
    ))  # fmt: skip
    ps = [seed["p"] for seed in looked["seeds"]]
    masses = [seed["on_last_boundary"][head] for seed, head in zip(looked["seeds"], best)]
    usual = [seed["at_the_same_lag"][head] for seed, head in zip(looked["seeds"], best)]
    claims.append(Claim(
        f"{GRID}: heads of the last layer look at the last boundary",
        "heat maps",
        f"{show_spread(masses)} of the weight against {show_spread(usual)} at the same lag; "
        f"largest p {max(ps):.3f}",
        max(ps) < SURE,
    ))  # fmt: skip
    first, last = (
        [float(np.mean(seed[f"{which}_layer_from_flat"])) for seed in looked["seeds"]]
        for which in ("first", "last")
    )
    words, sure = compare_seeds(last, first)
    claims.append(Claim(
        f"{GRID}: the first layer is flat, flatter than the last", "heat maps",
        f"distance from equal weights, last layer against first: {words}", sure,
    ))  # fmt: skip
    return claims


def _draw(figure: Figure, settings: dict, found: dict, example: dict) -> None:
    grid, abab, heat = figure.subplots(1, 3, width_ratios=(1.4, 0.8, 1.2))
    for axis, (task, positions) in zip((grid, abab), TASKS.items()):
        for place, position in enumerate(positions):
            for shift, (values, colour) in enumerate(zip(found[task, position], ("C0", "C3"))):
                x = place + 0.2 * (shift - 0.5)
                axis.plot([x] * len(values), np.multiply(100, values), "o", color=colour,
                          alpha=0.5, markersize=4)  # fmt: skip
                axis.plot([x - 0.08, x + 0.08], [100 * np.median(values)] * 2, color=colour)
        axis.set_xticks(range(len(positions)), positions, rotation=20)
        axis.set_title(task, fontsize=9, loc="left")
    grid.set_ylabel("accuracy, %")
    for label, colour in zip(("as trained", "twice as long"), ("C0", "C3")):
        grid.plot([], [], "o", color=colour, markersize=4, label=label)
    grid.legend(fontsize=7, frameon=False)
    weights_TK, states = np.array(example["weights"]), np.array(example["states"])
    shown = np.where(np.tril(np.ones_like(weights_TK)) > 0, weights_TK, np.nan)
    image = heat.imshow(shown, cmap="viridis", vmin=0)
    for place in np.flatnonzero(np.isin(states, BOUNDARIES)):
        colour = "C1" if states[place] == BOUNDARIES[0] else "C3"
        heat.plot([place, place], [-0.5, place - 0.5], color=colour, linewidth=2, alpha=0.6)
    heat.set_title(f"last layer, head {example['head']}; lines: state 0, state 8", fontsize=8)
    heat.set_xlabel("key")
    heat.set_ylabel("query")
    figure.colorbar(image, ax=heat, fraction=0.05)


EXPERIMENT = Experiment("M5", "positions and attention", points, report)
