"""The evaluation of one model on several tasks, and the stage `evaluate` of an experiment."""

import importlib
from pathlib import Path

from etils import epath
import jax
from jax.sharding import Mesh

from icl_jax.config import ConfigError, EvaluationConfig, ExperimentConfig, StageError
from icl_jax.config_tree import validate
from icl_jax.evaluation.subject import Subject, open_subject, planned_subject
from icl_jax.evaluation.task import Task, read_finished, run_task
from icl_jax.sharding import make_mesh
from icl_jax.step_folder import OtherInputsError, alone_in, beside, write_json

# Task -> its module and class; imported when it is asked for.
TASKS = {
    "sts": ("sts", "Sts"),
    "nq_open": ("natural_questions", "NaturalQuestions"),
    "glue": ("glue_zero_shot", "GlueZeroShot"),
    "perplexity": ("perplexity", "Perplexity"),
    "neighbour_gain": ("neighbour_gain", "NeighbourGain"),
}


def open_tasks(subject: Subject, config: EvaluationConfig) -> dict[str, Task]:
    """The tasks of a config, their data read and checked; stops with all that is wrong with any."""
    tasks, found = {}, []
    for name in config.tasks:
        module, kind = TASKS[name]
        module = importlib.import_module(f"icl_jax.evaluation.{module}")
        try:
            tasks[name] = getattr(module, kind)(subject, config)
        except (ConfigError, StageError) as error:
            found.append(f"{name}: {error}")
    if found:
        raise ConfigError("; ".join(found))
    return tasks


def evaluate(subject: Subject, config: EvaluationConfig, output: Path, mesh: Mesh) -> dict:
    """Runs what is not yet done; prints each task's table, writes `output` and the same as .md."""
    if output.suffix != ".json":
        raise ConfigError(f"--output must end in .json, got {output}")
    if not config.tasks:
        raise ConfigError(f"no task to evaluate; expected --tasks=, some of {', '.join(TASKS)}")
    _check_one_process()
    tasks = open_tasks(subject, config)
    bootstrap = {"resamples": config.resamples, "seed": config.seed}
    folder = output.with_suffix("")
    with alone_in(folder):
        for name, task in tasks.items():
            try:
                table = run_task(task, name, subject.identity, bootstrap, folder / name, mesh)
                print(f"\n{table}", flush=True)
            except OtherInputsError as error:
                raise StageError(
                    f"{error.path} was made from other inputs ({error.differences}); undo the "
                    "difference, delete that folder, or evaluate into another file "
                    "(icl_jax.evaluation.run --output=FILE.json)"
                ) from None
        results, tables = {"model": {"path": subject.path, **subject.identity}}, ""
        for name in TASKS:  # also those that an earlier command asked for
            if finished := read_finished(folder / name, subject.identity):
                results[name] = finished[0]
                tables += f"\n{finished[1]}"
        write_json(output, results)
        with beside(output.with_suffix(".md")) as partial:
            partial.write_text(f"# {subject.path}\n{tables}")
    print(f"results: {output}; line by line: {folder}/TASK/outputs.jsonl")
    return results


def evaluate_run(config: ExperimentConfig, workdir: epath.Path) -> dict:
    """The stage `evaluate`: the last checkpoint of a run."""
    validate(config)
    wanted = config.evaluation
    subject = open_subject(str(workdir), wanted.tokenizer, wanted.ema)
    return evaluate(subject, wanted, default_output(subject), make_mesh(config.mesh))


def check_before_training(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Stops on what the stage `evaluate` would stop on, hours earlier."""
    validate(config)
    _check_one_process()
    open_tasks(planned_subject(config, workdir), config.evaluation)


def default_output(subject: Subject) -> Path:
    """Where results go if the user names no file."""
    if subject.kind == "run":
        checkpoint = subject.network.parent
        name = checkpoint.name + ("-ema" if subject.ema else "")
        return checkpoint.parent.parent / "evaluation" / f"{name}.json"
    return Path("evaluation") / f"{Path(subject.path).resolve().name}.json"


def _check_one_process() -> None:
    if jax.process_count() > 1:
        raise ConfigError(
            f"expected one process, got {jax.process_count()}: one process evaluates, on all its "
            "devices; run --stages=evaluate by itself on one host"
        )
