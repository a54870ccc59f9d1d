"""Depth, width, embedding rank and attention width of a Transformer: are they in proportion?

L20: Levine et al. 2020, how deep a network of a given width should be. W21: Wies et al. 2021, what
limits the use of its width.
Usage: judge(Shape(12, 768, heads=12, head_dim=64, mlp_dim=3072, vocab=50257)); recommend(345e6)
"""

from collections.abc import Callable
import dataclasses
import math

from icl_jax.config import ConfigError, LinearAttentionConfig, ModelConfig, head_dim, mlp_dim

# L20, measured: depth pays above ln d_x = INTERCEPT + SLOPE L, and below it no more than width.
INTERCEPT, SLOPE = 5.039, 0.0555
FIT_DEPTHS, FIT_WIDTHS = (6, 48), (44, 2832)  # of the fitted networks: L20, table 1 of D
FIT_RANGE = "depths {} to {} and widths {} to {:,}".format(*FIT_DEPTHS, *FIT_WIDTHS)
LEAST_WIDTH = math.exp(INTERCEPT)  # 154: below this width the border has no depth
NEAR = 1.1  # a depth within this factor of the border counts as on it: our choice
MOST_PARAMS = 1e18
HEAD_DIM = 64  # the default


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the theory needs to know of a network; parameters exclude biases, norms, positions."""

    depth: int  # L
    width: int  # d_x
    heads: int  # H
    head_dim: int  # d_a
    mlp_dim: int  # 0: no feed-forward layers
    # V; for a convolution, how many numbers it reads per position (W21, eq. 4). None: unknown.
    vocab: int | None = None
    rank: int | None = None  # of an embedding factored V x r, r x d_x; None: full
    head_vocab: int = 0  # tokens of an output head with its own matrix
    decoder_depth: int = 0  # layers of a second stack, which also attends to the first
    shared: bool = False  # all layers have the same weights

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """12 d_x^2 if attention is as wide as the network, and the feed-forward layer 4 times."""
        return 4 * self.width * self.attention_width + 2 * self.width * self.mlp_dim

    @property
    def budget(self) -> int:
        """Parameters of all layers, counting shared ones for each layer."""
        to_the_first = 4 * self.width * self.attention_width
        second = self.decoder_depth * (self.layer_parameters + to_the_first)
        return self.depth * self.layer_parameters + second

    @property
    def embedding_parameters(self) -> int:
        if self.vocab is None:
            return 0
        if self.rank is None:
            return self.vocab * self.width
        return self.vocab * self.rank + self.rank * self.width

    @property
    def parameters(self) -> int:
        """All stored parameters."""
        layers = self.layer_parameters if self.shared else self.budget
        return layers + self.embedding_parameters + self.head_vocab * self.width

    @property
    def embedding_rank(self) -> int | None:
        """The largest rank that the input can have (W21, eq. 3 and 4); None: unknown."""
        if self.vocab is None and self.rank is None:
            return None
        return min(limit for limit in (self.vocab, self.rank, self.width) if limit is not None)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the theory says about a shape."""

    shape: Shape
    theory_depth: float  # L20: up to log3 d_x layers, depth is worth far more than width
    best_depth: float | None  # of the border's network with this budget; None: see `unknown`
    best_width: float | None
    unknown: str  # why the fit says nothing about the depth
    extrapolated: bool  # the network or its best shape is outside the fitted range
    rank_share: float | None  # r / d_x; below 1 a bottleneck; None: unknown
    attention_ratio: float  # H d_a / d_x; above 1 a bottleneck

    @property
    def depth_ratio(self) -> float | None:
        """The depth divided by the border's; None: the fit does not apply."""
        return None if self.best_depth is None else self.shape.depth / self.best_depth

    @property
    def low_rank(self) -> bool:
        return self.rank_share is not None and self.rank_share < 1

    @property
    def advice(self) -> str:
        """`deeper`, `wider`, or neither: width above the rank would gain nothing (W21, 5.2)."""
        ratio = self.depth_ratio
        if ratio is None or 1 / NEAR <= ratio <= NEAR or (ratio > 1 and self.low_rank):
            return ""
        return "deeper" if ratio < 1 else "wider"


def judge(shape: Shape) -> Verdict:
    """Compares the depth with the border's at the same budget, and the ranks with d_x."""
    unknown = _why_unknown(shape)
    depth = None if unknown else best_depth(shape.budget)
    outside = depth is not None and not (
        all(FIT_DEPTHS[0] <= layers <= FIT_DEPTHS[1] for layers in (depth, shape.depth))
        and FIT_WIDTHS[0] <= shape.width <= FIT_WIDTHS[1]
    )
    rank = shape.embedding_rank
    return Verdict(
        shape=shape,
        theory_depth=math.log(shape.width, 3),
        best_depth=depth,
        best_width=None if depth is None else border_width(depth),
        unknown=unknown,
        extrapolated=outside,
        rank_share=None if rank is None else rank / shape.width,
        attention_ratio=shape.attention_width / shape.width,
    )


