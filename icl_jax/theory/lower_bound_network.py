"""The network of L22's theorem 2, built: its grid matrix is (B B^T) to the power 3^(L-2), by entry.

Layer 1 adds up the words, so that every position holds a + b. Layer 2 multiplies the part filled by
a with the part filled by b, <a', b'>, into one coordinate; every later layer cubes it. L20 (lemma
6) squares a' + i b' instead, with complex weights and odd head sizes. Separate queries and keys
achieve the same with real weights and any head size, and have (d_x - 1) / 2 pairs instead of
(d_x - H) / 2.
"""

import math
from typing import NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import LinearAttentionConfig
from icl_jax.models import abstract
from icl_jax.models.linear_attention import LinearAttention

_NORM_DRAWS = 20


class Templates(NamedTuple):
    """Points for a and b: row i of B fills a, row j fills b."""

    a: np.ndarray
    b: np.ndarray


def lower_bound_network(config: LinearAttentionConfig, sentence_length: int) -> LinearAttention:
    """Weights for which `in_context` of two sentences is <B_i, B_j>^(3^(L-2)) at the templates."""
    if config.num_layers < 2:
        raise ValueError(f"the construction needs a depth of at least 2, got {config.num_layers}")
    if config.residual or config.causal:
        raise ValueError("the construction needs the plain analysed network: no residual, no mask")
    pairs, words = pair_count(config), 2 * sentence_length
    graphdef, shapes = abstract(config)
    model = nnx.merge(graphdef, jax.tree.map(lambda shape: jnp.zeros(shape.shape), shapes))
    model.embedding.rows[...] = jnp.ones_like(model.embedding.rows[...])
    constant = 2 * pairs  # the coordinate that is 1 in every template
    _add_up(model.blocks[0], constant, words)
    _multiply(model.blocks[1], pairs, constant, words)
    for block in model.blocks[2:]:
        _set(block, query=[(0, 0, 0)], key=[(0, 0, 0)], value=[(0, 0, 0)], out=[(0, 0, 0)])
        block.out[...] = block.out[...] / words
    return model


def pair_count(config: LinearAttentionConfig) -> int:
    """d: the number of coordinates for each of a and b; one more is constant."""
    pairs = (config.embed_dim - 1) // 2
    if pairs < 1:
        raise ValueError(f"the construction needs a width of at least 3, got {config.embed_dim}")
    return pairs


def templates(matrix: np.ndarray, width: int) -> Templates:
    """a = (B_i, 0, 1) and b = (0, B_j, 1), padded with zeros to the width."""
    count, pairs = matrix.shape
    a, b = np.zeros((2, count, width))
    a[:, :pairs], b[:, pairs : 2 * pairs] = matrix, matrix
    a[:, 2 * pairs] = b[:, 2 * pairs] = 1
    return Templates(a, b)


def spread_rows(count: int, pairs: int, power: int, seed: int = 0) -> np.ndarray:
    """Draws unit rows B until || (B B^T)^power || <= sqrt(d + 1) n^(3/4) (lemma 15)."""
    rng = np.random.default_rng(seed)
    limit = math.sqrt(pairs + 1) * count**0.75
    for _ in range(_NORM_DRAWS):
        rows = rng.normal(size=(count, pairs))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        if np.linalg.norm((rows @ rows.T) ** power) <= limit:
            return rows
    raise ValueError(
        f"no {count} rows of {pairs} numbers were within lemma 15's norm {limit:.4g} in "
        f"{_NORM_DRAWS} draws"
    )


def _add_up(block: nnx.Module, constant: int, words: int) -> None:
    """y = sum_j x_j / words: the scores are products of the constant, 1; the heads copy x."""
    heads, size = block.query[...].shape[1:]
    width = block.query[...].shape[0]
    if heads * size < constant + 1:
        raise ValueError(
            f"{constant + 1} coordinates must pass the heads, got {heads} heads of {size}"
        )
    carried = [(n, n // size, n % size) for n in range(min(width, heads * size))]
    ones = [(constant, head, 0) for head in range(heads)]
    _set(block, query=ones, key=ones, value=carried, out=carried)
    block.out[...] = block.out[...] * (2 / words)  # N (a + b) of 2 N words


def _multiply(block: nnx.Module, pairs: int, constant: int, words: int) -> None:
    """y_0 = <a', b'>: each head multiplies its share of the pairs, all add into coordinate 0."""
    heads, size = block.query[...].shape[1:]
    placed = [(n, n // size, n % size) for n in range(pairs)]
    shifted = [(n + pairs, head, k) for n, head, k in placed]
    ones = [(constant, head, 0) for head in range(heads)]
    _set(block, query=placed, key=shifted, value=ones, out=[(0, head, 0) for head in range(heads)])
    # Layer 1 made the constant 2, and every word adds the same amount.
    block.out[...] = block.out[...] / (2 * words)


def _set(block: nnx.Module, **places: list[tuple[int, int, int]]) -> None:
    """Ones at (coordinate, head, k) of each matrix, zeros elsewhere."""
    for name, chosen in places.items():
        parameter = getattr(block, name)
        values = np.zeros(parameter[...].shape)
        for coordinate, head, k in chosen:
            values[(head, k, coordinate) if name == "out" else (coordinate, head, k)] = 1
        parameter[...] = jnp.asarray(values)
