"""The stage `evaluate` of an experiment with branches: evaluates each one, then compares them."""

from etils import epath

from icl_jax.config import ConfigError, ExperimentConfig, StageError
from icl_jax.evaluation.compare.compare import compare
from icl_jax.evaluation.evaluate import evaluate_run
from icl_jax.experiment.branches import (
    TRUNK,
    Branch,
    has_trunk,
    one_by_one,
    plan_branches,
    trunk_checkpoint,
    trunk_config,
)
from icl_jax.experiment.report.report import write_report
from icl_jax.training.model_at import model_at
from icl_jax.training.run_record import last_step, require_trained


def evaluate_branches(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Evaluates each branch and writes WORKDIR/comparison.json, .md and .png.

    All metrics with all tests are in WORKDIR/comparison/.
    """
    evaluations = evaluate_each(config, workdir)
    if len(evaluations) == 1:
        print(f"there is one arm, {next(iter(evaluations))}: nothing to compare it with")
        return
    reference = next(arm for arm in evaluations if arm.startswith(config.branches.reference))
    resamples = config.evaluation.resamples
    comparison = compare(evaluations, reference, workdir / "comparison", resamples)
    write_report(comparison, workdir)


def evaluate_each(config: ExperimentConfig, workdir: epath.Path) -> dict[str, list[epath.Path]]:
    """Arm -> the results of its seeds; arms with several learning rates count as several."""
    trunk = Branch(TRUNK, TRUNK, config, epath.Path(trunk_checkpoint(config, workdir)))
    models = [trunk, *plan_branches(config, workdir)]
    models = [model for arm in config.branches.arms for model in models if model.arm == arm]
    _require_trained(config, workdir, models)
    found: dict[str, list[epath.Path]] = {_without_seed(model): [] for model in models}
    for model in one_by_one(models, "evaluating"):
        output = workdir / "evaluation" / "trunk.json" if model.arm == TRUNK else None
        brief = len(found) > 1  # then all are compared
        path = evaluate_run(model.config, model.workdir, output, brief)
        found[_without_seed(model)].append(path)
    return found


def check_trunk(config: ExperimentConfig) -> None:
    """Stops if the trunk is someone else's model that should be evaluated but cannot be."""
    start = config.training.start_from
    if TRUNK in config.branches.arms and not has_trunk(config) and start:
        try:
            model_at(start, config.evaluation.tokenizer)
        except (ConfigError, StageError) as error:
            raise ConfigError(f"training.start_from, which is evaluated too: {error}") from None


def _require_trained(config: ExperimentConfig, workdir: epath.Path, models: list[Branch]) -> None:
    """Checks all of them before the first is evaluated: unfinished runs must not be compared."""
    for model in models:
        if model.arm != TRUNK:
            require_trained(model.config, model.workdir)
        elif has_trunk(config) and last_step(workdir) is not None:  # else it is not ours
            require_trained(trunk_config(config), workdir)


def _without_seed(model: Branch) -> str:
    return model.name.partition("-seed")[0]
