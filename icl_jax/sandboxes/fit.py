"""Trains one tiny network from several seeds at once, many steps in one call, on data made inside.

The seeds are one axis of every array, which is cut over the devices. A batch depends only
on (seed, step), so training that was stopped continues bit for bit.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import io
import math
import multiprocessing
from pathlib import Path
import time
from typing import Any, NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import optax
from tqdm import tqdm

from icl_jax.config import MeshConfig, ModelConfig, OptimizerConfig
from icl_jax.config.tree import validate
from icl_jax.files.step_folder import beside
from icl_jax.models.kinds import kind_of
from icl_jax.sandboxes.points import note_progress
from icl_jax.sharding import make_mesh
from icl_jax.training.objectives import Task
from icl_jax.training.optimizer import learning_rate, make_optimizer
from icl_jax.workers.local import progress_bar

STEPS_PER_CALL = 100
SAVE_SECONDS = 60
UNFINISHED = "unfinished.npz"

Network = ModelConfig | Callable[[nnx.Rngs], nnx.Module]
# A batch is made of a key, in the step: for `cross_entropy` the task, and the position of the first
# token or None; any pytree for a loss of one's own.
Draw = Callable[[jax.Array], Any]
Loss = Callable[[nnx.Module, Any, jax.Array | None, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a network is trained."""

    steps: int
    optimizer: OptimizerConfig
    ema_decay: float = 0.0  # 0: the weights of the last step
    dropout: bool = False  # at the rates of the model's config


class Fitted(NamedTuple):
    """Networks of one form, a seed each along the first axis of every parameter."""

    graphdef: nnx.GraphDef
    params: nnx.State
    losses: np.ndarray  # (seeds, calls): the mean loss of each call of STEPS_PER_CALL steps

    def model(self, params: nnx.State) -> nnx.Module:
        """The network of one seed's parameters, as a function under `vmap` gets them."""
        return nnx.merge(self.graphdef, params)

    def of_each_seed(self, measure: Callable) -> Callable:
        """(*arguments) -> `measure(model, *arguments)` of every seed's network, compiled once."""
        seeds = jax.tree.leaves(self.params)[0].shape[0]

        def of_all(params, *arguments):
            return each_seed(lambda p: measure(self.model(p), *arguments), seeds)(params)

        run = jax.jit(of_all)
        return lambda *arguments: jax.tree.map(np.asarray, run(self.params, *arguments))


class _State(NamedTuple):
    params: nnx.State
    opt_state: optax.OptState
    ema: nnx.State | None


class Prepared(NamedTuple):
    """A training that is ready to start: its first state, and what makes STEPS_PER_CALL steps."""

    graphdef: nnx.GraphDef
    state: _State
    call: Callable[[_State, int], tuple[_State, jax.Array]]  # (state, steps done) -> losses


def cross_entropy(
    model: nnx.Module, batch: Any, dropout_key: jax.Array | None, n: jax.Array
) -> jax.Array:
    """The usual loss: (network, batch, key of dropout, number of the step) -> a scalar."""
    task, offset = batch
    options = {} if offset is None else {"offset": offset}
    logits = model(task.inputs_BT, task.group_BT, dropout_key=dropout_key, **options)
    return mean_loss(logits, task)


def mean_loss(logits_BTV: jax.Array, task: Task) -> jax.Array:
    """The cross-entropy of the targets that count, on average."""
    each_BT = optax.softmax_cross_entropy_with_integer_labels(logits_BTV, task.targets_BT)
    return jnp.sum(each_BT * task.weights_BT) / jnp.maximum(jnp.sum(task.weights_BT), 1.0)


def fit(
    network: Network,
    draw: Draw,
    recipe: Recipe,
    seeds: Sequence[int],
    keep: Path | None = None,
    loss: Loss = cross_entropy,
) -> Fitted:
    """Trains a network from each seed. `keep`: a folder for the state of an unfinished training.

    The caller deletes `keep / UNFINISHED` when it has kept the results.
    """
    graphdef, state, call = prepare(network, draw, recipe, seeds, loss)
    file = None if keep is None else keep / UNFINISHED
    state, losses, done = _restore(file, state)
    saved = time.monotonic()
    with _steps_bar(recipe.steps, done) as bar:
        while done < recipe.steps:
            state, found = call(state, done)
            losses.append(np.asarray(found)[:, : recipe.steps - done].mean(axis=1))
            done += STEPS_PER_CALL
            bar.update(min(STEPS_PER_CALL, recipe.steps - bar.n))
            if keep is not None:
                note_progress(keep, min(1.0, done / recipe.steps))
            if file and done < recipe.steps and time.monotonic() - saved > SAVE_SECONDS:
                _save(file, state, losses, done)
                saved = time.monotonic()
    params = state.params if state.ema is None else state.ema
    return Fitted(graphdef, params, np.stack(losses, axis=1))


