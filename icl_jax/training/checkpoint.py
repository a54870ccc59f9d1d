"""Orbax checkpoints: weights, their average, the optimiser, the place in the data, the config.

A checkpoint is a folder `checkpoints/<steps done>`; an unfinished one is never read.
"""

from collections.abc import Iterator
import contextlib

from absl import logging
from etils import epath
from flax import nnx
import jax
from jax.sharding import Mesh
import orbax.checkpoint as ocp

from icl_jax import models
from icl_jax.config import ConfigError, ExperimentConfig, TrainingConfig
from icl_jax.config.tree import from_dict, to_dict
from icl_jax.files.remote import is_remote
from icl_jax.files.step_folder import absolute
from icl_jax.sharding import variable_sharding, with_auto_axes
from icl_jax.training.train_state import TrainState


def open_checkpoints(workdir: epath.Path, config: TrainingConfig) -> ocp.CheckpointManager:
    """The checkpoints of a run; they are saved in the background."""
    options = ocp.CheckpointManagerOptions(
        max_to_keep=config.keep_last,
        keep_period=config.keep_every or None,
        cleanup_tmp_directories=True,  # what a killed run left unfinished
    )
    return ocp.CheckpointManager(absolute(workdir) / "checkpoints", options=options)


def save(manager: ocp.CheckpointManager, config: ExperimentConfig, state: TrainState, batches):
    """Starts saving; returns once the arrays are copied, so that the next step may reuse them."""
    items = {name: ocp.args.StandardSave(tree) for name, tree in _items(state).items()}
    items["batches"] = ocp.args.JsonSave(batches.get_state())
    items["config"] = ocp.args.JsonSave(to_dict(config))
    manager.save(int(state.step), args=ocp.args.Composite(**items), force=True)


def restore(manager: ocp.CheckpointManager, step: int, like: TrainState) -> TrainState:
    """The state after `step` steps on the shardings of `like`."""
    items = {name: ocp.args.StandardRestore(tree) for name, tree in _items(like).items()}
    restored = manager.restore(step, args=ocp.args.Composite(**items))
    return TrainState(
        restored["optimizer"]["step"],
        restored["params"],
        restored["optimizer"]["opt_state"],
        restored["ema"] if like.ema is not None else None,
    )


def _items(state: TrainState) -> dict:
    """The parts that can be read one by one."""
    parts = {
        "params": state.params,
        "optimizer": {"step": state.step, "opt_state": state.opt_state},
        "ema": state.ema,
    }
    return {name: tree for name, tree in parts.items() if tree is not None}


def find(path: str) -> tuple[epath.Path, int]:
    """The folder of checkpoints and the step that `path`, a workdir or one checkpoint, names."""
    folder = absolute(path)  # the name of "." or "200" alone says nothing
    if folder.name.isdigit() and folder.parent.name == "checkpoints":
        asked, folder = int(folder.name), folder.parent
        steps = [step for step in finished_steps(folder) if step == asked]
    else:
        folder = folder if folder.name == "checkpoints" else folder / "checkpoints"
        steps = finished_steps(folder)
    if not steps:
        if not absolute(path).exists():
            raise ConfigError(f"there is no folder {path}")
        raise ConfigError(f"{path}: there is no finished checkpoint in {folder}")
    return folder, steps[-1]


def finished_steps(folder: epath.Path) -> list[int]:
    """The steps of the finished checkpoints in a folder, in order.

    On a disk Orbax renames a checkpoint when it is finished; in a bucket, where nothing can be
    renamed atomically, it adds a file instead.
    """
    names = [child.name for child in folder.iterdir()] if folder.exists() else []
    steps = sorted(int(name) for name in names if name.isdigit())
    if is_remote(folder):
        is_finished = ocp.utils.is_checkpoint_finalized
        steps = [step for step in steps if is_finished(folder / str(step))]
    return steps


def read_config(path: str) -> ExperimentConfig:
    """The config of the run that wrote the checkpoint."""
    folder, step = find(path)
    with _open_to_read(folder, alone=True) as manager:
        restored = manager.restore(step, args=ocp.args.Composite(config=ocp.args.JsonRestore()))
    return from_dict(restored["config"])


def load_model(path: str, mesh: Mesh, *, ema: bool = False, config=None) -> models.Model:
    """The model of a run's latest checkpoint, or of the one named, on the shards of `mesh`."""
    config = read_config(path).model if config is None else config
    folder, step = find(path)
    graphdef, shapes = models.abstract(config)
    mesh, item = with_auto_axes(mesh), "ema" if ema else "params"
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=variable_sharding(x, mesh)),
        shapes,
        is_leaf=lambda x: isinstance(x, nnx.Variable),
    )
    alone = all(device.process_index == jax.process_index() for device in mesh.devices.flat)
    with _open_to_read(folder, alone) as manager:
        restore_args = ocp.args.Composite(**{item: ocp.args.StandardRestore(like)})
        return nnx.merge(graphdef, manager.restore(step, args=restore_args)[item])


def restore_from(path: str, like: TrainState) -> TrainState:
    """The whole state of another run, on the shardings of `like`."""
    folder, step = find(path)
    with _open_to_read(folder) as manager:
        return restore(manager, step, like)


@contextlib.contextmanager
def _open_to_read(folder: epath.Path, alone: bool = False) -> Iterator[ocp.CheckpointManager]:
    """Reads without Orbax's warning that a checkpoint opened for reading cannot be saved to.

    `alone`: only this process of a job reads, and does not wait for the others.
    """
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        options = ocp.CheckpointManagerOptions(read_only=True)
        if alone and jax.process_count() > 1:
            me = jax.process_index()
            options.multiprocessing_options = ocp.options.MultiprocessingOptions(
                primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"alone{me}"
            )
        with ocp.CheckpointManager(absolute(folder), options=options) as manager:
            yield manager
    finally:
        logging.set_verbosity(before)
