"""What one head looks at (R8): the flip-flop automaton, sharper attention, and its drift.

Letters are: do nothing, write 0, write 1; after each the network says what was written last. Liu
2024, 3.5.4.3, 3.5.6.5 and Figures 3.26, 3.33, 3.34. Shape suffixes: B rows, T letters and queries,
S keys, G groups, W windows.
"""

import dataclasses
from pathlib import Path
import time

from flax import nnx
import jax
import jax.numpy as jnp
from matplotlib.figure import Figure
import numpy as np
from scipy import stats

from icl_jax.config import GPTConfig, OptimizerConfig
from icl_jax.evaluation.compare.table import show_p
from icl_jax.sandboxes.experiment import Experiment, Results
from icl_jax.sandboxes.fit import UNFINISHED, Draw, Loss, Recipe, fit, mean_loss
from icl_jax.sandboxes.flip_flop.experiments.settings import trained_point
from icl_jax.sandboxes.flip_flop.trained import TEST_SEED, attention_entropy
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import SURE, Claim, Finding, compare_seeds, make_table, show_spread
from icl_jax.training.objectives import Task

TITLE = "what one head looks at"
NOOP, ZERO, ONE = range(3)
ROWS = 128  # of new letters whose attention is read
BEFORE = 32  # letters between the two writes of the long row
WINDOW = 32  # positions of the long row that are drawn as one
LOST = 0.5  # a head that looks at the last write less often than this has found something else
SIZE = {
    "mini": {
        "length": 100, "far": 800, "width": 64, "steps": 600, "batch": 32, "learning_rate": 2e-3,
        "seeds": 5,
    },
    "paper": {
        "length": 500, "far": 4000, "width": 512, "steps": 10_000, "batch": 16,
        "learning_rate": 3e-4, "seeds": 25,
    },
}  # fmt: skip
STRENGTH = 0.01
NOOPS = (0.5, 0.9)


@dataclasses.dataclass(frozen=True)
class Simulation:
    """One layer with one head that simulates the automaton, and how it is trained."""

    length: int
    far: int  # letters that do nothing at the end of the long row
    width: int
    noop: float  # the share of letters that do nothing; the others write either bit
    strength: float  # of the entropy in the loss
    steps: int
    batch: int
    learning_rate: float
    seeds: int

    def model(self) -> GPTConfig:
        """The network's config: positions are linear, so that any length can be read."""
        return GPTConfig(
            vocab_size=3, context_length=self.length, num_layers=1, num_heads=1, tie_head=False,
            embed_dim=self.width, position="linear", init_stddev=(3 * self.width) ** -0.5,
            activation="gelu", attention="plain",
        )  # fmt: skip

    def recipe(self) -> Recipe:
        """As for the languages."""
        optimizer = OptimizerConfig(
            learning_rate=self.learning_rate, b2=0.999, clip_norm=0.0, warmup=50, schedule="linear"
        )
        return Recipe(self.steps, optimizer)

    def flops(self) -> float:
        """The operations of all seeds' matrix products in training."""
        weights = 12 * self.width**2 + self.length * self.width
        return 6.0 * weights * self.length * self.batch * self.steps * self.seeds


def points(scale: str) -> list[Point]:
    """With and without entropy in the loss, where half or most of the letters do nothing."""
    return [
        trained_point(
            _name(strength, noop), simulate, Simulation(**SIZE[scale], noop=noop, strength=strength)
        )
        for noop in NOOPS
        for strength in (0.0, STRENGTH)
    ]


def _name(strength: float, noop: float) -> str:
    return f"one head, {f'entropy {strength:g}' if strength else 'plain'}, {noop:g} do nothing"


# Training.


