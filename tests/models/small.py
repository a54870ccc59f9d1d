"""Small models with every parameter random, so that no bias or scale hides behind 0 or 1."""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.models import MODELS


def make_model(config, seed=0):
    """A model of `config` whose biases and norms are random too."""
    model = MODELS[type(config)](config, rngs=nnx.Rngs(params=seed))
    rng = np.random.default_rng(seed)

    def shake(x):
        return x + jnp.asarray(0.1 * rng.normal(size=x.shape), x.dtype)

    nnx.update(model, jax.tree.map(shake, nnx.state(model)))
    return model


def leaves(model):
    """The parameters as arrays, in a fixed order."""
    return jax.tree.leaves(nnx.state(model))
