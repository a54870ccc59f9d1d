"""Two networks pruned from one: alike in a matrix, unlike in what they compute. Liu 2024, 3.6.2.2.

Theorem 3 and corollary 3 in miniature: a random network of four layers is pruned (each weight is
kept or set to 0) to a target of one layer. Two layers carry the target; the other two carry the
identity whatever the target is, so that any matrix of theirs is pruned alike for all targets.

Shown: how far both are from their targets at most (a bound for all inputs, from the errors of their
parts), at least (found by a search), and how far from each other. Not shown: targets of several
layers, and the probability: that sizes of the theorem's order do for almost every random network.

Shape suffixes: B rows, N positions, E embed, A attention, F hidden, I inputs, O outputs, H units
between a pair of matrices.
"""

from collections.abc import Callable, Sequence
import itertools
from typing import NamedTuple

import numpy as np

from icl_jax.config import ConfigError

FLOOR = 0.1  # C of the layer norm: a smaller norm counts as this
DIM = 4  # of targets and their attention
LEAST_UNITS = 8
LAYERS = 4  # 4 L for targets of L = 1 layer
MOST_CHOICES = 28  # products that a sum is chosen from: 2^14 sums of each half
MATRICES = ("query", "key", "value", "mlp 1", "mlp 2", "mlp 3", "mlp 4")
# The inputs for which a pruned pair of matrices must be right: any, those from 0 on (after a ReLU),
# or any without a ReLU between the two. By the sign of the first weight of the units it needs.
ANY, POSITIVE, LINEAR = (1, -1), (1,), (0,)


class Layer(NamedTuple):
    """Equation 3.23: attention, layer norm with a branch, residual, then a ReLU network.

    One head and no biases; weights multiply columns, as in the thesis. Masks have this form too.
    """

    query: np.ndarray  # (A, E)
    key: np.ndarray  # (A, E)
    value: np.ndarray  # (E, E)
    branch: np.ndarray  # b: the share of the normalised output, 1 - b is left as it is
    mlp: tuple[np.ndarray, ...]


def demonstrate(
    seed: int = 0, layer: int = 3, matrix: str = "mlp 4", units: int = 128, positions: int = 8
) -> dict:
    """Two targets of dimension 4 out of one random network, pruned alike in the chosen matrix.

    Gaps are the largest ||f(X) - g(X)|| / ||X|| found for ||X|| <= 1, bounds are for all such X,
    and norms those of the largest column. Plain JSON values.
    """
    if not 1 <= layer <= LAYERS or matrix not in MATRICES:
        raise ConfigError(
            f"expected a layer from 1 to {LAYERS} and one of {', '.join(MATRICES)}; got layer "
            f"{layer} and '{matrix}'"
        )
    if units < LEAST_UNITS:
        raise ConfigError(f"expected at least {LEAST_UNITS} units for each input, got {units}")
    first = 0 if layer > 2 else 2  # of the two layers that carry the target: not the chosen one
    network = random_network(DIM, units, seed)
    targets = [random_target(DIM, [seed, number]) for number in (1, 2)]
    masks, bounds, pruned = zip(
        *(_prune_one(network, target, first, units) for target in targets), strict=True
    )
    wanted = [as_function([target], DIM) for target in targets]
    search = {"dim": DIM, "positions": positions, "seed": seed}
    gaps = [find_largest_gap(*pair, **search)[0] for pair in zip(pruned, wanted, strict=True)]
    disagreement, x_BND = find_largest_gap(*pruned, **search)
    table = compare_masks(*masks)
    chosen = next(row for row in table if (row["layer"], row["matrix"]) == (layer, matrix))
    kept = [np.argwhere(matrices_of(mask[layer - 1])[matrix]).tolist() for mask in masks]
    return {
        "seed": seed, "units": units, "positions": positions,
        "weights": sum(row["weights"] for row in table),
        "carried_by": [first + 1, first + 2],
        "gaps": gaps, "bounds": list(bounds), "disagreement": disagreement,
        "component": chosen | {"places": kept},
        "matrices": table,
        "example": {
            "input": x_BND[0].tolist(),
            "pruned": [function(x_BND)[0].tolist() for function in pruned],
            "targets": [function(x_BND)[0].tolist() for function in wanted],
        },
    }  # fmt: skip


