"""Measures the in-context bias: what a network relates in one input, or by training.

python -m icl_jax.theory.in_context_bias --to=FOLDER [--width=4] [--epsilon=0.01] ...

Measures the epsilon-sequential-separation rank of small random networks against depth, in context
and after a gradient step at several learning rates, and the rank against that of the embedding.
Writes tables and a figure of each (`in_context_bias.md`, `embedding_rank.md`, `.png`) and
`measurements.json`; docs/theory.md says how to read them. Killed, rerun the command to
continue.
"""

from collections.abc import Iterator
import dataclasses
import json
import math
from pathlib import Path

from absl import flags
import jax
import numpy as np
from tqdm import tqdm

from icl_jax.cli import Flag, command, number, several, whole
from icl_jax.config import ConfigError, LinearAttentionConfig
from icl_jax.files.folder_lock import alone_in
from icl_jax.files.step_folder import StepFolder, write_json
from icl_jax.theory.epsilon_rank import LEAST_EPSILON, epsilon_rank
from icl_jax.theory.in_context_bias_report import write_report
from icl_jax.theory.representations import (
    analysed_network,
    balance,
    in_context,
    over_partition,
    sequential,
)
from icl_jax.theory.separation_rank import grid_matrix, numerical_rank

CLIP = 1.0  # theorem 1 bounds weights and gradients by the same numbers
SPARE_WORDS = 2  # words of the vocabulary that are in neither sentence


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the measurements; every field is a flag."""

    width: int = 4  # d_x
    heads: int = 2
    sentence_length: int = 3  # N; theorem 1 needs it to be below the width
    depths: tuple[int, ...] = (1, 2, 3, 4)
    learning_rates: tuple[float, ...] = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6)
    epsilon: float = 0.01  # relative error of every entry
    points: int = 128  # for a, and for b; no rank can exceed this
    seeds: int = 3
    rank_widths: tuple[int, ...] = (3, 5)  # of the networks whose embedding rank is varied
    ranks: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    rank_depth: int = 2

    def problems(self) -> list[str]:
        found = [
            f"{name} must be from {least}, got {value}"
            for name, least in (("width", 2), ("heads", 1), ("sentence_length", 2), ("seeds", 1))
            if (value := getattr(self, name)) < least
        ]
        if self.heads > 0 and self.width % self.heads:
            found.append(f"heads must divide the width {self.width}, got {self.heads}")
        if not LEAST_EPSILON <= self.epsilon < 1:
            found.append(f"epsilon must be from {LEAST_EPSILON:g} to below 1, got {self.epsilon}")
        if not all(0 < rate <= 1 for rate in self.learning_rates):
            found.append(f"learning_rates must be above 0, at most 1, got {self.learning_rates}")
        if not 1 <= min(self.depths) <= max(self.depths) <= 4:
            found.append(
                f"depths must be from 1 to 4, got {self.depths}: at 5 layers the polynomials are "
                "of degree 243, beyond the precision of float64"
            )
        if list(self.depths) != sorted(set(self.depths)):
            found.append(f"depths must rise, got {self.depths}")
        if self.points < 8:
            found.append(f"points must be from 8, got {self.points}")
        if min(self.ranks) < 1 or not 1 <= min(self.rank_widths) <= max(self.rank_widths) <= 6:
            found.append(
                f"ranks must be from 1 and rank_widths from 1 to 6, got {self.ranks} and "
                f"{self.rank_widths}"
            )
        if not 1 <= self.rank_depth <= 2:
            found.append(f"rank_depth must be 1 or 2, got {self.rank_depth}")
        return found


def measure_all(settings: Settings, folder: Path) -> list[dict]:
    """Every measurement, including those that a killed run left in the folder."""
    inputs = json.loads(json.dumps(dataclasses.asdict(settings)))
    found = []
    with alone_in(folder):
        step = StepFolder(folder / "measurements", inputs)
        wanted = list(_wanted(settings))
        for number, what in enumerate(tqdm(wanted, desc="measure", unit="network")):
            file = step.path / f"{number:04d}.json"
            if not file.exists():
                write_json(file, [what | row for row in _measure(settings, **what)])
            found += json.loads(file.read_text())
        if step.results is None:
            step.complete({"count": len(found)})
    return found


def _wanted(settings: Settings) -> Iterator[dict]:
    for seed in range(settings.seeds):
        for depth in settings.depths:
            for weights in ("positive", "normal"):
                yield {"weights": weights, "depth": depth, "seed": seed}
    for width in settings.rank_widths:
        for rank in settings.ranks:
            yield {"width": width, "rank": rank}


def _measure(settings: Settings, **what) -> list[dict]:
    with jax.enable_x64(True):
        return (
            _of_embedding(settings, **what) if "rank" in what else _of_sentences(settings, **what)
        )


def _of_sentences(settings: Settings, weights: str, depth: int, seed: int) -> list[dict]:
    """Ranks of the sentence association, in context and after a step at every learning rate."""
    length = settings.sentence_length
    first = list(range(length))
    second = [length, *range(1, length)]  # all but one word are in both sentences
    config = LinearAttentionConfig(
        vocab_size=length + 1 + SPARE_WORDS,
        context_length=2 * length,
        num_layers=depth,
        embed_dim=settings.width,
        num_heads=settings.heads,
        dtype="float64",
    )
    model = balance(analysed_network(config, seed, weights), first)
    a, b = _points(settings, weights, seed)

    def after_a_step(row, b):  # the rate is part of the row, so this compiles once for all
        return sequential(model, first, second, row[1], CLIP)(row[0], b)

    rates = settings.learning_rates
    rows = (np.tile(a, (len(rates), 1)), np.repeat(rates, len(a)))
    stacked = grid_matrix(after_a_step, rows, b)
    matrices = [grid_matrix(in_context(model, first, second), a, b)]
    matrices += np.split(stacked, len(rates))
    return [
        {"learning_rate": rate, **_ranks(matrix, settings.epsilon)}
        for rate, matrix in zip((None, *rates), matrices, strict=True)
    ]


def _ranks(matrix: np.ndarray, epsilon: float) -> dict:
    rank, up_to = numerical_rank(matrix), epsilon_rank(matrix, epsilon)
    return {**up_to._asdict(), "rank": rank.rank, "gap": _finite(rank.gap)}


def _of_embedding(settings: Settings, width: int, rank: int) -> list[dict]:
    """The rank between two input vectors after a convolution of low rank (Wies et al. 2021)."""
    config = LinearAttentionConfig(
        context_length=2,
        num_layers=settings.rank_depth,
        embed_dim=width,
        num_heads=1,
        embedding="convolution",
        input_dim=max(*settings.ranks, width),
        embedding_rank=rank,
        tie_head=False,
        dtype="float64",
    )
    model = analysed_network(config, seed=0)
    highest = math.comb(width + (3**settings.rank_depth - 1) // 2, width)
    shape = (2, highest + 32, 1, config.input_dim)  # more points than any rank
    rows, columns = np.random.default_rng(0).normal(size=shape)
    found = numerical_rank(grid_matrix(over_partition(model, [0]), rows, columns))
    return [{"measured": found.rank, "gap": _finite(found.gap)}]


def _points(settings: Settings, weights: str, seed: int) -> np.ndarray:
    """a and b: positive for positive weights, so that the output is; else as long as all ones."""
    rng = np.random.default_rng(seed)
    shape = (2, settings.points, settings.width)
    if weights == "positive":
        return rng.uniform(0.5, 1.5, shape)
    drawn = rng.normal(size=shape)
    return drawn * settings.width**0.5 / np.linalg.norm(drawn, axis=-1, keepdims=True)


def _finite(gap: float) -> float | None:
    return gap if math.isfinite(gap) else None


def _flag_of(field: dataclasses.Field) -> Flag:
    is_several = isinstance(field.default, tuple)
    kind = whole() if type(field.default[0] if is_several else field.default) is int else number
    what, name = field.name.replace("_", " "), "N,..." if is_several else "N"
    return Flag(f"{field.name}={name}", what, several(kind) if is_several else kind, field.default)


@command(
    Flag("to=FOLDER", "the folder for tables and figures", Path, required=True),
    *map(_flag_of, dataclasses.fields(Settings)),
)
def main(given: flags.FlagValues) -> None:
    """Measures, writes the report and prints its table."""
    fields = dataclasses.fields(Settings)
    settings = Settings(**{field.name: given[field.name].value for field in fields})
    if wrong := settings.problems():
        raise ConfigError("; ".join(wrong))
    found = measure_all(settings, given.to)
    print(write_report(dataclasses.asdict(settings), found, given.to))


if __name__ == "__main__":
    main()
