"""Learning rates that cannot be meant: a warm-up beyond the run, a jump where another run ended."""

import dataclasses
import json
import math

from icl_jax.config import ConfigError, ExperimentConfig, OptimizerConfig
from icl_jax.config.tree import differences, to_dict
from icl_jax.files.remote import read_text
from icl_jax.training import checkpoint
from icl_jax.training.optimizer import learning_rate

SAME_RATE = 0.01  # rates that differ by less, relative to the larger, count as one


def warmup_problems(config: ExperimentConfig, steps_per_epoch: float | None = None) -> list[str]:
    """What is wrong if the warm-up ends after the run or its schedule.

    Branches by steps carry a trunk on: they may end its warm-up. Epochs suffice to compare with the
    run; `steps_per_epoch` is needed only where a schedule in steps ends before it.
    """
    optimizer, training, branches = config.optimizer, config.training, config.branches
    unit, warmup, end, of = "steps", optimizer.warmup, training.steps, "training.steps"
    if training.epochs:
        unit, end, of = "epochs", training.epochs, "training.epochs (in a branch branches.epochs)"
    elif branches.arms and branches.steps:
        end, of = end + branches.steps, "training.steps + branches.steps"
    # Steps of the unit; 0: known once the records are there.
    steps = (steps_per_epoch or 0) if training.epochs else 1
    if steps and 0 < optimizer.schedule_steps <= (end * steps or math.inf):
        end, of = optimizer.schedule_steps, "optimizer.schedule_steps"
        unit, warmup = "steps", warmup * steps
    if not end or warmup <= end:  # without an end, something else is wrong
        return []
    return [
        f"the warm-up would never end: expected optimizer.warmup (in a branch by epochs "
        f"branches.optimizer.warmup) of at most {end:g} {unit}, {of}, got {warmup:g} {unit}; lower "
        "it (it counts in epochs where epochs are trained), or train for longer"
    ]


def rate_problems(
    config: ExperimentConfig, steps: int, steps_per_epoch: float | None = None
) -> list[str]:
    """What is wrong if the rate jumps where a run goes on with everything of another.

    `steps` are those of this run; 0: not known yet.
    """
    training = config.training
    asked = training.start_from and training.start_with == "everything"
    if not asked or training.rate_may_jump or not (steps or config.optimizer.schedule_steps):
        return []
    try:
        theirs = checkpoint.read_config(training.start_from)
        folder, done = checkpoint.find(training.start_from)
    except ConfigError:
        return []  # reported with what else is wrong with the start
    before = _schedule_of(theirs, *_planned(theirs, folder.parent))
    ours = _schedule_of(config, steps, steps_per_epoch)
    if ours is None:
        return []  # known once the records are there
    if before is None:
        return [
            f"the learning rate that training.start_from {training.start_from} had is not known: "
            f"expected the steps of its epochs in {folder.parent / 'config.json'}; start from its "
            "workdir as it was written, or set training.rate_may_jump=True"
        ]
    (there, schedule_there), (here, schedule_here) = before, ours
    rate, own = float(schedule_there(done)), float(schedule_here(done))
    if abs(rate - own) <= SAME_RATE * max(rate, own):
        return []
    wrong = ", ".join(differences(to_dict(there), to_dict(here), "optimizer."))
    return [
        f"the learning rate would jump from {rate:.3g} to {own:.3g} at step {done}, where "
        f"training.start_from {training.start_from} stands ({wrong}); set these fields as they are "
        "there, so that it continues, or training.rate_may_jump=True if the jump is meant"
    ]


def _planned(config: ExperimentConfig, workdir) -> tuple[int, float | None]:
    """Steps of a run and of its epoch, as its workdir recorded them; 0: that is not there."""
    if not config.training.epochs:
        return config.training.steps, None
    record = workdir / "config.json"
    steps = json.loads(read_text(record)).get("steps", 0) if record.exists() else 0
    return steps, steps / config.training.epochs


def _schedule_of(config: ExperimentConfig, steps: int, steps_per_epoch: float | None):
    """The optimiser with its end written out, and its rate at each step; None: not known."""
    optimizer = config.optimizer
    end = optimizer.schedule_steps or steps
    if not end or (config.training.epochs and not steps_per_epoch):
        return None
    epoch = [steps_per_epoch] if config.training.epochs else []
    named: OptimizerConfig = dataclasses.replace(optimizer, schedule_steps=end)
    return named, learning_rate(optimizer, end, *epoch)
