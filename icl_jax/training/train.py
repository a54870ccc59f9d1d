"""The stage `train`: from records to checkpoints; continues wherever it was stopped."""

import contextlib
import signal
import time

from etils import epath
import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh
import optax

from icl_jax.config import ExperimentConfig, StoppedError
from icl_jax.data.input_pipeline import Data, make_batches
from icl_jax.files.folder_lock import alone_in
from icl_jax.models import abstract
from icl_jax.sharding import make_mesh, own_rows, put_rows
from icl_jax.training import checkpoint
from icl_jax.training.checks import check_run
from icl_jax.training.goodput import Goodput
from icl_jax.training.hardware import peak_memory
from icl_jax.training.metrics import MetricsLog
from icl_jax.training.model_at import find_model
from icl_jax.training.optimizer import learning_rate, make_optimizer
from icl_jax.training.run_record import planned_steps, record_run, settle_dropout_keys
from icl_jax.training.train_state import (
    Batch,
    TrainState,
    abstract_batch,
    abstract_state,
    compile_train_step,
    init_state,
)


def train(config: ExperimentConfig, workdir: epath.Path, brief: bool = False) -> TrainState:
    """Trains to the last step; on SIGTERM or Ctrl-C it saves, and can be continued.

    `brief`: announce the run in one line instead of several. A second command in the same workdir
    is refused; in a job of several processes the first holds the workdir for all.
    """
    goodput = Goodput(workdir)
    with contextlib.ExitStack() as held:
        # A run that cannot start leaves no folder behind: a new one is locked after the checks.
        data = None if workdir.exists() else check_run(config, workdir)
        held.enter_context(alone_in(workdir))
        return _train(config, workdir, data or check_run(config, workdir), goodput, brief)


def _train(
    config: ExperimentConfig, workdir: epath.Path, data: Data, goodput: Goodput, brief: bool
) -> TrainState:
    mesh = make_mesh(config.mesh)
    config = settle_dropout_keys(config, workdir, mesh)
    steps, schedule = plan_steps(config, data)
    optimizer = make_optimizer(config.optimizer, schedule)
    record_run(config, workdir, data)
    with checkpoint.open_checkpoints(workdir, config.training) as checkpoints:
        state = start(config, optimizer, mesh, checkpoints)
        first = int(state.step)
        if first >= steps:
            own = checkpoints.latest_step() is not None
            where = workdir / "checkpoints" if own else config.training.start_from
            _say(f"training is complete: {first} steps in {where}")
            return state
        lines = describe(config, data, mesh, first, steps)
        _say(lines[-1] if brief else "\n".join(lines))
        goodput.continue_from(first)
        with goodput.spent_on("compile"):
            train_step = compile_train_step(config, optimizer, schedule, mesh)
        with (
            contextlib.closing(open_batches(config, data, mesh, first, steps)) as batches,
            MetricsLog(config, workdir, first, steps, goodput) as log,
            StopSignals() as stop,
        ):
            goodput.begin_steps()
            for step in range(first + 1, steps + 1):
                batch, waited = next_batch(batches, config, mesh)
                state, metrics = train_step(state, batch)
                log.push(step, metrics, waited)
                stopping = stop.requested(step)
                if stopping or step == steps or step % config.training.checkpoint_every == 0:
                    log.flush()  # stops here rather than save a state that is not finite
                    with goodput.spent_on("checkpoint"):
                        log.keep()
                        checkpoint.save(checkpoints, config, state, batches)
                    goodput.note(step)
                if stopping:
                    break
            with goodput.spent_on("checkpoint"):
                checkpoints.wait_until_finished()
            goodput.note(step)
    done = int(state.step)
    _say(
        f"{done} of {steps} steps done, loss {log.last_loss:.4f}, peak memory {peak_memory()}; "
        f"{workdir / 'checkpoints'}\n{goodput.report()}"
    )
    if done < steps:
        _say("stopped by a signal; rerun the command to continue from here")
        raise StoppedError
    return state


def _say(text: str) -> None:
    """Prints, but of several processes only in the first."""
    if jax.process_index() == 0:
        print(text, flush=True)


def plan_steps(config: ExperimentConfig, data: Data) -> tuple[int, optax.Schedule]:
    """The number of steps, and the learning rate at each."""
    steps = planned_steps(config, data)
    epoch = [data.steps_per_epoch] if config.training.epochs else []
    return steps, learning_rate(config.optimizer, config.optimizer.schedule_steps or steps, *epoch)


def start(config: ExperimentConfig, optimizer, mesh: Mesh, checkpoints) -> TrainState:
    """This run's latest checkpoint, or what `start_from` names, or a fresh model."""
    like = abstract_state(config, optimizer, mesh)
    if checkpoints.latest_step() is not None:
        return checkpoint.restore(checkpoints, checkpoints.latest_step(), like)
    source, training = config.training.start_from, config.training
    if not source:
        return init_state(config, optimizer, mesh)
    if training.start_with == "everything":
        return checkpoint.restore_from(source, like)
    model = find_model(source).load(mesh, config=config.model)
    return init_state(config, optimizer, mesh, model)


def open_batches(config: ExperimentConfig, data: Data, mesh: Mesh, first: int, steps: int):
    """This host's part of the batches from step `first` on, read ahead."""
    return make_batches(
        data,
        start=first,
        steps=steps,
        rows=own_rows(abstract_batch(config, mesh)["tokens"]),
        workers=config.data.workers,
        prefetch=config.data.prefetch,
        pad_token_id=getattr(config.model, "pad_token_id", 0),
    )


def next_batch(batches, config: ExperimentConfig, mesh: Mesh) -> tuple[Batch, float]:
    """The next batch on its devices, and the seconds spent waiting for it."""
    asked = time.perf_counter()
    local = next(batches)
    waited = time.perf_counter() - asked
    return {
        name: put_rows(local[name], like) for name, like in abstract_batch(config, mesh).items()
    }, waited


def describe(config: ExperimentConfig, data: Data, mesh: Mesh, first: int, steps: int) -> list[str]:
    """What is about to run, in a few lines."""
    shape = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    count = sum(x.size for x in jax.tree.leaves(abstract(config.model)[1]))
    return [
        f"{type(config.model).__name__} of {count:,} parameters, mesh {shape}",
        *(
            f"{source.name}: {source.num_records:,} records, {source.num_tokens:,} tokens in "
            f"{source.num_rows:,} rows, {source.filled:.0%} filled"
            for source in data.sources
        ),
        f"steps {first + 1} to {steps} of {config.batch_size} x {config.sequence_length} tokens, "
        f"objective {config.training.objective}, {mesh.size} device(s) of kind "
        f"{jax.devices()[0].device_kind}; compiling",
    ]


class StopSignals:
    """Notes SIGTERM and Ctrl-C, so that the run can save first; a second Ctrl-C kills it.

    In a job of several processes JAX itself notes SIGTERM and informs the others.
    """

    def __enter__(self):
        self._came, self._job = False, jax.process_count() > 1
        numbers = (signal.SIGINT,) if self._job else (signal.SIGINT, signal.SIGTERM)
        self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def _note(self, number: int, frame) -> None:
        self._came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._job:
            signal.raise_signal(signal.SIGTERM)

    def requested(self, step: int) -> bool:
        """Whether to stop after this step; all hosts of a run agree."""
        if self._job:
            return multihost_utils.reached_preemption_sync_point(step)
        return self._came

    def __exit__(self, *error) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