def _prune_one(network, target: Layer, first: int, units: int):
    masks = prune(network, target, first, units)
    layers = apply_masks(network, masks)  # hundreds of megabytes, of which little is left
    return masks, bound_gap(layers, target, first), as_function(layers, DIM)


def compare_masks(one: Sequence[Layer], other: Sequence[Layer]) -> list[dict]:
    """Each matrix: what both networks keep of it, and whether that is the same."""
    return [
        {
            "layer": number, "matrix": name, "shape": list(a.shape), "weights": a.size,
            "kept": [int(a.sum()), int(b.sum())], "same": bool(np.array_equal(a, b)),
        }
        for number, pair in enumerate(zip(one, other, strict=True), 1)
        for name, a, b in zip(MATRICES, *(matrices_of(mask).values() for mask in pair), strict=True)
    ]  # fmt: skip


def matrices_of(layer: Layer) -> dict[str, np.ndarray]:
    """The matrices of a layer by their names."""
    return dict(zip(MATRICES, (*layer[:3], *layer.mlp), strict=True))


def width_curve(
    units: Sequence[int] = (16, 24, 32, 48, 64, 96, 128), networks: int = 5
) -> list[dict]:
    """How fast lemma 25 gets precise with width: a pair of matrices with a ReLU between.

    The error is a bound for all inputs of norm 1: the largest spectral norm over all signs of them.
    """
    points = []
    for number, seed in itertools.product(units, range(networks)):
        rng = np.random.default_rng(seed)
        target = rng.normal(size=(DIM, DIM))
        target /= np.linalg.norm(target, 2)
        first = rng.uniform(-1, 1, size=(DIM * number, DIM))
        second = rng.uniform(-1, 1, size=(DIM, DIM * number))
        kept = prune_pair(first, second, target, range(DIM), range(DIM), number, ANY)
        error = bound_error(first * kept[0], second * kept[1], target)
        points.append({"units": number, "seed": seed, "error": error})
    return points


def bound_error(first_HI: np.ndarray, second_OH: np.ndarray, target_OI: np.ndarray) -> float:
    """The largest ||second relu(first x) - target x|| / ||x||, if units read one input each."""
    above = second_OH @ np.maximum(first_HI, 0) - target_OI  # for inputs above 0, and below it
    below = second_OH @ np.minimum(first_HI, 0) - target_OI
    signs = itertools.product((True, False), repeat=target_OI.shape[1])
    return max(float(np.linalg.norm(np.where(is_above, above, below), 2)) for is_above in signs)


def run(layers: Sequence[Layer], x_BNE: np.ndarray) -> np.ndarray:
    """What the layers make of rows of inputs."""
    for layer in layers:
        x_BNE = normalise(attend(layer, x_BNE), layer.branch) + x_BNE
        for number, matrix in enumerate(layer.mlp):
            x_BNE = (np.maximum(x_BNE, 0) if number else x_BNE) @ matrix.T
    return x_BNE


def attend(layer: Layer, x_BNE: np.ndarray) -> np.ndarray:
    """Causal attention; scores are not divided by anything."""
    scores_BNN = (x_BNE @ layer.query.T) @ (x_BNE @ layer.key.T).swapaxes(1, 2)
    weights_BNN = np.tril(np.exp(scores_BNN - scores_BNN.max(axis=2, keepdims=True)))
    weights_BNN /= weights_BNN.sum(axis=2, keepdims=True)
    return weights_BNN @ x_BNE @ layer.value.T


def normalise(x_BNE: np.ndarray, branch: float) -> np.ndarray:
    """The layer norm of the thesis, and beside it the branch that goes around it."""
    centred_BNE = x_BNE - x_BNE.mean(axis=-1, keepdims=True)
    norm_BN1 = np.linalg.norm(centred_BNE, axis=-1, keepdims=True)
    return branch * centred_BNE / np.maximum(norm_BN1, FLOOR) + (1 - branch) * x_BNE


