"""The rounds of an experiment as configs: where each begins, its encoder, its runs."""

import dataclasses
from typing import NamedTuple

from etils import epath

from icl_jax.config import EvaluationConfig, ExperimentConfig, TrainingConfig
from icl_jax.design.folders import BRANCHES, PREFIX, arm_folder
from icl_jax.evaluation.task import task_class
from icl_jax.evaluation.tasks import TASKS
from icl_jax.experiment.branches import Branch, plan_branches, trunk_config

UNCHANGED = "unchanged"  # the arm that continues with the examples of the previous round


class Round(NamedTuple):
    """One round, as an experiment with branches of its own."""

    number: int
    config: ExperimentConfig
    workdir: epath.Path

    @property
    def references(self) -> list[Branch]:
        """The branches of the reference arm, seed after seed; the next round is the first one's."""
        wanted = self.config.branches.reference
        return [
            branch for branch in plan_branches(self.config, self.workdir) if branch.arm == wanted
        ]


def first_round(config: ExperimentConfig, workdir: epath.Path) -> Round:
    """The experiment itself; the schedule of its learning rate ends with the last round."""
    return Round(1, dataclasses.replace(trunk_config(config), rounds=1), workdir)


def round_folder(workdir: epath.Path, number: int) -> epath.Path:
    """The files of a round; for the first, only the one that says it is complete."""
    return workdir / "rounds" / str(number)


def later_round(first: Round, before: Round, threshold: float) -> Round:
    """The round after `before`: it begins where that one's reference ended, and searches with it.

    The evaluation stays that of round 1, so that rounds can be compared.
    """
    config, number = first.config, before.number + 1
    workdir = round_folder(first.workdir, number)
    design = config.design
    return Round(
        number,
        dataclasses.replace(
            config,
            training=_continue_from(config, before),
            design=dataclasses.replace(
                design,
                encoder=dataclasses.replace(
                    design.encoder, folder=str(encoder_folder(workdir)), max_tokens=0
                ),
                search=dataclasses.replace(design.search, min_similarity=threshold),
            ),
            evaluation=_measure_as_first(config.evaluation, first.workdir),
        ),
        workdir,
    )


def encoder_folder(workdir: epath.Path) -> epath.Path:
    """The folder of the model that a round searches with."""
    return workdir / "encoder"


def unchanged_branches(own: Round, before: Round) -> list[Branch]:
    """The reference of a round, but with the examples of the previous round."""
    found = []
    for branch in own.references:
        data, name = branch.config.data, branch.name.replace(branch.arm, UNCHANGED, 1)
        folder = str(arm_folder(before.workdir, branch.arm))
        sources = tuple(folder if s == PREFIX + branch.arm else s for s in data.sources)
        config = dataclasses.replace(branch.config, data=dataclasses.replace(data, sources=sources))
        found.append(Branch(name, UNCHANGED, config, own.workdir / BRANCHES / name))
    return found


def _continue_from(config: ExperimentConfig, before: Round) -> TrainingConfig:
    """There is no trunk to train: branches begin at the reference of the previous round."""
    training, steps = config.training, config.branches.steps
    begin = str(before.references[0].workdir)
    if steps:
        ended = before.config.training.steps + steps
        return dataclasses.replace(training, start_from=begin, start_with="everything", steps=ended)
    return dataclasses.replace(
        training, start_from=begin, start_with="weights", steps=0, epochs=0.0
    )


def _measure_as_first(evaluation: EvaluationConfig, workdir: epath.Path) -> EvaluationConfig:
    """What tasks would read from a run's own design they read from that of round 1."""
    for name in TASKS:
        evaluation = task_class(name).with_design(evaluation, workdir)
    return evaluation
