"""What a training step reads and writes, and the step itself.

Shape suffixes: B batch, T time, A parts of an accumulated batch.
"""

from collections.abc import Callable
import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import optax

from icl_jax.config import ExperimentConfig, TrainingConfig
from icl_jax.models import abstract, create
from icl_jax.models.losses import vocabulary_loss
from icl_jax.sharding import constrain, spec, variable_sharding
from icl_jax.training.objectives import Task, masked_token, next_token

# By default the TPU compiler cuts products over fsdp into narrow steps, to hide network time that
# is short anyway: GPT-medium's products then take 315 ms instead of 114 (docs/tpu_sharding.md).
COMPILER_OPTIONS = {"tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}}
Batch = dict[str, jax.Array]  # "tokens" and "group", int32 (batch, time)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Plain arrays only; `nnx.merge` makes a model of `params`."""

    step: jax.Array  # steps done
    params: nnx.State
    opt_state: optax.OptState
    ema: nnx.State | None  # moving average of params


def abstract_state(
    config: ExperimentConfig, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    """Shapes and shardings of the state; allocates no memory."""
    # The moments are built from parameters with axis names, so they are sharded alike.
    shapes = nnx.eval_shape(lambda p: _first_state(config, optimizer, p), abstract(config.model)[1])

    def place(x):
        whole = NamedSharding(mesh, PartitionSpec())
        sharding = variable_sharding(x, mesh) if isinstance(x, nnx.Variable) else whole
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(place, shapes, is_leaf=lambda x: isinstance(x, nnx.Variable))


def init_state(
    config: ExperimentConfig, optimizer: optax.GradientTransformation, mesh: Mesh, model=None
) -> TrainState:
    """A fresh state on its shards, for a fresh model or the one given."""
    model = create(config.model, config.seed, mesh) if model is None else model
    params = nnx.as_pure(nnx.state(model))
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state(config, optimizer, mesh))
    make = jax.jit(lambda p: _first_state(config, optimizer, p), out_shardings=shardings)
    return make(params)


def _first_state(config: ExperimentConfig, optimizer, params: nnx.State) -> TrainState:
    ema = params if config.training.ema_decay else None
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), ema)


def abstract_batch(config: ExperimentConfig, mesh: Mesh) -> Batch:
    """Shapes and shardings of a batch."""
    shape = (config.batch_size, config.sequence_length)
    sharding = NamedSharding(mesh, spec(("batch", None), shape, mesh))
    array = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)
    return {"tokens": array, "group": array}


def compile_train_step(
    config: ExperimentConfig,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    mesh: Mesh,
) -> jax.stages.Compiled:
    """(state, batch) -> (state, metrics), compiled once; reuses the memory of the old state.

    Because it is compiled ahead, it refuses any other shape or sharding instead of recompiling.
    """
    lowered = lower_train_step(config, optimizer, schedule, mesh)
    options = COMPILER_OPTIONS.get(mesh.devices.flat[0].platform)
    return lowered.compile(compiler_options=options)


def lower_train_step(
    config: ExperimentConfig,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    mesh: Mesh,
) -> jax.stages.Lowered:
    """The step in the form that the compiler gets."""
    state, batch = abstract_state(config, optimizer, mesh), abstract_batch(config, mesh)
    whole = NamedSharding(mesh, PartitionSpec())
    step = jax.jit(
        make_train_step(config, optimizer, schedule, dropout_keys(config.training, mesh)),
        donate_argnums=0,
        out_shardings=(jax.tree.map(lambda x: x.sharding, state), whole),
    )
    with jax.set_mesh(mesh):
        return step.lower(state, batch)


def dropout_keys(training: TrainingConfig, mesh: Mesh) -> str:
    """The generator of a step's dropout on this mesh: threefry or rbg."""
    if training.dropout_keys != "auto":
        return training.dropout_keys
    return "rbg" if mesh.devices.flat[0].platform == "tpu" else "threefry"


def make_train_step(
    config: ExperimentConfig,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    dropout_keys: str = "threefry",
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
    """The step as a plain function of (state, batch)."""
    graphdef, _ = abstract(config.model)
    decay = config.training.ema_decay

    def train_step(state: TrainState, batch: Batch):
        mask_key, dropout_key = step_keys(config, state.step, dropout_keys)
        task = make_task(config, batch, mask_key)
        loss, grads = loss_and_grads(config, graphdef, state.params, task, dropout_key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        ema = state.ema
        if ema is not None:
            ema = jax.tree.map(lambda e, p: e + (1 - decay) * (p - e), ema, params)
        metrics = {
            "loss": loss,
            "grad_norm": optax.tree.norm(grads),
            "learning_rate": schedule(state.step),
            "tokens": jnp.sum(task.group_BT > 0),
        }
        return TrainState(state.step + 1, params, opt_state, ema), metrics

    return train_step


def step_keys(
    config: ExperimentConfig, step: jax.Array, dropout_keys: str
) -> tuple[jax.Array, jax.Array | None]:
    """The keys of a step's masks and dropout (None: no dropout), from seed and step alone."""
    key = jax.random.key(config.seed, impl="threefry2x32")
    mask_key, dropout_key = jax.random.split(jax.random.fold_in(key, step))
    if not config.training.dropout:
        return mask_key, None
    if dropout_keys == "rbg":
        dropout_key = jax.random.wrap_key_data(jax.random.bits(dropout_key, (4,)), impl="rbg")
    return mask_key, dropout_key


def make_task(config: ExperimentConfig, batch: Batch, mask_key: jax.Array) -> Task:
    """The batch prepared for the objective."""
    tokens_BT, group_BT = batch["tokens"], batch["group"]
    if config.training.objective == "next_token":
        return next_token(tokens_BT, group_BT)
    return masked_token(tokens_BT, group_BT, mask_key, config.training, config.model)


def loss_and_grads(
    config: ExperimentConfig,
    graphdef: nnx.GraphDef,
    params: nnx.State,
    task: Task,
    dropout_key: jax.Array | None,
) -> tuple[jax.Array, nnx.State]:
    """Mean loss over the weighted tokens of the whole batch, and its gradient, part by part."""
    parts = config.training.accumulate
    total = jnp.maximum(jnp.sum(task.weights_BT), 1.0)

    def part_loss(params: nnx.State, task: Task, key: jax.Array | None) -> jax.Array:
        model = nnx.merge(graphdef, params)
        hidden_BTD = model.hidden(task.inputs_BT, task.group_BT, dropout_key=key)
        summed = vocabulary_loss(
            *model.vocabulary(hidden_BTD),
            task.targets_BT,
            task.weights_BT,
            dtype=config.model.dtype,
            sparse=config.training.objective == "masked_token",
        )
        return summed / total

    value_and_grad = jax.value_and_grad(part_loss)
    if parts == 1:
        return value_and_grad(params, task, dropout_key)

    def add_part(carry, part):
        n, part_task = part
        part_task = Task(*(constrain(x, "batch", None) for x in part_task))
        key = None if dropout_key is None else jax.random.fold_in(dropout_key, n)
        return jax.tree.map(jnp.add, carry, value_and_grad(params, part_task, key)), None

    # Part a has the rows a, a + A, ...: each device already holds its share of every part.
    tasks = Task(*(x.reshape(-1, parts, x.shape[1]).swapaxes(0, 1) for x in task))
    zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    return jax.lax.scan(add_part, zeros, (jnp.arange(parts), tasks))[0]
