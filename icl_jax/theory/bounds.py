"""Every bound of the papers on the separation rank, as natural logarithms.

L20 is Levine et al. 2020 (depth-to-width, appendix), W21 Wies et al. 2021 (vocabulary bottleneck),
L22 Levine et al. 2022 (in-context bias). Nothing overflows: depth 96 at width 12,288 is fine.
C(L) = (3^L - 1) / 2 is the number of sums over positions in a network of depth L; its output is a
polynomial of degree 3^L = 2 C(L) + 1. Bounds that are ours, and in no paper, are marked as such.

The bounds by degree (L20 theorems 2 and 4, W21 theorem 1) do not depend on the number of positions.
They hold for one vector per side, as in sentence association, but not for many: see
`tests/theory/test_many_positions.py`.
"""

import math

import numpy as np
from scipy.special import betaln


def log_multiset(kinds: int, size: int) -> float:
    """log of the number of multisets: (kinds + size - 1)! / (size! (kinds - 1)!)."""
    return float(-betaln(kinds, float(size + 1))) - math.log(kinds + size)


def self_attention_upper(depth: int, heads: int, head_dim: int) -> float:
    """L20 theorem 1: sep <= (H (d_a + 1))^C(L); the tighter bound for a shallow network."""
    _check(depth=depth, heads=heads, head_dim=head_dim)
    return _sums(depth) * math.log(heads * (head_dim + 1))


def degree_upper(depth: int, width: int) -> float:
    """L20 theorem 2: sep <= d_x (C + 1) multiset(d_x, 2 C) (2 C / d_x + 1)^d_x."""
    _check(depth=depth, width=width)
    sums = _sums(depth)
    return (
        math.log(width)
        + math.log(sums + 1)
        + log_multiset(width, 2 * sums)
        + width * math.log1p(2 * sums / width)
    )


def residual_self_attention_upper(depth: int, width: int, heads: int, length: int) -> float:
    """L20 theorem 3, for residual connections and N = `length` inputs.

    Uses the recursion of its proof, S_L = K (L S_{L-1})^3 with K = N d_x^4 / H, and sep <= (L + 1)
    S_L. The statement itself has L log L instead of our sum: it does not cube the number of
    branches, as lemma 2 does.
    """
    _check(depth=depth, width=width, heads=heads, length=length)
    branches = sum(3 ** (depth - n + 1) * math.log(n) for n in range(2, depth + 1))
    layer = math.log(length) + 4 * math.log(width) - math.log(heads)
    return math.log(depth + 1) + _sums(depth) * layer + branches


def residual_degree_upper(depth: int, width: int) -> float:
    """L20 theorem 4: C(L) + 1 times theorem 2, for residual connections."""
    return degree_upper(depth, width) + math.log(_sums(depth) + 1)


def self_attention_lower(depth: int, width: int, heads: int) -> float:
    """L20 theorems 1 and 2: sep >= multiset((d_x - H) / 2, 3^(L-2)), for almost all weights."""
    return log_multiset(_pairs(width, heads), _power(depth))


def embedding_rank_upper(
    depth: int, width: int, rank: int, vocab: int | None = None, position_rank: int = 1
) -> float:
    """W21 theorem 1 (eq. 9 and 11): the effect of an embedding of rank r.

    sep <= multiset(r + r_e, 3^L) multiset(4, 3^L) (3^L + 1)^(r + r_e), for a vocabulary of `vocab`
    words, or a convolution of that many raw numbers a position (M / N x d_input).
    """
    _check(depth=depth, width=width, rank=rank, vocab=width if vocab is None else vocab)
    if position_rank < 0:
        raise ValueError(f"position_rank must be 0 (no positions) or more, got {position_rank}")
    kinds, degree = min(rank, width, width if vocab is None else vocab) + position_rank, 3**depth
    return log_multiset(kinds, degree) + log_multiset(4, degree) + kinds * math.log(degree + 1)


def vocabulary_lower(depth: int, width: int, rank: int, heads: int) -> float:
    """W21 theorem 2, vocabulary of r words: multiset((r - 1 - H) / 2, 3^(L-2)), for long inputs.

    With a vocabulary of twice as many words as `convolution_lower` has multisets, that bound holds
    (its lemma 6).
    """
    return log_multiset(_pairs(min(rank, width), heads + 1), _power(depth))


def convolution_lower(depth: int, width: int, rank: int, heads: int) -> float:
    """W21 theorem 2, convolution: multiset((r - H) / 2, 3^(L-2))."""
    return log_multiset(_pairs(min(rank, width), heads), _power(depth))


