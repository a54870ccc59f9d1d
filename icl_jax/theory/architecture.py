"""Recommends a depth and width for a number of parameters, or judges a network.

python -m icl_jax.theory.architecture --params=345e6 --vocab=50257 [--rank=128] [--heads=16]
    recommends a shape; --depth=24 --width=1024 instead of --params judges that one, and
    --config=configs/NAME.py [--config.FIELD=value ...] the network of a config
"""

import textwrap

from absl import flags

from icl_jax.cli import ConfigFile, Flag, command, number, suggest, whole
from icl_jax.config import ConfigError, ExperimentConfig
from icl_jax.config.tree import validate
from icl_jax.theory.known_models import known_models_table, layers_of
from icl_jax.theory.network_shape import (
    FIT_RANGE,
    INTERCEPT,
    NEAR,
    SLOPE,
    Shape,
    Verdict,
    judge,
    make_shape,
    recommend,
    shape_of,
)

LINE = 100  # characters
FAR = 2  # what is off by more than this factor is worth a line before the training: our choice
_COUNT = whole(1, 10**9)
OPTIONS = (
    Flag("params=NUMBER", "parameters to find a shape for, with --vocab those of the embedding too",
         number),
    Flag("vocab=N", "tokens of the vocabulary; of a convolution, the numbers it reads for a "
         "position", _COUNT),
    Flag("rank=N", "the rank of a factored embedding", _COUNT),
    Flag("heads=N", "heads of each layer", _COUNT),
    Flag("head_dim=N", "the size of a head; by default the heads make up the width", _COUNT),
    Flag("depth=LAYERS", "layers of a network to judge", _COUNT),
    Flag("width=WIDTH", "its width", _COUNT),
)  # fmt: skip


def report(shape: Shape, heading: str) -> str:
    """A report on a shape, with a table of the known models."""
    stored = f"{shape.parameters:,} parameters"
    if shape.embedding_parameters:
        stored += f", {shape.embedding_parameters:,} of them in the embedding"
    what = f"{layers_of(shape)} layers, {shape.width:,} wide, {_heads(shape)}: {stored}"
    lines = [heading, f"  {what}", ""]
    for name, sentence in findings(judge(shape)).items():
        lines += textwrap.wrap(f"{name:<11}{sentence}", LINE, subsequent_indent=" " * 11)
    return "\n".join([*lines, "", "Known models:", known_models_table()])


def findings(verdict: Verdict) -> dict[str, str]:
    """A sentence or two on each of border, depth, rank and attention."""
    return {
        "border": _border(verdict),
        "depth": _depth(verdict),
        "rank": _rank(verdict),
        "attention": _attention(verdict),
    }


def imbalance(shape: Shape) -> str | None:
    """What is far out of proportion, in one line; None: nothing is."""
    verdict, found = judge(shape), []
    ratio = verdict.depth_ratio
    if verdict.advice and not 1 / FAR <= ratio <= FAR:
        words = "too shallow" if verdict.advice == "deeper" else "too deep"
        best = f"{verdict.best_depth:.0f} layers of {verdict.best_width:.0f}"
        more = ", extrapolated" if verdict.extrapolated else ""
        found.append(f"{words} (the best of this size are {best}{more})")
    if verdict.rank_share is not None and verdict.rank_share < 1 / FAR:
        found.append(
            f"embedding of rank {shape.embedding_rank}, {_percent(verdict.rank_share)} of the width"
        )
    if verdict.attention_ratio > FAR:
        found.append(f"attention {verdict.attention_ratio:.3g} times as wide as the network")
    if not found:
        return None
    return (
        f"note: {shape.depth} layers of width {shape.width} are out of balance: "
        f"{'; '.join(found)}. More: {suggest('theory.architecture', config='FILE')}"
    )


def _border(verdict: Verdict) -> str:
    theory = f"The border of the theory itself, log3 d_x, is at {verdict.theory_depth:.1f} layers."
    if verdict.best_depth is None:
        return f"unknown. {theory}"
    outside = f" Extrapolated: the fit is of {FIT_RANGE}." if verdict.extrapolated else ""
    return (
        f"{verdict.best_depth:.1f} layers of width {verdict.best_width:,.0f} for the "
        f"{verdict.shape.budget:,} parameters of the layers (Levine et al. 2020: "
        f"ln d_x = {INTERCEPT} + {SLOPE} L).{outside} {theory}"
    )


