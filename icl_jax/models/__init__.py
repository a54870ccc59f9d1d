"""The networks. `create` makes one on its shards; `huggingface.load` reads a published one."""

from flax import nnx
import jax
from jax.sharding import Mesh

from icl_jax.config import GPTConfig, LinearAttentionConfig, ModelConfig, RobertaConfig, validate
from icl_jax.models.gpt import GPT
from icl_jax.models.linear_attention import LinearAttention
from icl_jax.models.roberta import Roberta
from icl_jax.sharding import state_shardings, with_auto_axes

Model = GPT | Roberta | LinearAttention

MODELS: dict[type, type[Model]] = {
    GPTConfig: GPT,
    RobertaConfig: Roberta,
    LinearAttentionConfig: LinearAttention,
}


def create(config: ModelConfig, seed: int = 0, mesh: Mesh | None = None) -> Model:
    """A freshly initialised model; with a mesh, every parameter is made on its own shard."""
    graphdef, shapes = abstract(config)
    shardings = None if mesh is None else state_shardings(shapes, with_auto_axes(mesh))

    def init() -> nnx.State:
        return nnx.state(MODELS[type(config)](config, rngs=nnx.Rngs(params=seed)))

    return nnx.merge(graphdef, jax.jit(init, out_shardings=shardings)())


def abstract(config: ModelConfig) -> tuple[nnx.GraphDef, nnx.State]:
    """The model's structure and parameter shapes; no memory is taken."""
    validate(config)
    model = nnx.eval_shape(lambda: MODELS[type(config)](config, rngs=nnx.Rngs(params=0)))
    return nnx.split(model)
