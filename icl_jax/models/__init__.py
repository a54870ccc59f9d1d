"""The networks. `create` builds one on its shards; `huggingface.load` reads a published one.

`kinds.py` is the table of model families.
"""

import dataclasses
import functools

from flax import nnx
import jax
from jax.sharding import Mesh

from icl_jax.config import ModelConfig
from icl_jax.config.tree import validate
from icl_jax.models.gpt import GPT
from icl_jax.models.kinds import kind_of
from icl_jax.models.linear_attention import LinearAttention
from icl_jax.models.lstm import LSTM
from icl_jax.models.roberta import Roberta
from icl_jax.sharding import state_shardings, with_auto_axes

Model = GPT | Roberta | LinearAttention | LSTM


def create(config: ModelConfig, seed: int = 0, mesh: Mesh | None = None) -> Model:
    """A freshly initialised model; with a mesh, every parameter is created on its own shard."""
    validate(config)
    mesh = None if mesh is None else with_auto_axes(mesh)
    graphdef, init = _initializer(dataclasses.replace(config), mesh)
    return nnx.merge(graphdef, init(seed))


@functools.lru_cache(maxsize=8)  # another seed does not compile again
def _initializer(config: ModelConfig, mesh: Mesh | None):
    graphdef, shapes = abstract(config)

    def init(seed: jax.Array) -> nnx.State:
        rngs = nnx.Rngs(params=jax.random.key(seed))
        return nnx.state(kind_of(config).module(config, rngs=rngs))

    shardings = None if mesh is None else state_shardings(shapes, mesh)
    return graphdef, jax.jit(init, out_shardings=shardings)


def abstract(config: ModelConfig) -> tuple[nnx.GraphDef, nnx.State]:
    """The model's structure and parameter shapes; allocates no memory."""
    validate(config)
    model = nnx.eval_shape(lambda: kind_of(config).module(config, rngs=nnx.Rngs(params=0)))
    return nnx.split(model)