def _depth(verdict: Verdict) -> str:
    ratio, layers = verdict.depth_ratio, verdict.shape.depth
    if ratio is None:
        return f"no verdict: {verdict.unknown}."
    if verdict.advice == "deeper":
        return f"too shallow: {layers} layers are {ratio:.2f} of the border's; go deeper, narrower."
    if verdict.advice == "wider":
        return f"too deep: {layers} layers are {ratio:.2f} of the border's; go wider, shallower."
    if ratio > NEAR:
        return (
            f"deep, for its rank: {layers} layers are {ratio:.2f} of the border's, which is right "
            "where the rank is below the width (Wies et al. 2021, 5.2); do not widen."
        )
    return f"in balance: {layers} layers are {ratio:.2f} of the border's."


def _rank(verdict: Verdict) -> str:
    shape, rank = verdict.shape, verdict.shape.embedding_rank
    if rank is None:
        return "unknown without a vocabulary: give --vocab."
    if not verdict.low_rank:
        return f"no bottleneck: the embedding can have the full rank {shape.width:,}."
    same_size = shape.budget / (12 * rank**2)
    return (
        f"bottleneck: the embedding has rank {rank:,} in a width of {shape.width:,}, so "
        f"{_percent(1 - verdict.rank_share)} of the width is above the rank, where it adds little "
        f"(Wies et al. 2021). Raise the rank to {shape.width:,}, or go deeper and narrower: with a "
        f"width of {rank:,} this size is {same_size:,.0f} layers."
    )


def _attention(verdict: Verdict) -> str:
    shape, ratio = verdict.shape, verdict.attention_ratio
    what = f"H d_a = {shape.heads} x {shape.head_dim} = {shape.attention_width:,}"
    if ratio <= 1:
        return f"no bottleneck: {what} is within the width of {shape.width:,}."
    return (
        f"bottleneck: {what} is {ratio:.3g} times the width of {shape.width:,}; what is above the "
        "width adds little (Wies et al. 2021). Spend these parameters on width."
    )


def _heads(shape: Shape) -> str:
    return f"{shape.heads} head{'s' * (shape.heads > 1)} of {shape.head_dim}"


def _percent(share: float) -> str:
    return f"{share:.1%}" if min(share, 1 - share) < 0.1 else f"{share:.0%}"


def asked_shape(config: ExperimentConfig | None, given: dict[str, float | None]) -> tuple:
    """(heading, shape) for the flags; `given` are all except --config, None: not given."""
    given = {name: value for name, value in given.items() if value is not None}
    ways = [
        *(["--config=FILE"] if config is not None else []),
        *(["--params=NUMBER"] if "params" in given else []),
        *(["--depth=LAYERS --width=WIDTH"] if {"depth", "width"} & given.keys() else []),
    ]
    if len(ways) != 1:
        raise ConfigError(
            "expected one of --params=NUMBER, --depth=LAYERS --width=WIDTH and --config=FILE, got "
            f"{' and '.join(ways) or 'none'}"
        )
    if config is not None:
        if given:
            raise ConfigError(f"--config determines the shape: remove --{', --'.join(given)}")
        validate(config.model)
        return "The network of the config:", shape_of(config.model)
    if "params" in given:
        words = f" with a vocabulary of {given['vocab']:,}" if "vocab" in given else ""
        return f"Recommended for {given['params']:,.0f} parameters{words}:", recommend(**given)
    if not {"depth", "width"} <= given.keys():
        raise ConfigError(f"--depth and --width go together, got --{', --'.join(given)} only")
    return "This network:", make_shape(**given)


@command(ConfigFile("a file of configs/ whose network to judge"), *OPTIONS)
def main(given: flags.FlagValues) -> None:
    """Prints what there is to say about the shape."""
    named = {flag.name: given[flag.name].value for flag in OPTIONS}
    heading, shape = asked_shape(given.config, named)
    print(report(shape, heading))


if __name__ == "__main__":
    main()