def simulate(folder: Path, **fields) -> dict:
    """Trains the seeds and reads their attention."""
    simulation = Simulation(**fields)
    started = time.perf_counter()
    fitted = fit(
        simulation.model(), make_draw(simulation), simulation.recipe(), range(simulation.seeds),
        folder, make_loss(simulation),
    )  # fmt: skip
    seconds = time.perf_counter() - started
    letters_BT = new_letters(jax.random.key(TEST_SEED), ROWS, simulation.length, simulation.noop)
    usual = fitted.of_each_seed(lambda model: look(model, letters_BT))()
    long_1T = long_row(simulation.far)
    far = fitted.of_each_seed(lambda model: look_far(model, long_1T))()
    (folder / UNFINISHED).unlink(missing_ok=True)
    reads_G = usual["queries"][0]
    return {
        "seconds": round(seconds, 1),
        "losses": np.round(fitted.losses, 5).tolist(),
        "accuracy": usual["accuracy"].tolist(),
        "on_last_write": (usual["on_last_write"].sum(axis=1) / reads_G.sum()).tolist(),
        "by_distance": {
            "up_to": np.array(_groups(simulation.length))[reads_G > 0].tolist(),
            "queries": reads_G[reads_G > 0].tolist(),
            "on_last_write": usual["on_last_write"][:, reads_G > 0].tolist(),
        },
        "far": {
            "on_last_write": far["on_last_write"].tolist(),
            "right": far["right"].tolist(),
            "weights": np.round(far["weights"], 3).tolist(),
        },
    }


def new_letters(key: jax.Array, rows: int, length: int, noop: float) -> jax.Array:
    """Letters, int32 (rows, length), of which the first writes."""
    noop_key, bit_key = jax.random.split(key)
    bits_BT = ZERO + jax.random.bernoulli(bit_key, shape=(rows, length)).astype(jnp.int32)
    nothing_BT = jax.random.bernoulli(noop_key, noop, (rows, length)).at[:, 0].set(False)
    return jnp.where(nothing_BT, NOOP, bits_BT)


def last_write(letters_BT: jax.Array) -> jax.Array:
    """The place of the last write, up to each letter."""
    place_T = jnp.arange(letters_BT.shape[1])
    return jax.lax.cummax(jnp.where(letters_BT == NOOP, 0, place_T), axis=1)


def written(letters_BT: jax.Array) -> jax.Array:
    """ZERO or ONE: what the automaton holds after each letter."""
    return jnp.take_along_axis(letters_BT, last_write(letters_BT), axis=1)


def make_draw(simulation: Simulation) -> Draw:
    """New letters, each of which predicts what is held after it."""

    def draw(key: jax.Array) -> Task:
        letters_BT = new_letters(key, simulation.batch, simulation.length, simulation.noop)
        weights_BT = jnp.ones(letters_BT.shape, jnp.float32)
        return Task(letters_BT, None, written(letters_BT), weights_BT)

    return draw


def make_loss(simulation: Simulation) -> Loss:
    """The cross-entropy, and the entropy of the attention."""

    def loss(model: nnx.Module, task: Task, _key: None, _n: jax.Array) -> jax.Array:
        if not simulation.strength:
            return mean_loss(model(task.inputs_BT), task)
        logits_BTV, entropies = model(task.inputs_BT, read_attention=attention_entropy)
        return mean_loss(logits_BTV, task) + simulation.strength * jnp.mean(entropies)

    return loss


# What the head looks at.


def look(model: nnx.Module, letters_BT: jax.Array) -> dict:
    """Accuracy, and where letters that do nothing look most: at the last write, by distance."""
    weights_BTS = model.attention_weights(letters_BT)[0, :, 0]
    return count(weights_BTS, letters_BT) | {"accuracy": jnp.mean(_right(model, letters_BT))}


def count(weights_BTS: jax.Array, letters_BT: jax.Array) -> dict:
    """Queries of letters that do nothing, and those whose largest weight is on the last write."""
    last_BT = last_write(letters_BT)
    looks_BT = jnp.argmax(weights_BTS, axis=-1) == last_BT
    nothing_BT = letters_BT == NOOP
    ends_G = jnp.array(_groups(letters_BT.shape[1]))
    group_BT = jnp.searchsorted(ends_G, jnp.arange(letters_BT.shape[1]) - last_BT)
    zeros_G = jnp.zeros(len(ends_G), jnp.int32)
    return {
        "queries": zeros_G.at[group_BT].add(nothing_BT.astype(jnp.int32)),
        "on_last_write": zeros_G.at[group_BT].add((nothing_BT & looks_BT).astype(jnp.int32)),
    }


