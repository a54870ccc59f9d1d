"""The stages of an experiment: everything is checked before the first one starts.

What a stage needs is imported when it runs: a wrong flag is reported without waiting for JAX.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import TYPE_CHECKING

from etils import epath

from icl_jax.config import ConfigError, ExperimentConfig
from icl_jax.files.remote import file_system, is_remote

if TYPE_CHECKING:
    from icl_jax.experiment.branches import Branch


def _check(config: ExperimentConfig, workdir: epath.Path) -> None:
    from icl_jax.models.check import check
    from icl_jax.workers.job import job_size

    if job_size() > 1:
        raise ConfigError(
            f"the stage check runs in one process, but this job has {job_size()}; run it on one "
            "host, with a mesh of that host's devices (--config.mesh.data=-1)"
        )
    check(config, workdir)


def _design(config: ExperimentConfig, workdir: epath.Path) -> None:
    from icl_jax.design.stage import design

    design(config, workdir)


def _train(config: ExperimentConfig, workdir: epath.Path) -> None:
    from icl_jax.experiment.branches import has_trunk, one_by_one, plan_branches, trunk_config
    from icl_jax.training.train import train
    from icl_jax.workers.job import barrier

    if not config.branches.arms:
        train(config, workdir)
        return
    if has_trunk(config):
        train(trunk_config(config), workdir)
    barrier("the trunk is trained")
    for branch in one_by_one(plan_branches(config, workdir), "training branch"):
        train(branch.config, branch.workdir, brief=True)


def _evaluate(config: ExperimentConfig, workdir: epath.Path) -> None:
    from icl_jax.evaluation.evaluate import evaluate_run
    from icl_jax.experiment.comparison import evaluate_branches
    from icl_jax.workers.job import on_first

    evaluate = evaluate_branches if config.branches.arms else evaluate_run
    on_first("evaluate", evaluate, config, workdir)


# In the order in which they run.
STAGES: dict[str, Callable] = {
    "check": _check, "design": _design, "train": _train, "evaluate": _evaluate
}  # fmt: skip


def default_stages(config: ExperimentConfig) -> list[str]:
    """Those that the config has work for."""
    before = ["design"] if config.design.corpus.files else []
    return [*before, "train", *(["evaluate"] if config.evaluation.tasks else [])]


def run_stages(config: ExperimentConfig, workdir: epath.Path, stages: Sequence[str]) -> None:
    """Runs the stages in their order; whatever is complete for the same inputs is reused.

    In a job of several processes all of them design and train, and the first one evaluates.
    """
    from icl_jax.workers.job import on_first

    _keep_compiled(workdir)
    if is_remote(workdir):
        file_system(workdir)  # stops if nothing can open it
    if config.rounds > 1:
        from icl_jax.experiment.rounds.rounds import run_rounds

        run_rounds(config, workdir, stages)
        return
    on_first("check the stages", _check_stages, config, workdir, stages)
    for name in STAGES:
        if name == "train" and name in stages:
            evaluated = "evaluate" in stages
            on_first("check the training", _check_before_training, config, workdir, evaluated)
        if name in stages:
            STAGES[name](config, workdir)


def _keep_compiled(workdir: epath.Path) -> None:
    """Arms of one shape, and a run that continues, need not be compiled again."""
    import jax

    if jax.config.jax_compilation_cache_dir is None and not is_remote(workdir):
        jax.config.update("jax_compilation_cache_dir", str((workdir / "compiled").resolve()))


def _check_stages(config: ExperimentConfig, workdir: epath.Path, stages: Sequence[str]) -> None:
    if "design" in stages and "train" in stages:
        _check_before_design(config, workdir)  # not after hours of designing
    if "evaluate" in stages:
        _check_evaluation(config)


def _check_before_design(config: ExperimentConfig, workdir: epath.Path) -> None:
    from icl_jax.experiment.branches import has_trunk, plan_branches, trunk_config
    from icl_jax.training.checks import check_before_design

    if has_trunk(config) or not config.branches.arms:
        check_before_design(trunk_config(config), workdir)
    for branch in plan_branches(config, workdir):
        check_before_design(_as_can_be_checked(branch, config), workdir)


def _check_evaluation(config: ExperimentConfig) -> None:
    from icl_jax.evaluation.evaluate import check_before_design
    from icl_jax.experiment.comparison import check_trunk

    check_before_design(config)
    check_trunk(config)


def _check_before_training(config: ExperimentConfig, workdir: epath.Path, evaluated: bool) -> None:
    """Stops on everything that any run would stop on, before the first one trains."""
    from icl_jax.evaluation.evaluate import check_before_training
    from icl_jax.experiment.branches import has_trunk, plan_branches, trunk_config
    from icl_jax.training.checks import check_run

    branches = plan_branches(config, workdir)
    if evaluated and not branches:
        check_before_training(config, workdir)
    if branches and has_trunk(config):
        _check_trunk(trunk_config(config), workdir, branches)
    for branch in branches:
        check_run(_as_can_be_checked(branch, config), branch.workdir)
        if evaluated:
            check_before_training(branch.config, branch.workdir)


def _check_trunk(
    config: ExperimentConfig, workdir: epath.Path, branches: Sequence["Branch"]
) -> None:
    from icl_jax.training.checks import check_run
    from icl_jax.training.run_record import last_step, planned_steps

    steps, done = planned_steps(config, check_run(config, workdir)), last_step(workdir)
    begun = [branch.name for branch in branches if last_step(branch.workdir) is not None]
    if begun and done is not None and done < steps:
        raise ConfigError(
            f"{', '.join(begun)} branched off at step {done} of {workdir}, which would now "
            f"continue to step {steps}; choose another --workdir, or undo the difference"
        )


def _as_can_be_checked(branch: "Branch", config: ExperimentConfig) -> ExperimentConfig:
    """The branch as it is if it has begun; else as if it began where its trunk begins."""
    if (branch.workdir / "config.json").exists():
        return branch.config
    training, own = config.training, branch.config.training
    begin = {"start_from": training.start_from}
    if own.start_with == "everything":  # of the trunk, which may begin with weights alone
        begin["start_with"] = training.start_with
    return dataclasses.replace(branch.config, training=dataclasses.replace(own, **begin))
