"""Grid matrices of the analysed network against a plain NumPy loop over the points.

A network of depth 3, width 8, sentences of 4 words, on 256 x 256 points, in float64, in context;
the loop is timed on some of the rows and scaled, and the values must be the same. Ours includes its
compilation, because a grid is evaluated only once. The sequential grid, for which there is no plain
loop here, is timed alone.

Run: python benchmarks/separation_rank.py [--rounds=3]
"""

import json

from absl import flags
from forward_latency import alternate
import jax
import numpy as np

from icl_jax.cli import Flag, command, whole
from icl_jax.config import LinearAttentionConfig
from icl_jax.theory.representations import analysed_network, balance, in_context, sequential
from icl_jax.theory.separation_rank import grid_matrix

POINTS, LOOP_ROWS = 256, 8
FIRST, SECOND = [0, 1, 2, 3], [4, 1, 5, 3]
CONFIG = LinearAttentionConfig(
    vocab_size=8, context_length=8, num_layers=3, embed_dim=8, num_heads=2, dtype="float64"
)


@command(Flag("rounds=N", "timed rounds of each side", whole(least=1), 3))
def main(given: flags.FlagValues) -> None:
    """Prints a table, and as the last line one JSON object."""
    rounds = given.rounds
    a, b = np.random.default_rng(0).normal(size=(2, POINTS, CONFIG.embed_dim))
    with jax.enable_x64(True):
        model = balance(analysed_network(CONFIG), FIRST)
        context = in_context(model, FIRST, SECOND)
        stepped = sequential(model, FIRST, SECOND, 0.01, clip=1.0)
        check(grid_matrix(context, a[:LOOP_ROWS], b), numpy_loop(model, a[:LOOP_ROWS], b))
        ours, loop = alternate(
            lambda: grid_matrix(context, a, b), lambda: numpy_loop(model, a[:LOOP_ROWS], b), rounds
        )
        after_a_step, _ = alternate(lambda: grid_matrix(stepped, a, b), lambda: None, rounds)
    loop *= POINTS / LOOP_ROWS
    print(f"in context, {POINTS} x {POINTS} points: {ours:.2f} s with compilation")
    print(f"NumPy loop ({LOOP_ROWS} rows, scaled): {loop:.1f} s")
    print(f"ratio, above 1 ours is faster: {loop / ours:.1f}x")
    print(f"sequential, with {POINTS} gradient steps: {after_a_step:.2f} s")
    results = {"points": POINTS, "rounds": rounds, "jax": jax.__version__}
    results |= {"in_context_seconds": round(ours, 2), "loop_seconds": round(loop, 1)}
    results |= {"ratio": round(loop / ours, 1), "sequential_seconds": round(after_a_step, 2)}
    print(json.dumps(results))


def check(ours: np.ndarray, loop: np.ndarray) -> None:
    """Stops unless both sides have the same values."""
    np.testing.assert_allclose(ours, loop, rtol=1e-6, atol=1e-9 * abs(loop).max())


def numpy_loop(model, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Levine et al. 2022, eq. 1, point by point."""
    rows = np.asarray(model.embedding.rows[...])
    names = ("query", "key", "value", "out")
    blocks = [[np.asarray(getattr(block, name)[...]) for name in names] for block in model.blocks]
    values = np.empty((len(a), len(b)))
    for i, j in np.ndindex(values.shape):
        x = np.concatenate([rows[FIRST] * a[i], rows[SECOND] * b[j]])
        for query, key, value, out in blocks:
            y = np.zeros_like(x)
            for head in range(query.shape[1]):
                scores = (x @ query[:, head]) @ (x @ key[:, head]).T
                y += scores @ (x @ value[:, head]) @ out[head]
            x = y
        values[i, j] = x[-1, 0]
    return values


if __name__ == "__main__":
    main()