def _groups(length: int) -> tuple[int, ...]:
    """The upper ends of distances that are counted together."""
    return tuple(1 << n for n in range((length - 1).bit_length() + 1))


def _right(model: nnx.Module, letters_BT: jax.Array) -> jax.Array:
    return (jnp.argmax(model(letters_BT), axis=-1) == written(letters_BT)).astype(jnp.float32)


def long_row(far: int) -> jax.Array:
    """A write of 0, some letters that do nothing, a write of 1, and `far` that do nothing."""
    return jnp.array([[ZERO, *[NOOP] * BEFORE, ONE, *[NOOP] * far]], jnp.int32)


def look_far(model: nnx.Module, letters_1T: jax.Array) -> dict:
    """After the last write of the long row: what is looked at and said, in windows; the weights.

    Of the weights, the most of each window of queries and keys.
    """
    weights_TS = model.attention_weights(letters_1T)[0, 0, 0]
    start = BEFORE + 2
    windows = (letters_1T.shape[1] - start) // WINDOW
    looks_T = (jnp.argmax(weights_TS, axis=-1) == BEFORE + 1).astype(jnp.float32)
    in_windows = lambda each_T: each_T[start:][: windows * WINDOW].reshape(windows, WINDOW)  # noqa: E731
    whole = letters_1T.shape[1] // WINDOW
    cut_TS = weights_TS[: whole * WINDOW, : whole * WINDOW]
    return {
        "on_last_write": jnp.mean(in_windows(looks_T), axis=1),
        "right": jnp.mean(in_windows(_right(model, letters_1T)[0]), axis=1),
        "weights": jnp.max(cut_TS.reshape(whole, WINDOW, whole, WINDOW), axis=(1, 3)),
    }


# The report.


def report(scale: str, results: Results) -> Finding:
    """Where the head looks in distribution, and far beyond the training's length."""
    size = SIZE[scale]
    rows = [[
        "arm", "accuracy, %", "largest weight on the last write, %",
        f"seeds below {LOST:.0%}", "the same at the start of the long row", "at its end",
        "right at its end, %",
    ]]  # fmt: skip
    for name, result in results.items():
        far = {what: np.array(result["far"][what]) for what in ("on_last_write", "right")}
        rows.append([
            name, show_spread(result["accuracy"]), show_spread(result["on_last_write"]),
            f"{_lost(result)} of {len(result['accuracy'])}",
            show_spread(_start(far["on_last_write"], scale)),
            show_spread(_end(far["on_last_write"])), show_spread(_end(far["right"])),
        ])  # fmt: skip
    text = (
        f"One layer, one head, width {size['width']}, linear positions, trained on rows of "
        f"{size['length']} letters. Of {ROWS} new rows: how often a letter that does nothing has "
        "its largest weight on the last write; median over seeds (least to most). The long row: "
        f"write 0, {BEFORE} times nothing, write 1, {size['far']} times nothing; its start is the "
        f"length of training, its end the last quarter.\n\n{make_table(rows)}"
    )
    kept = {
        name: {key: value for key, value in result.items() if key != "far"}
        | {"far": {what: result["far"][what] for what in ("on_last_write", "right")}}
        for name, result in results.items()
    }
    return Finding(
        "attention", TITLE, text, _claims(scale, results), {"scale": scale, "points": kept},
        lambda figure: _draw(figure, results), size=(9.5, 3.2),
    )  # fmt: skip


