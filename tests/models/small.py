"""Small models with every parameter random, so that no bias or scale hides behind 0 or 1."""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.models import abstract


def make_model(config, seed=0):
    """A model of `config`; its parameters come from NumPy, so there is nothing to compile."""
    graphdef, shapes = abstract(config)
    rng = np.random.default_rng(seed)

    def draw(path, variable):
        around = 1.0 if path[-1] == "scale" else 0.0
        return variable.replace(
            jnp.asarray(around + 0.2 * rng.normal(size=variable.shape), "float32")
        )

    flat = [(path, draw(path, variable)) for path, variable in nnx.to_flat_state(shapes)]
    return nnx.merge(graphdef, nnx.from_flat_state(flat))


def leaves(model):
    """The parameters as arrays, in a fixed order."""
    return jax.tree.leaves(nnx.state(model))
