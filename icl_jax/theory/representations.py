"""Two sentences for a network: both in its input, or the first in the weights that read the second.

Levine et al. 2022, eq. 4 and 5, with the sentence association of eq. 8: every token's embedding is
multiplied by a (first sentence) or b (second). Both are functions of (a, b); their separation rank
in a and b is the sequential separation rank (eq. 9). The network is `models/linear_attention.py` in
float64; call everything here `with jax.enable_x64(True):`, as `grid_matrix` does.
"""

from collections.abc import Callable, Sequence

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import LinearAttentionConfig, head_dim
from icl_jax.models import abstract
from icl_jax.models.attention import locate
from icl_jax.models.linear_attention import LinearAttention

WEIGHTS = ("normal", "positive", "whole")


def analysed_network(
    config: LinearAttentionConfig, seed: int = 0, weights: str = "normal"
) -> LinearAttention:
    """A random network in float64, with weights that are

    - `normal`, of a size that keeps the sums of a layer near 1;
    - `positive`, as theorem 1 assumes: uniform from 0.5 to 1.5 times that size;
    - `whole` numbers from -3 to 3 without 0, for `exact_rank`.
    """
    if config.dtype != "float64":
        raise ValueError(f"the theory is measured in float64, got dtype {config.dtype}")
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}, got {weights}")
    graphdef, shapes = abstract(config)
    rng = np.random.default_rng(seed)

    def draw(path: tuple, variable: nnx.Variable) -> nnx.Variable:
        size = _size(path[-1], config)
        if weights == "positive":
            # Positive terms do not cancel: a sum of n is n times one of them, not sqrt(n) times.
            drawn = rng.uniform(0.5, 1.5, variable.shape) * size**2
        elif weights == "whole":
            drawn = rng.choice([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0], variable.shape)
        else:
            drawn = rng.normal(size=variable.shape) * size
        return variable.replace(jnp.asarray(drawn))

    flat = [(path, draw(path, variable)) for path, variable in nnx.to_flat_state(shapes)]
    return nnx.merge(graphdef, nnx.from_flat_state(flat))


def balance(model: LinearAttention, tokens: Sequence[int]) -> LinearAttention:
    """The same network with every layer's output scaled to a root mean square of 1 on a sentence.

    A layer is cubic: unscaled, the output and gradient of a deep network are either almost zero or
    beyond float64. No rank in context depends on the scale.
    """
    if model.config.residual:
        raise ValueError("a residual network cannot be scaled by its layers' outputs")
    x_BTD = model.embedding(np.array([list(tokens)]))
    for block in model.blocks:
        y_BTD, _ = block(x_BTD, locate(x_BTD.shape[1], None))
        scale = jnp.sqrt(jnp.mean(y_BTD**2))
        block.out[...] = block.out[...] / scale
        x_BTD = y_BTD / scale
    return model


def in_context(
    model: LinearAttention, first: Sequence[int], second: Sequence[int], entry: int = 0
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """(a, b) -> an entry of the last token's vector, with both sentences in the input (eq. 4)."""
    tokens = np.array([[*first, *second]])
    sentence = np.array([[1] * len(first) + [2] * len(second)])

    def output(a_D: jax.Array, b_D: jax.Array) -> jax.Array:
        association = jnp.stack([a_D, b_D])
        return model.hidden(tokens, sentence=sentence, association=association)[0, -1, entry]

    return output


def sequential(
    model: LinearAttention,
    first: Sequence[int],
    second: Sequence[int],
    learning_rate: float,
    clip: float | None = None,
    entry: int = 0,
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """(a, b) -> the same entry for the second sentence, after a step on the first (eq. 5)."""
    tokens = np.array([list(second)])
    sentence = np.full_like(tokens, 2)
    graphdef, _ = nnx.split(model)

    def output(a_D: jax.Array, b_D: jax.Array) -> jax.Array:
        stepped = nnx.merge(graphdef, gradient_step(model, first, learning_rate, a_D, clip))
        association = jnp.stack([jnp.ones_like(b_D), b_D])
        return stepped.hidden(tokens, sentence=sentence, association=association)[0, -1, entry]

    return output


def gradient_step(
    model: LinearAttention,
    first: Sequence[int],
    learning_rate: float,
    a_D: jax.Array,
    clip: float | None = None,
) -> nnx.State:
    """All weights, including the vocabulary, after one step on the language-model loss.

    `clip`: no gradient is longer than this many times its weights. Theorem 1 bounds weights and
    gradients by the same number; unclipped, a gradient of degree 3^L soon drowns the weights.
    """

    def step(weight: jax.Array, gradient: jax.Array) -> jax.Array:
        if clip is not None:
            limit = clip * jnp.linalg.norm(jnp.ravel(weight))
            gradient = gradient * jnp.minimum(1.0, limit / jnp.linalg.norm(jnp.ravel(gradient)))
        return weight - learning_rate * gradient

    return jax.tree.map(step, nnx.state(model), loss_gradient(model, first, a_D))


def loss_gradient(model: LinearAttention, first: Sequence[int], a_D: jax.Array) -> nnx.State:
    """dL(S_1; a)/dtheta, where L is the negative log-likelihood of each next word of S_1."""
    if len(first) < 2:
        raise ValueError(f"a sentence needs at least 2 words to have a next word, got {len(first)}")
    tokens = np.array([list(first)])
    graphdef, weights = nnx.split(model)

    def loss(weights: nnx.State) -> jax.Array:
        association = jnp.stack([a_D, jnp.ones_like(a_D)])
        network = nnx.merge(graphdef, weights)
        logits = network(tokens, sentence=np.ones_like(tokens), association=association)
        likelihood = jax.nn.log_softmax(logits[0, :-1])
        return -likelihood[np.arange(len(first) - 1), tokens[0, 1:]].sum()

    return jax.grad(loss)(weights)


def over_partition(
    model: LinearAttention, positions: Sequence[int], entry: int = 0
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """(inputs at `positions`, inputs at the others) -> the entry of position 0's vector.

    A partition of the inputs as in Levine et al. 2020 and Wies et al. 2021: token ids for a
    vocabulary, raw vectors (one a position) for a convolution.
    """
    positions = list(positions)

    def output(at_positions: jax.Array, at_others: jax.Array) -> jax.Array:
        length = len(at_positions) + len(at_others)
        if sorted(set(positions)) != sorted(positions) or not set(positions) <= set(range(length)):
            raise ValueError(f"positions must be different ones of {length}, got {positions}")
        if len(at_positions) != len(positions):
            raise ValueError(f"expected {len(positions)} inputs, got {len(at_positions)}")
        others = np.setdiff1d(np.arange(length), positions)
        inputs = jnp.zeros((length, *at_positions.shape[1:]), at_positions.dtype)
        inputs = inputs.at[np.array(positions)].set(at_positions).at[others].set(at_others)
        return model.hidden(inputs[None])[0, 0, entry]

    return output


def _size(name: str, config: LinearAttentionConfig) -> float:
    """The standard deviation that `LinearAttention` uses for a parameter."""
    width, heads, size = config.embed_dim, config.num_heads, head_dim(config)
    return {
        "query": width**-0.5 * size**-0.25,
        "key": width**-0.5 * size**-0.25,
        "value": width**-0.5,
        "out": (heads * size * config.context_length) ** -0.5,
        "kernel": (config.kernel_size * config.input_dim) ** -0.5,
        "up": (config.embedding_rank or 1) ** -0.5,
    }.get(name, 1.0)
