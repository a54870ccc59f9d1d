"""Which run a workdir holds, recorded in `config.json` so that another run is not mixed into it.

The model that a run started from is identified by its content, not its path: workdirs may be moved.
"""

import dataclasses
import json
import math
import zlib

from etils import epath
import jax
from jax.sharding import Mesh

from icl_jax.config import ConfigError, ExperimentConfig, StageError
from icl_jax.config.tree import differences, to_dict
from icl_jax.data.input_pipeline import Data
from icl_jax.files.remote import is_remote, read_text
from icl_jax.files.step_folder import write_json
from icl_jax.training import checkpoint
from icl_jax.training.model_at import find_model
from icl_jax.training.train_state import dropout_keys
from icl_jax.workers.job import gather

# These fields change how a run is computed or stored, not what it learns.
FREE_FIELDS = (
    "mesh", "model.remat", "model.attention", "data.workers", "data.prefetch",
    "training.accumulate", "training.rate_may_jump",
    "training.checkpoint_every", "training.keep_last", "training.keep_every", "training.log_every",
)  # fmt: skip
# Parts of a config that are about other stages or other runs.
OTHER_PARTS = ("mesh.", "design.", "branches.", "rounds:", "evaluation.")
_START = "training.start_from"


def record_run(config: ExperimentConfig, workdir: epath.Path, data: Data) -> None:
    """Writes `config.json`; the first process of a job does, if all would write the same."""
    content = {"config": to_dict(config), "data": data.fingerprint()}
    content |= {"start": find_start(config), "steps": planned_steps(config, data)}
    content["plan"] = data.plan_version
    checks = {name: zlib.crc32(json.dumps(part).encode()) >> 1 for name, part in content.items()}
    wrong = [name for name, own in checks.items() if len({*gather(f"run: {name}", own)}) > 1]
    if wrong:
        raise StageError(
            f"a run is not the same on all hosts of this job: {', '.join(wrong)}; expected the "
            "same command, records and starting model on each"
        )
    if jax.process_index() != 0:
        return
    workdir.mkdir(parents=True, exist_ok=True)
    write_json(workdir / "config.json", content)


def planned_steps(config: ExperimentConfig, data: Data) -> int:
    """How many steps the run has in total."""
    training = config.training
    return math.ceil(training.epochs * (data.steps_per_epoch or 0)) or training.steps


def last_step(workdir: epath.Path) -> int | None:
    """The step of the last finished checkpoint; None: there is none."""
    return max(checkpoint.finished_steps(workdir / "checkpoints"), default=None)


def find_start(config: ExperimentConfig) -> dict | None:
    """JSON that identifies the model of `training.start_from`; None: there is none."""
    start, found = config.training.start_from, {}
    if not start:
        return None
    try:
        place = find_model(start)
        if place.is_run:
            found["step"] = place.step
        if not is_remote(start):  # at a URL the weights are too far to be read for this
            return found | {"checksum": place.checksum()}
    except (ConfigError, StageError, OSError):
        if not is_remote(start):
            return None  # other checks report what is missing
    return found | {"path": start}


def run_problems(config: ExperimentConfig, workdir: epath.Path, data: Data) -> list[str]:
    """What is wrong if the run continued from its workdir, or began from its start."""
    steps, done, start = planned_steps(config, data), last_step(workdir), find_start(config)
    if done is None:  # there is no other run to mix up
        return _too_far(config, steps, (start or {}).get("step", 0))
    held = _read(workdir)
    if held is None:
        return []
    free = ()
    if config.optimizer.schedule == "constant":  # the rate at a step does not depend on the last
        free = ("training.steps", "training.epochs")
    wrong = _differences(held, config, free, same_start="start" not in held)
    if "start" in held and (start or not config.training.start_from):
        wrong += differences(held["start"] or {}, start or {}, f"{_START}.")
    if held["data"] != data.fingerprint():
        wrong.append("data: the record files changed")
    plan = held.get("plan", 1)  # older runs have none
    if plan != data.plan_version and done < steps:
        wrong.append(
            "data: its rows were arranged by another version of icl_jax, the rest would come in "
            f"another order (plan {plan} there, {data.plan_version} here)"
        )
    if not wrong and done > steps:
        wrong = [f"it has done {done} steps, more than the requested {steps}"]
    return [_other_config(workdir, wrong)] if wrong else []


def require_trained(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Stops unless the workdir holds the finished run of this config; reads no records."""
    done, held = last_step(workdir), _read(workdir)
    again = "rerun the command with --stages=train"
    if done is None or held is None:
        raise StageError(f"there is no trained model in {workdir}; {again}")
    if wrong := _differences(held, config, ("training.steps",), same_start=False):
        raise ConfigError(_other_config(workdir, wrong))
    steps = config.training.steps or held.get("steps", done)
    if done < steps:
        raise StageError(f"{workdir} has done {done} of {steps} steps; {again}")
    if done > steps:
        raise ConfigError(_other_config(workdir, [f"it has done {done} steps, not {steps}"]))


def settle_dropout_keys(
    config: ExperimentConfig, workdir: epath.Path, mesh: Mesh
) -> ExperimentConfig:
    """The config with `auto` dropout keys resolved: a run keeps the kind that it began with."""
    if not config.training.dropout:
        return config
    held = None if last_step(workdir) is None else _read(workdir)
    keys = dropout_keys(config.training, mesh)
    if config.training.dropout_keys == "auto" and held is not None:
        keys = held["config"]["training"]["dropout_keys"]
    training = dataclasses.replace(config.training, dropout_keys=keys)
    return dataclasses.replace(config, training=training)


def _read(workdir: epath.Path) -> dict | None:
    file = workdir / "config.json"
    if not file.exists():
        return None
    held = json.loads(read_text(file))
    held["config"]["training"].setdefault("dropout_keys", "threefry")  # the only kind at that time
    return held


def _differences(
    held: dict, config: ExperimentConfig, free: tuple[str, ...], *, same_start: bool
) -> list[str]:
    """The fields that change what a run learns and differ; the start's path if it must not."""
    free = (*FREE_FIELDS, *free, *([] if same_start else [_START]))
    if config.training.dropout_keys == "auto" or not config.training.dropout:
        free += ("training.dropout_keys",)
    return [
        line
        for line in differences(held["config"], to_dict(config))
        if not line.startswith((*(f"{name}:" for name in free), *OTHER_PARTS))
    ]


def _too_far(config: ExperimentConfig, steps: int, started: int) -> list[str]:
    if config.training.start_with != "everything" or started <= steps:
        return []
    return [
        f"{_START} {config.training.start_from} has done {started} steps, more than the requested "
        f"{steps}; raise training.steps, or name an earlier checkpoint (WORKDIR/checkpoints/STEP)"
    ]


def _other_config(workdir: epath.Path, wrong: list[str]) -> str:
    return (
        f"{workdir} belongs to a run of another config ({', '.join(wrong)}); "
        "choose another --workdir, or undo the difference"
    )
