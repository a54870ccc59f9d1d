"""The runs of table 1: trains the missing ones, evaluates all, and writes the table."""

import json

from etils import epath

from icl_jax.config import ConfigError, ExperimentConfig, StageError
from icl_jax.design.arms import ARMS
from icl_jax.design.folders import PREFIX, is_arm
from icl_jax.evaluation import evaluate
from icl_jax.evaluation.compare.compare import compare
from icl_jax.experiment.branches import has_trunk, plan_branches
from icl_jax.experiment.comparison import check_trunk, evaluate_each
from icl_jax.experiment.stages import run_stages
from icl_jax.files.remote import read_text
from icl_jax.files.step_folder import beside, write_json
from icl_jax.studies.table1.report import (
    Setting,
    choose_rates,
    make_csv,
    make_markdown,
    make_numbers,
    scores_of,
)
from icl_jax.training.run_record import last_step


def run_table1(config: ExperimentConfig, workdir: epath.Path) -> dict:
    """Does everything not yet done, then writes the table; returns the content of table1.json."""
    check(config)
    # The design stage runs even if the design is complete: it may be from another corpus.
    run_stages(config, workdir, [*["design"] * bool(config.design.corpus.files), "train"])
    settings = read_settings(config, workdir, evaluate_each(config, workdir))
    to, comparison = workdir, None
    chosen = {setting.arm: setting.results for setting in choose_rates(settings)}
    if len(chosen) > 1:
        resamples = config.evaluation.resamples
        comparison = compare(chosen, config.branches.reference, to / "table1", resamples)
    numbers, text = make_numbers(settings, comparison), make_markdown(settings, comparison)
    for name, content in (("md", text), ("csv", make_csv(settings))):
        with beside(to / f"table1.{name}") as partial:
            partial.write_text(content)
    write_json(to / "table1.json", numbers)
    print(f"\n{text}\nwritten: {to}/table1.md, .csv, .json; all tests: {to}/table1/comparison.md")
    return numbers


def check(config: ExperimentConfig) -> None:
    """Stops early if something needed at the end is missing: branches, data, tokenizer."""
    if not config.branches.arms:
        raise ConfigError(
            "the config has no branches.arms, the rows of the table; expected one such as "
            "--config=configs/roberta_base_knn_tapt.py:all"
        )
    evaluate.check_before_design(config)
    check_trunk(config)


def design_is_missing(config: ExperimentConfig, workdir: epath.Path) -> bool:
    """Whether a corpus is named and an arm to train on has no records."""
    sources = config.data.sources if has_trunk(config) else ()
    wanted = {source.removeprefix(PREFIX) for source in sources if is_arm(source)}
    wanted |= {arm for arm in config.branches.arms if arm in ARMS}
    folder = workdir / "design" / "arms"
    built = all((folder / arm / "results.json").exists() for arm in wanted)
    return bool(config.design.corpus.files) and not built


def read_settings(
    config: ExperimentConfig, workdir: epath.Path, evaluations: dict[str, list[epath.Path]]
) -> list[Setting]:
    """The scores of every arm and rate, on the sets that all of them have."""
    rates = {
        branch.name.partition("-seed")[0]: (branch.arm, branch.config.optimizer.learning_rate)
        for branch in plan_branches(config, workdir)
    }
    found = {
        name: [scores_of(json.loads(read_text(path))["sts"]) for path in paths]
        for name, paths in evaluations.items()
    }
    every = [seed for seeds in found.values() for seed in seeds]
    common = [name for name in every[0] if all(name in seed for seed in every)]
    if not common:
        raise StageError(
            "no STS set has a score from every run; look at "
            f"{next(iter(evaluations.values()))[0].with_suffix('.md')}"
        )
    return [
        Setting(
            *rates.get(name, (name, None)),
            evaluations[name],
            [{task: seed[task] for task in common} for seed in seeds],
        )
        for name, seeds in found.items()
    ]


def list_runs(config: ExperimentConfig, workdir: epath.Path) -> str:
    """A line for everything to do, and whether it is done."""
    lines = [f"design: {'missing' if design_is_missing(config, workdir) else 'complete'}"]
    if has_trunk(config):
        lines.append(f"trunk: {_state(workdir)}")
    branches = plan_branches(config, workdir)
    lines += [f"{branch.name}: {_state(branch.workdir)}" for branch in branches]
    evaluated = sum(_state(branch.workdir).endswith("evaluated") for branch in branches)
    return "\n".join([*lines, f"{len(branches)} runs, {evaluated} of them evaluated"])


def _state(workdir: epath.Path) -> str:
    step = last_step(workdir)
    if step is None:
        return "not begun"
    evaluated = (workdir / "evaluation" / f"{step}.json").exists()
    return f"step {step}{', evaluated' * evaluated}"