def in_context_upper(depth: int, width: int, heads: int) -> float:
    """L22 corollary 1: the sequential separation rank in context, by L20's theorems 1 and 2."""
    _check_heads(width, heads)
    return min(self_attention_upper(depth, heads, width // heads), degree_upper(depth, width))


def in_context_exact_upper(depth: int, width: int) -> float:
    """Ours: seq-sep in context <= binomial(d_x + C(L), d_x).

    Networks with normal weights and heads of more than one number reach it.
    Every position except the last enters in pairs, so the degree in a is even, the degree in b is
    odd, and both add up to 3^L. For each degree k in a, the rank is at most the smaller number of
    monomials; over k = 0, 2, ..., 3^L - 1 these sum to multiset(d_x, 0) + ... + multiset(d_x, C).
    """
    _check(depth=depth, width=width)
    return log_multiset(width + 1, _sums(depth))


def in_context_lower(depth: int, width: int, heads: int) -> float:
    """L22 theorem 2: epsilon-seq-sep >= n^(1/4) / (2 sqrt(d + 1)), for some weights.

    d = (d_x - H) / 2, n = multiset(d, 3^(L-2)), epsilon <= 1 / (4 n^2) (`lower_epsilon`). Proved
    for 3^(L-2) >= d > 5; a test shows that smaller sizes also reach the norm that lemma 15 needs.
    """
    pairs = _pairs(width, heads)
    return 0.25 * log_multiset(pairs, _power(depth)) - math.log(2) - 0.5 * math.log(pairs + 1)


def lower_epsilon(depth: int, width: int, heads: int) -> float:
    """log of the largest epsilon of `in_context_lower`."""
    return -math.log(4) - 2 * log_multiset(_pairs(width, heads), _power(depth))


def sequential_upper(
    depth: int,
    width: int,
    heads: int,
    sentence_length: int,
    learning_rate: float,
    epsilon: float,
    weight_ratio: float = 1.0,
) -> float:
    """L22 theorem 1, with the constant at the end of appendix B; stops if it does not hold.

    `weight_ratio` is Lambda_max / Lambda_min of weights and gradients. The heads do not matter.
    """
    broken = sequential_conditions(depth, width, heads, sentence_length, learning_rate)
    if not 0 < epsilon < 1:
        broken.append(f"epsilon must be between 0 and 1, got {epsilon}")
    if not weight_ratio >= 1:
        broken.append(f"weight_ratio must be at least 1, got {weight_ratio}")
    if broken:
        raise ValueError("theorem 1 does not hold here: " + "; ".join(broken))
    degree, words = 3**depth, width * sentence_length
    log_share = (
        2 * words * (math.log(words) - 1 - math.log(2 * words + degree))
        - (depth + 2) * (degree + 1) * math.log(weight_ratio)
        + math.log(epsilon)
        - math.log1p(-epsilon)
    )
    return (
        math.log(2 * degree)
        - 2 * math.log(width - 1)
        + (width - 1) * (math.log(25) + 0.5 * math.log(learning_rate) - math.log(width - 1))
        + 3 * sentence_length * math.log(2)
        + 4 * width * (1 + math.log(2 * width + degree))
        - 2 * float(np.logaddexp(0.0, log_share))
        - 2 * width * math.log(width)
    )


def sequential_conditions(
    depth: int, width: int, heads: int, sentence_length: int, learning_rate: float
) -> list[str]:
    """The conditions of L22 theorem 1 that these sizes do not meet; []: it holds."""
    _check(depth=depth, sentence_length=sentence_length)
    _check_heads(width, heads)
    broken = []
    if width < 2:
        broken.append(f"the width must be at least 2, got {width}")
    if not 0 < learning_rate <= 1:
        return [*broken, f"the learning rate must be above 0, at most 1, got {learning_rate}"]
    if sentence_length >= width:
        broken.append(f"sentences must be shorter than the width {width}, got {sentence_length}")
    least = max(2 * (1 + learning_rate) * width / learning_rate, 2 * (1 + learning_rate) * width**2)
    if 3**depth <= least:
        needed = next(layers for layers in range(depth, 10**4) if 3**layers > least)
        broken.append(f"3^depth must be above {least:.4g}: a depth of {needed}, got {depth}")
    return broken


def sequential_exact_upper(depth: int, width: int) -> float:
    """Ours: seq-sep of the sequential representation <= multiset(d_x, 3^L), for any learning rate.

    It is a polynomial of degree 3^L in b, whose coefficients are functions of a.
    """
    _check(depth=depth, width=width)
    return log_multiset(width, 3**depth)


def depth_deficit(learning_rate: float) -> float:
    """L22: 0.5 log3(1 / eta), the layers by which theorem 1 and corollary 1 differ.

    This is up to constants: in `sequential_upper`, which grows with 4 L, eta costs a quarter of it.
    """
    if not 0 < learning_rate <= 1:
        raise ValueError(f"the learning rate must be above 0 and at most 1, got {learning_rate}")
    return 0.5 * math.log(1 / learning_rate, 3)


def _sums(depth: int) -> int:
    return (3**depth - 1) // 2


def _power(depth: int) -> int:
    """lambda = 3^(L-2): the first layer adds, the second multiplies, every other one cubes."""
    if depth < 2:
        raise ValueError(f"the lower bounds need a depth of at least 2, got {depth}")
    return 3 ** (depth - 2)


def _pairs(rank: int, heads: int) -> int:
    """d = (r - H) / 2, rounded down."""
    _check(rank=rank, heads=heads)
    if rank - heads < 2:
        raise ValueError(
            f"the lower bounds need a width and rank at least 2 above {heads} (the heads; one more "
            f"for a vocabulary), got {rank}"
        )
    return (rank - heads) // 2


def _check_heads(width: int, heads: int) -> None:
    _check(width=width, heads=heads)
    if width % heads:
        raise ValueError(f"heads must divide the width, got {heads} heads at width {width}")


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        if size != int(size) or size < 1:
            raise ValueError(f"{name.replace('_', ' ')} must be a whole number from 1, got {size}")
