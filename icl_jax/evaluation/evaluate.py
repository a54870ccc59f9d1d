"""The evaluation of one model on several tasks, and the stage `evaluate` of an experiment."""

from collections.abc import Callable
import dataclasses
from pathlib import Path

from etils import epath
from jax.sharding import Mesh

from icl_jax.config import (
    ConfigError,
    EvaluationConfig,
    ExperimentConfig,
    StageError,
)
from icl_jax.config.tree import validate
from icl_jax.evaluation.task import (
    Task,
    check_folder,
    read_finished,
    read_model,
    run_task,
    task_class,
)
from icl_jax.evaluation.tasks import TASKS
from icl_jax.files import mirror
from icl_jax.files.folder_lock import alone_in
from icl_jax.files.remote import is_remote
from icl_jax.files.step_folder import OtherInputsError, absolute, beside, write_json
from icl_jax.sharding import make_host_mesh
from icl_jax.training.model_at import ModelAt, model_at, planned_model


def open_tasks(model: ModelAt, config: EvaluationConfig) -> dict[str, Task]:
    """The tasks of a config, their data read and checked; stops with everything that is wrong."""
    tasks, found = _for_each(config, lambda task, config: task(model, config))
    if found:
        raise ConfigError("; ".join(found))
    return tasks


def _for_each(
    config: EvaluationConfig, work: Callable[[type[Task], EvaluationConfig], object]
) -> tuple[dict[str, object], list[str]]:
    """What `work` returns for each task, and the messages of those that it stops on.

    Data at a URL is read from a local copy.
    """
    local, made, found = config, {}, []
    if is_remote(config.data):
        local = dataclasses.replace(config, data=str(mirror.local_folder(config.data)))
    for name in config.tasks:
        task = task_class(name)
        if is_remote(config.data):
            for folder in task.folders:
                mirror.fetch(Path(local.data) / folder)
        try:
            made[name] = work(task, local)
        except (ConfigError, StageError) as error:
            message = str(error).replace(local.data, config.data)  # as the user named it
            found.append(f"{name}: {message}")
    return made, found


def evaluate(
    model: ModelAt,
    config: EvaluationConfig,
    output: epath.PathLike,
    mesh: Mesh,
    brief: bool = False,
) -> dict:
    """Runs what is not yet done; prints each task's table, writes `output` and the same as .md.

    `brief`: the tables are not printed, because a comparison of all models follows.
    """
    output = epath.Path(output)
    if output.suffix != ".json":
        raise ConfigError(f"--output must end in .json, got {output}")
    _check_call(config)
    tasks = open_tasks(model, config)
    bootstrap = {"resamples": config.resamples, "seed": config.seed}
    place = output.with_suffix("")
    folder = mirror.local_folder(place)
    with alone_in(folder):
        mirror.pull(folder)
        _check_folders(model, tasks, folder, place)  # all before the first one runs
        for name, task in tasks.items():
            table = run_task(task, name, model.identity, bootstrap, folder / name, mesh)
            if not brief:
                print(f"\n{table}", flush=True)
            results = _write(model, folder, output)
    more = "" if brief else f"; line by line: {place}/TASK/outputs.jsonl"
    print(f"results: {output}{more}", flush=True)
    return results


def _check_folders(model: ModelAt, tasks: dict[str, Task], folder: Path, place: epath.Path) -> None:
    """Stops if other tasks are of another model, or these were made from other inputs.

    `folder` is `place`, or its local copy.
    """
    where = "evaluate into another file (icl_jax.evaluation.run --output=FILE.json)"
    for name in TASKS:
        file = folder / name / "inputs.json"
        if name not in tasks and file.exists() and read_model(folder / name) != model.identity:
            raise StageError(f"{place / name} is of another model; delete it, or {where}")
    for name, task in tasks.items():
        try:
            check_folder(task, model.identity, folder / name)
        except OtherInputsError as error:
            raise StageError(
                f"{place / name} was made from other inputs ({error.differences}); undo the "
                f"difference, delete that folder, or {where}"
            ) from None


def _write(model: ModelAt, folder: Path, output: epath.Path) -> dict:
    """Writes every finished task, also those of earlier commands."""
    results, tables = {"model": {"path": model.path, **model.identity}}, ""
    for name in TASKS:
        if finished := read_finished(folder / name):
            results[name] = finished[0]
            tables += f"\n{finished[1]}"
    write_json(output, results)
    with beside(output.with_suffix(".md")) as partial:
        partial.write_text(f"# {model.path}\n{tables}")
    return results


def evaluate_run(
    config: ExperimentConfig,
    path: epath.PathLike,
    output: epath.Path | None = None,
    brief: bool = False,
) -> epath.Path:
    """Evaluates the last checkpoint of a run, or a model folder; returns where the results are."""
    validate(config)
    _check_call(config.evaluation)
    wanted = config.evaluation
    model = model_at(str(path), wanted.tokenizer, wanted.ema)
    output = output or default_output(model)
    evaluate(model, wanted, output, make_host_mesh(config.mesh), brief)
    return output


def check_before_design(config: ExperimentConfig) -> None:
    """Stops on a task that the model cannot do, and on wrong data, days before they are needed."""
    validate(config)
    _check_call(config.evaluation)
    _, found = _for_each(config.evaluation, lambda task, own: task.check(own, config.model))
    if found:
        raise ConfigError("; ".join(found))


def check_before_training(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Stops on everything that the stage `evaluate` would stop on, hours earlier."""
    validate(config)
    _check_call(config.evaluation)
    open_tasks(planned_model(config, workdir), config.evaluation)


def default_output(model: ModelAt) -> epath.Path:
    """Where results go if the user names no file."""
    place = model.place
    if place.is_run:
        name = f"{place.step}-ema.json" if model.ema else f"{place.step}.json"
        return place.workdir / "evaluation" / name
    return epath.Path("evaluation") / f"{absolute(model.path).name}.json"


def _check_call(config: EvaluationConfig) -> None:
    if not config.tasks:
        raise ConfigError(
            "no task to evaluate; expected evaluation.tasks (--tasks of icl_jax.evaluation.run), "
            f"some of {', '.join(TASKS)}"
        )
