"""The stage `evaluate` of an experiment with branches: every one, then all of them compared."""

from pathlib import Path

from etils import epath

from icl_jax.config import ExperimentConfig
from icl_jax.evaluation.compare import compare
from icl_jax.evaluation.evaluate import evaluate_run
from icl_jax.experiment.branches import TRUNK, plan_branches, trunk_checkpoint
from icl_jax.experiment.report import write_report


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
    comparison = compare(evaluations, reference, Path(workdir) / "comparison", resamples)
    write_report(comparison, Path(workdir))


def evaluate_each(config: ExperimentConfig, workdir: epath.Path) -> dict[str, list[Path]]:
    """Arm -> the results of its seeds; arms with several learning rates count as several."""
    found: dict[str, list[Path]] = {}
    branches = plan_branches(config, workdir)
    for arm in config.branches.arms:
        if arm == TRUNK:
            print("\ntrunk", flush=True)
            output = Path(workdir) / "evaluation" / "trunk.json"
            found[TRUNK] = [evaluate_run(config, trunk_checkpoint(config, workdir), output)]
        for branch in branches:
            if branch.arm == arm:
                print(f"\nbranch {branch.name}", flush=True)
                name = branch.name.partition("-seed")[0]
                found.setdefault(name, []).append(evaluate_run(branch.config, branch.workdir))
    return found