def _why_unknown(shape: Shape) -> str:
    if not shape.mlp_dim:
        return "the fit is for networks with feed-forward layers, and this one has none"
    if shape.decoder_depth:
        return "the fit is for networks with one stack of layers, and this one has two"
    if border_depth(shape.width) is None:
        return (
            f"the border begins at a width of {LEAST_WIDTH:.0f}, and {shape.width} is below it; "
            "the fit does not apply to such narrow networks"
        )
    return ""


def recommend(
    params: float,
    vocab: int | None = None,
    rank: int | None = None,
    heads: int | None = None,
    head_dim: int | None = None,
) -> Shape:
    """The shape on the border with about this many parameters, including the embedding."""
    attention = heads * head_dim if heads and head_dim else None

    def on_border(depth: float) -> Shape:  # not yet whole numbers
        width = border_width(depth)
        return Shape(depth, width, 1, attention or width, 4 * width, vocab, rank)

    _check(params, on_border(1))
    ideal = on_border(_where(lambda depth: on_border(depth).parameters, params))
    step = HEAD_DIM if attention else heads or head_dim or HEAD_DIM
    width = max(1, round(ideal.width / step)) * step
    layer = make_shape(1, width, vocab, rank, heads, head_dim)
    depth = max(1, round((params - layer.embedding_parameters) / layer.layer_parameters))
    shape = dataclasses.replace(layer, depth=depth)
    if not params / 2 <= shape.parameters <= 2 * params:
        raise ConfigError(
            f"no network of about {params:,.0f} parameters has such heads: the nearest width, "
            f"{width:,}, makes {shape.parameters:,}; give fewer or smaller heads"
        )
    return shape


def _check(params: float, least: Shape) -> None:
    if not 0 < params < MOST_PARAMS:
        raise ConfigError(f"params must be above 0 and below {MOST_PARAMS:g}, got {params:g}")
    if params >= least.parameters:
        return
    words = "" if least.vocab is None else f" with a vocabulary of {least.vocab:,}"
    fix = "" if least.vocab is None else ", a smaller vocabulary or a lower embedding rank"
    raise ConfigError(
        f"params {params:,.0f} are too few{words}: the border's smallest network, one layer "
        f"{least.width:.0f} wide, has {least.parameters:,.0f}; give more{fix}"
    )


def make_shape(
    depth: int,
    width: int,
    vocab: int | None = None,
    rank: int | None = None,
    heads: int | None = None,
    head_dim: int | None = None,
) -> Shape:
    """The shape of a usual network; by default, attention is as wide as the network."""
    if heads is None and head_dim is None:
        head_dim = width if width % HEAD_DIM else HEAD_DIM
    given, other = ("heads", "head_dim") if heads else ("head_dim", "heads")
    if not (heads and head_dim) and width % (heads or head_dim):
        raise ConfigError(
            f"width {width} is not a multiple of {given} {heads or head_dim}; "
            f"give {other} too, or change one of the two"
        )
    heads, head_dim = heads or width // head_dim, head_dim or width // heads
    return Shape(depth, width, heads, head_dim, 4 * width, vocab, rank)


def shape_of(config: ModelConfig) -> Shape:
    """The shape of one of our networks."""
    analysed = isinstance(config, LinearAttentionConfig)
    convolution = analysed and config.embedding == "convolution"
    return Shape(
        depth=config.num_layers,
        width=config.embed_dim,
        heads=config.num_heads,
        head_dim=head_dim(config),
        mlp_dim=0 if analysed else mlp_dim(config),
        vocab=config.kernel_size * config.input_dim if convolution else config.vocab_size,
        rank=config.embedding_rank,
        head_vocab=0 if config.tie_head else config.vocab_size,
    )


def border_width(depth: float) -> float:
    """The width above which a network of this depth would be better deeper."""
    return math.exp(INTERCEPT + SLOPE * depth)


def border_depth(width: float) -> float | None:
    """The depth at which the border has this width; None: it is too small."""
    depth = (math.log(width) - INTERCEPT) / SLOPE
    return depth if depth > 0 else None


def best_depth(budget: float) -> float:
    """Where the border has networks of 12 L d_x^2 = `budget` parameters."""
    return _where(lambda depth: 12 * depth * border_width(depth) * border_width(depth), budget)


def _where(rising: Callable[[float], float], value: float) -> float:
    """The depth at which a rising function has this value."""
    low, high = 0.0, 1.0
    while rising(high) < value:
        high *= 2
    for _ in range(64):  # to the precision of a float
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return high
