"""The shapes of published Transformers, and a table of what the theory says about them.

Usage: judge(KNOWN_MODELS["T5-11B"].shape); print(known_models_table())
"""

import textwrap
from typing import NamedTuple

from icl_jax.theory.network_shape import FIT_RANGE, NEAR, Shape, Verdict, judge


class KnownModel(NamedTuple):
    """A shape, and how it differs from the networks of the theory."""

    shape: Shape
    published: float  # parameters as counted by the authors
    note: str = ""


def _usual(depth: int, width: int, heads: int, vocab: int) -> Shape:
    return Shape(depth, width, heads, width // heads, 4 * width, vocab)


# Radford et al. 2019 (sizes of the weights as they were released), Brown et al. 2020, Devlin et al.
# 2019, Lan et al. 2020, Raffel et al. 2020, Rives et al. 2019, Dosovitskiy et al. 2021, Chen et al.
# 2020. Parameters that a shape comes to are tested against the published totals.
KNOWN_MODELS = {
    "GPT-2": KnownModel(_usual(12, 768, 12, 50257), 124e6),
    "GPT-2 medium": KnownModel(_usual(24, 1024, 16, 50257), 355e6),
    "GPT-2 large": KnownModel(_usual(36, 1280, 20, 50257), 774e6),
    "GPT-2 XL": KnownModel(_usual(48, 1600, 25, 50257), 1558e6),
    "GPT-3 175B": KnownModel(_usual(96, 12288, 96, 50257), 175e9),
    "BERT base": KnownModel(_usual(12, 768, 12, 30522), 110e6),
    "BERT large": KnownModel(_usual(24, 1024, 16, 30522), 340e6),
    "ALBERT-xxlarge": KnownModel(
        Shape(12, 4096, 64, 64, 16384, vocab=30000, rank=128, shared=True),
        235e6,
        "its layers share their weights, which the fit does not consider; its border is that of "
        "layers with separate weights",
    ),
    "T5-11B": KnownModel(
        Shape(24, 1024, 128, 128, 65536, vocab=32128, decoder_depth=24),
        11.3e9,
        "no verdict about its depth: the fit is for networks with one stack of layers, not two",
    ),
    "ESM-1b": KnownModel(_usual(33, 1280, 20, 33), 650e6),
    "ViT-Huge/14": KnownModel(
        _usual(32, 1280, 16, 14 * 14 * 3),
        632e6,
        "it reads patches of 14 x 14 x 3 = 588 numbers; Wies et al. 2021 count 16 x 16 x 3 = 768, "
        "which is ViT-Huge/16",
    ),
    "ViT-Huge/16": KnownModel(_usual(32, 1280, 16, 16 * 16 * 3), 632e6),
    "ImageGPT-L": KnownModel(_usual(48, 1536, 16, 512), 1.36e9),
}

COLUMNS = ("model", "layers", "width", "params", "border", "depth", "r / d_x", "H d_a / d_x")
NUMBERS = (1, 2, 3)  # right-aligned columns
NOTES = (
    "params: computed from the shape, without biases, norms and positions.",
    "border: the best layers x width for the parameters of the layers (Levine et al. 2020). "
    f"*: extrapolated; the fit covers {FIT_RANGE}.",
    "depth: the layers over those of the border; going past it is right if the rank is low.",
    # Wies et al. 2021, sections 5.1 and 5.3.
    "r / d_x: the embedding's rank over the width; below 1 it is a bottleneck. Wies et al. 2021 "
    "measured that a network at 16/680 does as well as one of full rank that is 25% smaller.",
    "H d_a / d_x: the width of attention over that of the network; above 1 it is a bottleneck. "
    "They measured that a network at 1 does as well with about 75% of the parameters as one at 4, "
    "with about 55% as one at 16.",
)


def known_models_table() -> str:
    """A line for each of the known models, and notes below."""
    rows = [COLUMNS, *(_row(name, judge(model.shape)) for name, model in KNOWN_MODELS.items())]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        aligned = [str.rjust if n in NUMBERS else str.ljust for n in range(len(row))]
        cells = [align(cell, width) for align, cell, width in zip(aligned, row, widths)]
        lines.append("  ".join(cells).rstrip())
    own = [f"{name}: {model.note}." for name, model in KNOWN_MODELS.items() if model.note]
    notes = [textwrap.fill(note, 100, subsequent_indent="  ") for note in (*NOTES, *own)]
    return "\n".join([*lines, "", *notes])


def layers_of(shape: Shape) -> str:
    """The depth; two stacks are shown as a sum."""
    return f"{shape.depth}+{shape.decoder_depth}" if shape.decoder_depth else str(shape.depth)


def _row(name: str, verdict: Verdict) -> tuple[str, ...]:
    shape, attention = verdict.shape, verdict.attention_ratio
    border = "-"
    if verdict.best_depth is not None:
        border = f"{verdict.best_depth:.0f} x {verdict.best_width:,.0f}"
    rank = f"{shape.embedding_rank}/{shape.width} low" if verdict.low_rank else "1"
    return (
        name,
        layers_of(shape),
        f"{shape.width:,}",
        _count(shape.parameters),
        border + "*" * verdict.extrapolated,
        _depth(verdict),
        rank,
        f"{attention:.3g} high" if attention > 1 else f"{attention:.3g}",
    )


def _depth(verdict: Verdict) -> str:
    ratio = verdict.depth_ratio
    if ratio is None:
        return "no verdict"
    words = {"deeper": "too shallow", "wider": "too deep"}.get(verdict.advice)
    words = words or ("deep, low rank" if ratio > NEAR else "in balance")
    return f"{ratio:.2f} {words}"


def _count(parameters: float) -> str:
    return f"{parameters / 1e9:.1f}B" if parameters >= 2e9 else f"{parameters / 1e6:.0f}M"