def random_target(dim: int, seed: int | Sequence[int]) -> Layer:
    """A layer whose matrices are Gaussian, of spectral norm 1, with 2 dim hidden units."""
    rng = np.random.default_rng(seed)
    shapes = [(dim, dim)] * 3 + [(2 * dim, dim), (dim, 2 * dim)]
    drawn = [rng.normal(size=shape) for shape in shapes]
    query, key, value, *mlp = [matrix / np.linalg.norm(matrix, 2) for matrix in drawn]
    return Layer(query, key, value, np.ones(()), tuple(mlp))


def random_network(dim: int, units: int, seed: int) -> list[Layer]:
    """Layers of U(-1, 1) with room for targets of this dimension; branches are 1."""
    rng = np.random.default_rng(seed)
    embed, attention, hidden = 12 * dim, dim * (units // 2), 4 * dim * units
    shapes = [(attention, embed)] * 2 + [(embed, embed), (hidden, embed)]
    shapes += [(hidden, hidden)] * 2 + [(embed, hidden)]
    made = []
    for _ in range(LAYERS):
        query, key, value, *mlp = [rng.uniform(-1, 1, size=shape) for shape in shapes]
        made.append(Layer(query, key, value, np.ones(()), tuple(mlp)))
    return made


def choose(products_H: np.ndarray, total: float) -> np.ndarray:
    """The places whose sum is nearest to a total: all sums of one half meet those of the other.

    Only the largest products are tried; the others reach little further and are not needed.
    """
    places = np.argsort(-np.abs(products_H), kind="stable")[:MOST_CHOICES]
    half = len(places) // 2
    left, right = _all_sums(products_H[places[:half]]), _all_sums(products_H[places[half:]])
    order = np.argsort(right, kind="stable")
    above = np.searchsorted(right[order], total - left).clip(1, len(right) - 1)
    candidates = np.stack([order[above - 1], order[above]])
    miss = np.abs(left + right[candidates] - total)
    side, first = np.unravel_index(miss.argmin(), miss.shape)
    bits = int(first) | int(candidates[side, first]) << half
    return places[(bits >> np.arange(len(places)) & 1).astype(bool)]


def _all_sums(values: np.ndarray) -> np.ndarray:
    """The sum of every subset; the bits of its place say which."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def prune_pair(
    first_HI: np.ndarray,
    second_OH: np.ndarray,
    target_OI: np.ndarray,
    inputs: Sequence[int],
    outputs: Sequence[int],
    units: int,
    signs: tuple[int, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Masks of two matrices whose product then is the target, between these places (lemma 25).

    Each input has a block of units that read it alone; a subset sum of each output chooses among
    them. With a ReLU, units of either sign make one half of the line each.
    """
    keep_first, keep_second = np.zeros(first_HI.shape, bool), np.zeros(second_OH.shape, bool)
    for column, i in enumerate(inputs):
        block = np.arange(column * units, (column + 1) * units)
        for sign in signs:
            group = block[np.sign(first_HI[block, i]) == sign] if sign else block
            keep_first[group, i] = True
            for row, o in enumerate(outputs):
                if total := target_OI[row, column]:  # the empty sum is 0 exactly
                    chosen = choose(second_OH[o, group] * first_HI[group, i], total)
                    keep_second[o, group[chosen]] = True
    return keep_first & keep_second.any(axis=0)[:, None], keep_second


def prune_mlp(
    mlp: Sequence[np.ndarray],
    up_FI: np.ndarray,
    down_OF: np.ndarray,
    inputs: Sequence[int],
    outputs: Sequence[int],
    units: int,
) -> tuple[np.ndarray, ...]:
    """Masks of four matrices, with ReLU between, that then compute down relu(up x) (lemma 29)."""
    hidden = range(len(up_FI))
    return (
        *prune_pair(*mlp[:2], up_FI, inputs, hidden, units, ANY),
        *prune_pair(*mlp[2:], down_OF, hidden, outputs, units, POSITIVE),
    )


def prune_to_linear(
    layer: Layer, target_OI: np.ndarray, outputs: Sequence[int], units: int
) -> Layer:
    """Masks that leave a linear map of the first inputs (lemmas 27 and 43).

    No attention, and W x = relu(W x) - relu(-W x).
    """
    attention = (np.zeros(matrix.shape, bool) for matrix in layer[:4])
    inputs = range(target_OI.shape[1])
    return Layer(*attention, prune_mlp(layer.mlp, *_as_mlp(target_OI), inputs, outputs, units))


def _as_mlp(target_OI: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    identity = np.eye(len(target_OI))
    return np.concatenate([target_OI, -target_OI]), np.concatenate([identity, -identity], axis=1)


def prune_to_layer(before: Layer, layer: Layer, target: Layer, units: int) -> tuple[Layer, Layer]:
    """Masks of two layers that then compute one (lemma 37).

    A pruned value matrix cannot be any matrix: only a diagonal is left of it (lemma 32), and the
    layer before makes, beside its input, what the diagonal turns into the values.
    """
    dim = len(target.value)
    rows, columns = find_diagonal(layer.value, dim)
    centred = target.value - target.value.mean(axis=0)  # the norms of both sizes are then the same
    wanted = np.concatenate([np.eye(dim), centred / layer.value[rows, columns][:, None]])
    before_mask = prune_to_linear(before, wanted, [*rows, *columns], units)
    value = np.zeros(layer.value.shape, bool)
    value[rows, columns] = True
    scores = target.key.T @ target.query  # lemma 30
    query, key_of_output = prune_pair(
        layer.query, layer.key.T, scores, rows, rows, units // 2, LINEAR
    )
    mlp = prune_mlp(layer.mlp, *target.mlp, rows, range(dim), units)
    return before_mask, Layer(query, key_of_output.T, value, np.ones((), bool), mlp)


def find_diagonal(value_EE: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of entries above 1/2, no place in both, one in each of dim blocks."""
    half = len(value_EE) // 2
    size = half // dim
    rows, columns = [], []
    for start in range(0, dim * size, size):
        block = value_EE[start : start + size, half + start : half + start + size]
        row, column = np.unravel_index(block.argmax(), block.shape)
        if block[row, column] <= 0.5:
            raise ConfigError(
                f"{block.size} values of the random network are all at most 1/2, the largest is "
                f"{block[row, column]:.2f}; take another seed"
            )
        rows.append(start + row)
        columns.append(half + start + column)
    return np.array(rows), np.array(columns)


def prune(network: Sequence[Layer], target: Layer, first: int, units: int) -> list[Layer]:
    """Masks of all layers: the target in layers first and first + 1, the identity in the others."""
    dim = len(target.value)
    pair = prune_to_layer(network[first], network[first + 1], target, units)
    return [
        pair[number - first] if number in (first, first + 1)
        else prune_to_linear(layer, np.eye(dim), range(dim), units)
        for number, layer in enumerate(network)
    ]  # fmt: skip


def apply_masks(network: Sequence[Layer], masks: Sequence[Layer]) -> list[Layer]:
    """The network with every weight kept or 0."""
    return [
        Layer(
            *(part * kept for part, kept in zip(layer[:4], mask[:4], strict=True)),
            tuple(matrix * kept for matrix, kept in zip(layer.mlp, mask.mlp, strict=True)),
        )
        for layer, mask in zip(network, masks, strict=True)
    ]


def drop_idle(layer: Layer) -> Layer:
    """The same function without the hidden units that nothing reads: much faster to run."""
    mlp = list(layer.mlp)
    for number in reversed(range(1, len(mlp))):
        read = mlp[number].any(axis=0)
        mlp[number - 1], mlp[number] = mlp[number - 1][read], mlp[number][:, read]
    return layer._replace(mlp=tuple(mlp))


Function = Callable[[np.ndarray], np.ndarray]


def as_function(layers: Sequence[Layer], dim: int) -> Function:
    """Layers as a map of their first places; the others are 0 on the way in."""
    small = [drop_idle(layer) for layer in layers]
    free = len(small[0].value) - dim
    return lambda x_BND: run(small, np.pad(x_BND, [(0, 0), (0, 0), (0, free)]))[..., :dim]


def bound_gap(pruned: Sequence[Layer], target: Layer, first: int) -> float:
    """What ||f(X) - target(X)|| / ||X|| is at most for ||X|| <= 1, but for rounding.

    Errors of the parts, put together as by lemmas 28, 30, 31 and 34; all are shares of ||X||.
    """
    identity, places = np.eye(len(target.value)), range(len(target.value))
    before, layer = pruned[first], pruned[first + 1]
    rows, columns = np.nonzero(layer.value)
    value = target.value - target.value.mean(axis=0)
    linear = np.concatenate([identity, value / layer.value[rows, columns][:, None]])
    others = [other for n, other in enumerate(pruned) if n not in (first, first + 1)]
    drift = float(np.prod([1 + _linear_error(o.mlp, identity, places) for o in others])) - 1
    start, end = (drift, 0.0) if first else (0.0, drift)
    made = _linear_error(before.mlp, linear, [*rows, *columns]) * (1 + start)
    input_error = start + made
    scores = target.key.T @ target.query
    off = np.linalg.norm(layer.key[:, rows].T @ layer.query[:, rows] - scores, 2)
    score_error = np.linalg.norm(scores, 2) * (2 * input_error + input_error**2)
    score_error += off * (1 + input_error) ** 2
    size = np.linalg.norm(value, 2)
    softmax_error = min(2.0, np.expm1(min(2 * score_error, 2.0)))  # never more than 2
    attended_error = size * (softmax_error + start) + layer.value.max() * made
    # The layer norm is a projection to a ball, which brings no two points apart, over FLOOR.
    hidden_error = attended_error / FLOOR + input_error
    hidden_size = size / FLOOR + 1
    steepest = np.linalg.norm(target.mlp[0], 2) * np.linalg.norm(target.mlp[1], 2)
    error = _mlp_error(layer.mlp, *target.mlp, rows, places) * (hidden_size + hidden_error)
    error += steepest * hidden_error
    return float(error * (1 + end) + end * steepest * hidden_size)


def _linear_error(mlp: Sequence[np.ndarray], target_OI: np.ndarray, outputs) -> float:
    return _mlp_error(mlp, *_as_mlp(target_OI), range(target_OI.shape[1]), outputs)


def _mlp_error(mlp: Sequence[np.ndarray], up_FI, down_OF, inputs, outputs) -> float:
    """What four matrices are off down relu(up x) at most, as a share of ||x|| (lemma 29)."""
    hidden = len(up_FI)
    up_error = bound_error(mlp[0][:, inputs], mlp[1][:hidden], up_FI)
    made_OF = mlp[3][outputs] @ np.maximum(mlp[2][:, :hidden], 0)
    down_error = np.linalg.norm(made_OF - down_OF, 2)
    up, down = np.linalg.norm(up_FI, 2), np.linalg.norm(down_OF, 2)
    return down_error * (up + up_error) + down * up_error


def find_largest_gap(
    one: Function, other: Function, dim: int, positions: int, seed: int, rounds: int = 24
) -> tuple[float, np.ndarray]:
    """The largest ||one(X) - other(X)|| / ||X|| found for ||X|| <= 1, and its X: definition 16.

    Norms are those of the largest column. A search from random inputs: a lower limit of the sup.
    """
    rng = np.random.default_rng(seed)
    tried, kept = 256, 16
    x_BND = rng.normal(size=(tried, positions, dim)) * 10 ** rng.uniform(-2, 0, size=(tried, 1, 1))
    best_BND, best_B = np.zeros((0, positions, dim)), np.zeros(0)
    for step in np.geomspace(0.5, 0.01, rounds):
        x_BND = x_BND / np.maximum(np.linalg.norm(x_BND, axis=-1, keepdims=True), 1)
        gap_B = _largest_column(one(x_BND) - other(x_BND)) / _largest_column(x_BND)
        best_BND = np.concatenate([best_BND, x_BND])
        best_B = np.concatenate([best_B, gap_B])
        order = np.argsort(-best_B)[:kept]
        best_BND, best_B = best_BND[order], best_B[order]
        scale_B11 = _largest_column(best_BND)[:, None, None] * step
        noise_RBND = rng.normal(size=(tried // kept, *best_BND.shape))
        x_BND = (best_BND + scale_B11 * noise_RBND).reshape(-1, positions, dim)
    return float(best_B[0]), best_BND[:1]


def _largest_column(x_BND: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x_BND, axis=-1).max(axis=-1)