def _start(values_SW: np.ndarray, scale: str) -> np.ndarray:
    """Of the windows that are within the length of training."""
    return values_SW[:, : max(1, (SIZE[scale]["length"] - BEFORE - 2) // WINDOW)].mean(axis=1)


def _end(values_SW: np.ndarray) -> np.ndarray:
    return values_SW[:, -max(1, values_SW.shape[1] // 4) :].mean(axis=1)


def _lost(result: dict) -> int:
    return sum(share < LOST for share in result["on_last_write"])


def _claims(scale: str, results: Results) -> list[Claim]:
    claims = []
    for noop in NOOPS:
        plain, sharp = (results[_name(strength, noop)] for strength in (0.0, STRENGTH))
        words, sure = compare_seeds(sharp["on_last_write"], plain["on_last_write"])
        claims.append(Claim(
            f"{noop:g} do nothing: with entropy in the loss the head looks at the last write more "
            "often", "clear attention at the last write (Figure 3.34)", words, sure,
        ))  # fmt: skip
    for noop in NOOPS:
        far = results[_name(STRENGTH, noop)]["far"]
        looks_SW, right_SW = np.array(far["on_last_write"]), np.array(far["right"])
        words, sure = compare_seeds(_start(looks_SW, scale), _end(looks_SW))
        claims.append(Claim(
            f"{noop:g} do nothing, entropy: attention leaves the last write as positions grow",
            "it drifts to other letters (Figure 3.33)", words, sure,
        ))  # fmt: skip
        wrong = int((_end(right_SW) < 1).sum())
        claims.append(Claim(
            f"{noop:g} do nothing, entropy: errors persist at the end of the long row",
            "sporadic errors persist (R8)", f"in {wrong} of {len(right_SW)} seeds", wrong > 0,
        ))  # fmt: skip
    often, rarely = (results[_name(STRENGTH, noop)] for noop in NOOPS)
    lost = [_lost(often), _lost(rarely)]
    seeds = [len(each["accuracy"]) for each in (often, rarely)]
    table = [[n, all_ - n] for n, all_ in zip(lost, seeds)]
    p = stats.fisher_exact(table, alternative="greater").pvalue
    claims.append(Claim(
        "sharpened heads get stuck elsewhere more often where half of the letters write than where "
        "a tenth does", "much more likely at 0.5 than at 0.9",
        f"{lost[0]} of {seeds[0]} against {lost[1]} of {seeds[1]} seeds; p {show_p(p)}",
        True if p < SURE else (False if lost[0] < lost[1] else None),
    ))  # fmt: skip
    return claims


def _draw(figure: Figure, results: Results) -> None:
    near, far, heat = figure.subplots(1, 3, width_ratios=(1.0, 1.0, 1.1))
    for n, (name, result) in enumerate(results.items()):
        found = result["by_distance"]
        share_SG = np.array(found["on_last_write"]) / np.array(found["queries"])
        windows_SW = np.array(result["far"]["on_last_write"])
        x_W = BEFORE + 2 + WINDOW * (np.arange(windows_SW.shape[1]) + 0.5)
        for axis, x, values in ((near, found["up_to"], share_SG), (far, x_W, windows_SW)):
            axis.plot(x, 100 * values.T, color=f"C{n}", alpha=0.25, linewidth=0.8)
            axis.plot(x, 100 * np.median(values, axis=0), color=f"C{n}", linewidth=1.6, label=name)
    near.set_xscale("log", base=2)
    near.set_xlabel("letters since the last write, up to")
    near.set_ylabel("largest weight on it, %")
    near.set_title("as trained: seeds, median", fontsize=9, loc="left")
    near.legend(fontsize=6, frameon=False)
    far.set_xlabel("position in the long row")
    far.set_title("far beyond it", fontsize=9, loc="left")
    name, seed = worst(results)
    image = heat.imshow(np.array(results[name]["far"]["weights"][seed]), cmap="viridis", vmin=0)
    heat.set_title(f"long row, {name.removeprefix('one head, ')}, seed {seed}", fontsize=7)
    heat.set_xlabel(f"key / {WINDOW}")
    heat.set_ylabel(f"query / {WINDOW}")
    figure.colorbar(image, ax=heat, fraction=0.05)


def worst(results: Results) -> tuple[str, int]:
    """The sharpened arm and seed whose head looks at the last write least at the long row's end."""
    ends = {
        (name, seed): value
        for name, result in results.items()
        if "entropy" in name
        for seed, value in enumerate(_end(np.array(result["far"]["on_last_write"])))
    }
    return min(ends, key=ends.__getitem__)


EXPERIMENT = Experiment("attention", TITLE, points, report)