def prepare(
    network: Network,
    draw: Draw,
    recipe: Recipe,
    seeds: Sequence[int],
    loss: Loss = cross_entropy,
) -> Prepared:
    """Networks with their first weights, placed on the devices, and the compiled steps."""
    validate(recipe.optimizer)
    make = network
    if isinstance(network, ModelConfig):
        validate(network)
        make = functools.partial(kind_of(network).module, network)
    graphdef, _ = nnx.split(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))
    optimizer = make_optimizer(recipe.optimizer, learning_rate(recipe.optimizer, recipe.steps))
    sharding = over_seeds(len(seeds))
    keys = jax.device_put(jax.vmap(jax.random.key)(jnp.array(seeds, jnp.uint32)), sharding)

    def start(key: jax.Array) -> _State:
        rngs = nnx.Rngs(params=jax.random.fold_in(key, 0))
        params = nnx.as_pure(nnx.state(make(rngs=rngs)))
        return _State(params, optimizer.init(params), params if recipe.ema_decay else None)

    advance = _make_step(graphdef, draw, optimizer, recipe, loss)

    def call(state: _State, keys: jax.Array, first: jax.Array) -> tuple[_State, jax.Array]:
        # The last call is shorter: steps past the end change nothing.
        steps = first + jnp.arange(STEPS_PER_CALL)

        def of_seed(state: _State, key: jax.Array) -> tuple[_State, jax.Array]:
            return jax.lax.scan(lambda state, n: advance(state, key, n), state, steps)

        return each_seed(of_seed, len(seeds))(state, keys)

    compiled = jax.jit(call, donate_argnums=0)
    state = jax.jit(each_seed(start, len(seeds)))(keys)
    return Prepared(graphdef, state, lambda state, done: compiled(state, keys, jnp.int32(done)))


def _steps_bar(steps: int, done: int) -> tqdm:
    """Progress of one training; not in a worker, where several would write over each other."""
    worker = multiprocessing.parent_process() is not None
    options = {"total": steps, "initial": done, "desc": "train", "unit": "step", "leave": False}
    return progress_bar(**options, **({"disable": True} if worker else {}))


def over_seeds(count: int) -> NamedSharding:
    """Cuts the seeds evenly over as many devices as divide them."""
    devices = jax.devices()[: math.gcd(count, jax.device_count())]
    return NamedSharding(make_mesh(MeshConfig(), devices), PartitionSpec("data"))


def each_seed(function: Callable, count: int) -> Callable:
    """`function` of each seed's slice of its arguments: every device does this for its own seeds.

    By `vmap`; on a CPU one after another, because the batched products of small matrices take a
    third longer there.
    """
    sharding = over_seeds(count)
    on_cpu = sharding.mesh.devices.flat[0].platform == "cpu"

    def of_own(*slices):
        if on_cpu:
            return jax.lax.map(lambda one: function(*one), slices)
        return jax.vmap(function)(*slices)

    spec = sharding.spec
    return jax.shard_map(of_own, mesh=sharding.mesh, in_specs=spec, out_specs=spec, check_vma=False)


def _make_step(graphdef, draw: Draw, optimizer, recipe: Recipe, loss: Loss) -> Callable:
    """(state, the seed's key, number of the step) -> (state, loss), for one seed."""

    def loss_of(params, batch, dropout_key, n):
        return loss(nnx.merge(graphdef, params), batch, dropout_key, n)

    def advance(state: _State, key: jax.Array, n: jax.Array) -> tuple[_State, jax.Array]:
        data_key, dropout_key = jax.random.split(jax.random.fold_in(key, n + 1))
        dropout_key = dropout_key if recipe.dropout else None
        value, grads = jax.value_and_grad(loss_of)(state.params, draw(data_key), dropout_key, n)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        ema = state.ema
        if ema is not None:
            share = 1 - recipe.ema_decay
            ema = jax.tree.map(lambda e, p: e + share * (p - e), ema, params)
        new = _State(params, opt_state, ema)
        if recipe.steps % STEPS_PER_CALL:
            new = jax.tree.map(lambda a, b: jnp.where(n < recipe.steps, a, b), new, state)
        return new, value

    return advance


def _save(file: Path, state: _State, losses: list[np.ndarray], done: int) -> None:
    content = io.BytesIO()
    arrays = [np.asarray(x) for x in jax.tree.leaves(state)]
    np.savez(content, *arrays, losses=np.stack(losses), done=done)
    with beside(file) as partial:
        partial.write_bytes(content.getvalue())


def _restore(file: Path | None, fresh: _State) -> tuple[_State, list[np.ndarray], int]:
    """What `_save` wrote, on the devices of a fresh state; or that one."""
    if file is None or not file.exists():
        return fresh, [], 0
    leaves, structure = jax.tree.flatten(fresh)
    with np.load(file) as kept:
        arrays = [jax.device_put(kept[f"arr_{n}"], leaf.sharding) for n, leaf in enumerate(leaves)]
        losses, done = list(kept["losses"]), int(kept["done"])
    return jax.tree.unflatten(structure, arrays), losses, done
