"""The runs that branch off a trained one, as the configs of ordinary runs.

The trunk is in WORKDIR, as any run; a branch in WORKDIR/branches/NAME. All of them read the
design of WORKDIR, and start from the same checkpoint, so they only differ in their examples.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import time
from typing import NamedTuple

from etils import epath

from icl_jax.config import BranchesConfig, ConfigError, DataConfig, ExperimentConfig
from icl_jax.config.design import PACKED
from icl_jax.design.folders import BRANCHES, planned_rows
from icl_jax.training.run_record import last_step

REGULAR, TRUNK = "regular", "trunk"  # the arms that do not come from the design
_SECONDS = 5.0  # a run that takes less was complete before, and says nothing about the others


class Branch(NamedTuple):
    """One run that branches off."""

    name: str  # of its folder
    arm: str
    config: ExperimentConfig
    workdir: epath.Path


def has_trunk(config: ExperimentConfig) -> bool:
    """Whether there is something to train before the branches; else they begin at `start_from`."""
    return bool(config.training.steps or config.training.epochs)


def trunk_config(config: ExperimentConfig) -> ExperimentConfig:
    """The run that the branches start from; its schedule ends where the last of them ends."""
    optimizer, branches = config.optimizer, config.branches
    falls = optimizer.schedule != "constant"
    if branches.arms and branches.steps and falls and not optimizer.schedule_steps:
        end = config.training.steps + config.rounds * branches.steps
        optimizer = dataclasses.replace(optimizer, schedule_steps=end)
    return dataclasses.replace(config, optimizer=optimizer)


def trunk_checkpoint(config: ExperimentConfig, workdir: epath.Path) -> str:
    """Where branches begin: at the trunk, or where a trunk with nothing to do would begin."""
    has_own = has_trunk(config) and last_step(workdir) is not None
    return str(workdir) if has_own else config.training.start_from


def plan_branches(config: ExperimentConfig, workdir: epath.Path) -> list[Branch]:
    """The branches in the order of their arms; stops if they would have nothing to start from."""
    branches = config.branches
    if branches.arms and branches.steps and not config.training.steps:
        raise ConfigError(
            "branches.steps continue from training.steps, but that is 0; set it to the step at "
            "which the branches begin (if training.start_from is already there, nothing is trained)"
        )
    if branches.arms and not has_trunk(config) and not config.training.start_from:
        raise ConfigError(
            "branches have nothing to start from; expected training.steps or training.epochs of "
            "the run they branch off, or training.start_from, an existing model"
        )
    return [
        _branch(config, workdir, arm, rate, seed)
        for arm in branches.arms
        if arm != TRUNK
        for rate in branches.learning_rates or (None,)
        for seed in range(branches.seeds)
    ]


def _branch(
    config: ExperimentConfig, workdir: epath.Path, arm: str, rate: float | None, seed: int
) -> Branch:
    name = arm + (f"-rate{rate:g}" if rate else "") + (f"-seed{seed}" if seed else "")
    config, begin = trunk_config(config), trunk_checkpoint(config, workdir)
    make = _more_steps if config.branches.steps else _more_epochs
    planned = dataclasses.replace(
        make(config, arm, rate, begin), seed=config.seed + seed, branches=BranchesConfig(), rounds=1
    )
    return Branch(name, arm, planned, workdir / BRANCHES / name)


def _more_steps(
    config: ExperimentConfig, arm: str, _: float | None, begin: str
) -> ExperimentConfig:
    """The trunk's training continues, with its optimiser and its place in the data."""
    steps = config.training.steps + config.branches.steps
    training = dataclasses.replace(
        config.training, steps=steps, start_from=begin, start_with="everything"
    )
    data = config.data if arm == REGULAR else _mixed(config, arm)
    return dataclasses.replace(config, data=data, training=training)


def _mixed(config: ExperimentConfig, arm: str) -> DataConfig:
    """The trunk's data up to its end, from there on a share of every batch from the arm."""
    data, share, end = config.data, config.branches.share, config.training.steps
    phases = data.phases or ((0, (1.0,) * len(data.sources)),)
    before = [(first, (*weights, 0.0)) for first, weights in phases if first < end]
    at_end = [(end, weights) for first, weights in phases if first <= end][-1]
    after = [
        (first, (*(weight / sum(weights) * (1 - share) for weight in weights), share))
        for first, weights in (at_end, *(phase for phase in phases if phase[0] > end))
    ]
    sources = (*data.sources, f"design:{arm}")
    return dataclasses.replace(data, sources=sources, phases=(*before, *after))


def _more_epochs(
    config: ExperimentConfig, arm: str, rate: float | None, begin: str
) -> ExperimentConfig:
    """The trunk's weights are trained from step 0, on the examples of the arm alone."""
    optimizer = config.branches.optimizer
    # The trunk may be packed where the arm has one query a row.
    pack = config.data.pack and planned_rows(config.design.examples, arm) == PACKED
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, sources=(f"design:{arm}",), phases=(), pack=pack),
        optimizer=dataclasses.replace(optimizer, learning_rate=rate or optimizer.learning_rate),
        training=dataclasses.replace(
            config.training,
            steps=0,
            epochs=config.branches.epochs,
            start_from=begin,
            start_with="weights",
        ),
    )


def one_by_one(branches: Sequence[Branch], doing: str) -> Iterator[Branch]:
    """Each in turn, after a line with its place, its name and roughly how much time is left."""
    longest = 0.0
    for number, branch in enumerate(branches, 1):
        left = longest * (len(branches) - number + 1)
        time_left = f"; about {show_time(left)} left" if longest > _SECONDS else ""
        print(f"\n{doing} {number} of {len(branches)}: {branch.name}{time_left}", flush=True)
        begun = time.monotonic()
        yield branch
        longest = max(longest, time.monotonic() - begun)


def show_time(seconds: float) -> str:
    """Seconds below two minutes, minutes below two hours, then hours."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
