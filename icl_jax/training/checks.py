"""All checks of a training run, made before anything is compiled.

In order: the config by itself, the mesh, the objective, the length, the learning rate, the model
that the run starts from; then its data, and the run that the workdir already holds.
"""

import dataclasses
import json
import math

from etils import epath
from jax.sharding import Mesh

from icl_jax.config import ConfigError, ExperimentConfig, OptimizerConfig, StageError
from icl_jax.config.tree import differences, find_problems, to_dict, type_problems
from icl_jax.data import synthetic
from icl_jax.data.input_pipeline import Data, open_data
from icl_jax.data.source import row_holds
from icl_jax.design.folders import PREFIX, arm_folder, is_arm, planned_rows
from icl_jax.files.remote import read_text
from icl_jax.models import huggingface
from icl_jax.models.kinds import KINDS, kind_of
from icl_jax.sharding import make_mesh
from icl_jax.training import checkpoint
from icl_jax.training.model_at import find_model
from icl_jax.training.optimizer import learning_rate
from icl_jax.training.run_record import last_step, planned_steps, run_problems
from icl_jax.training.start_tokenizer import planned_tokenizer_problems, start_tokenizer_problems

SAME_RATE = 0.01  # rates that differ by less, relative to the larger, count as one
_OTHER_VOCABULARY = (
    ". A model keeps its own vocabulary, so its records must be made with its own tokenizer "
    "(design.tokenizer.folder)"
)


def check_run(config: ExperimentConfig, workdir: epath.Path) -> Data:
    """The opened data of a run that can work; otherwise one ConfigError lists all problems."""
    found, data = _problems(config), None
    # Synthetic records are only made for a run that can work.
    if not (found and any(map(synthetic.is_synthetic, config.data.sources))):
        data, problems = _open_data(config, workdir)
        found += problems
    if data is not None:
        found += run_problems(config, workdir, data)
        epoch = data.steps_per_epoch
        found += warmup_problems(config, epoch)
        if last_step(workdir) is None:  # else it continues from its own checkpoint
            found += rate_problems(config, planned_steps(config, data), epoch)
        found += start_tokenizer_problems(config, workdir)
    if found:
        raise ConfigError("; ".join(found))
    return data


def check_before_design(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Stops on problems that can be found before the records exist."""
    found, made = _problems(config), config.design.examples.arms
    found += warmup_problems(config) + rate_problems(config, config.training.steps)
    for source in filter(is_arm, config.data.sources):
        arm = source.removeprefix(PREFIX)
        if arm not in made and not (workdir / "design" / "arms" / arm / "results.json").exists():
            found.append(
                f"data.sources or branches.arms names '{arm}', but design.examples.arms are "
                f"{', '.join(made)}; add it there"
            )
    if any(map(is_arm, config.data.sources)):
        found += planned_tokenizer_problems(config)
    if found:
        raise ConfigError("; ".join(found))


def _problems(config: ExperimentConfig) -> list[str]:
    found = find_problems(config)
    sizes = (config.batch_size, config.sequence_length, config.training.accumulate)
    if type_problems(config) or min(sizes) < 1:  # the other checks rely on these
        raise ConfigError("; ".join(found))
    found += _mesh_problems(config) + _objective_problems(config)
    return found + _length_problems(config) + _start_problems(config)


def _open_data(config: ExperimentConfig, workdir: epath.Path) -> tuple[Data | None, list[str]]:
    try:
        sources = _resolve_sources(config, workdir)
        data = open_data(sources, config.batch_size, config.sequence_length, config.seed)
    except (ConfigError, StageError) as error:
        return None, str(error).splitlines()
    problem = data.check_vocabulary(config.model.vocab_size)
    return data, [problem] if problem else []


def _resolve_sources(config: ExperimentConfig, workdir: epath.Path):
    """The data config with its sources replaced by the folders that they stand for."""
    sources = []
    for source in config.data.sources:
        if synthetic.is_synthetic(source):
            size = (config.model.vocab_size, config.sequence_length, config.seed)
            source = str(synthetic.make_source(source, workdir, *size))
        elif is_arm(source):
            source = _arm_source(config, workdir, source.removeprefix(PREFIX))
        sources.append(source)
    return dataclasses.replace(config.data, sources=tuple(sources))


def _arm_source(config: ExperimentConfig, workdir: epath.Path, arm: str) -> str:
    folder = str(arm_folder(workdir, arm))
    planned, held = planned_rows(config.design.examples, arm), row_holds(folder)
    if planned != held:
        raise ConfigError(
            f"{folder} was designed with examples.rows '{held}', but design.examples.rows is "
            f"'{planned}'; set it to '{held}', or delete that folder and run --stages=design again"
        )
    return folder


def _mesh_problems(config: ExperimentConfig) -> list[str]:
    try:
        return batch_problems(config, make_mesh(config.mesh))
    except ConfigError as error:
        return [str(error)]


def batch_problems(config: ExperimentConfig, mesh: Mesh) -> list[str]:
    """The problem if devices would get different numbers of rows of a part of a batch."""
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    if config.batch_size % (parts * config.training.accumulate):
        return [
            f"batch_size {config.batch_size} is not divisible by mesh.data {mesh.shape['data']} x "
            f"mesh.fsdp {mesh.shape['fsdp']} x training.accumulate {config.training.accumulate}; "
            "change one of them"
        ]
    return []


def _objective_problems(config: ExperimentConfig) -> list[str]:
    training, model, found = config.training, config.model, []
    if training.objective != kind_of(model).objective:
        able = [cls.__name__ for cls, kind in KINDS.items() if kind.objective == training.objective]
        needed = f"a {' or '.join(able)}" if able else "another objective"
        found.append(
            f"training.objective '{training.objective}' needs {needed}, "
            f"but model is a {type(model).__name__}"
        )
    if not getattr(model, "mlm_head", True):
        found.append("model.mlm_head is False, but training needs the head")
    kind, rate = (getattr(model, name, None) for name in ("attention", "attention_dropout"))
    if kind == "splash" and rate and training.dropout:
        found.append(
            f"model.attention 'splash' has no attention dropout, but model.attention_dropout is "
            f"{rate}; set it to 0, or training.dropout to False, or model.attention to 'auto'"
        )
    if training.objective == "masked_token" and not 0 <= training.mask_token_id < model.vocab_size:
        found.append(
            f"training.mask_token_id {training.mask_token_id} is outside the vocabulary of "
            f"{model.vocab_size}"
        )
    return found


def _length_problems(config: ExperimentConfig) -> list[str]:
    training, found = config.training, []
    if config.sequence_length < 2:
        found.append(
            f"a row needs at least 2 tokens to predict one, got sequence_length "
            f"{config.sequence_length}"
        )
    if not training.steps and not training.epochs:
        found.append("expected training.steps or training.epochs, both are 0")
    if training.epochs and len(config.data.sources) > 1:
        found.append(
            f"training.epochs counts passes over one source, but there are "
            f"{len(config.data.sources)}; set training.steps"
        )
    return found


def warmup_problems(config: ExperimentConfig, steps_per_epoch: float | None = None) -> list[str]:
    """The problem if the warm-up ends after the run or its schedule.

    Branches with steps continue a trunk, so they may end its warm-up. Epochs suffice to compare
    with the run; `steps_per_epoch` is only needed if a schedule in steps ends before it.
    """
    optimizer, training, branches = config.optimizer, config.training, config.branches
    unit, warmup, end, of = "steps", optimizer.warmup, training.steps, "training.steps"
    if training.epochs:
        unit, end, of = "epochs", training.epochs, "training.epochs (in a branch branches.epochs)"
    elif branches.arms and branches.steps:
        end, of = end + branches.steps, "training.steps + branches.steps"
    # Steps per unit; 0: known once the records exist.
    steps = (steps_per_epoch or 0) if training.epochs else 1
    if steps and 0 < optimizer.schedule_steps <= (end * steps or math.inf):
        end, of = optimizer.schedule_steps, "optimizer.schedule_steps"
        unit, warmup = "steps", warmup * steps
    if not end or warmup <= end:  # a missing end is reported elsewhere
        return []
    return [
        f"the warm-up would never end: expected optimizer.warmup (branches.optimizer.warmup in a "
        f"branch with epochs) of at most {end:g} {unit}, {of}, got {warmup:g} {unit}; lower it (it "
        "counts epochs if the length of the run is given in epochs), or train for longer"
    ]


def rate_problems(
    config: ExperimentConfig, steps: int, steps_per_epoch: float | None = None
) -> list[str]:
    """The problem if the rate would jump where a run continues another with everything.

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
        return []  # reported with the other problems of the start
    before = _schedule_of(theirs, *_planned(theirs, folder.parent))
    ours = _schedule_of(config, steps, steps_per_epoch)
    if ours is None:
        return []  # known once the records exist
    if before is None:
        return [
            f"the learning rate of training.start_from {training.start_from} is not known: "
            f"expected the steps of its epochs in {folder.parent / 'config.json'}; start from its "
            "original workdir, or set training.rate_may_jump=True"
        ]
    (there, schedule_there), (here, schedule_here) = before, ours
    rate, own = float(schedule_there(done)), float(schedule_here(done))
    if abs(rate - own) <= SAME_RATE * max(rate, own):
        return []
    wrong = ", ".join(differences(to_dict(there), to_dict(here), "optimizer."))
    return [
        f"the learning rate would jump from {rate:.3g} to {own:.3g} at step {done}, where "
        f"training.start_from {training.start_from} ends ({wrong}); set these fields to its values "
        "so that the rate continues, or training.rate_may_jump=True if the jump is intended"
    ]


def _planned(config: ExperimentConfig, workdir) -> tuple[int, float | None]:
    """Steps of a run and of its epoch, as recorded in its workdir; 0: not recorded."""
    if not config.training.epochs:
        return config.training.steps, None
    record = workdir / "config.json"
    steps = json.loads(read_text(record)).get("steps", 0) if record.exists() else 0
    return steps, steps / config.training.epochs


def _schedule_of(config: ExperimentConfig, steps: int, steps_per_epoch: float | None):
    """The optimiser with an explicit end, and its rate at each step; None: not known."""
    optimizer = config.optimizer
    end = optimizer.schedule_steps or steps
    if not end or (config.training.epochs and not steps_per_epoch):
        return None
    epoch = [steps_per_epoch] if config.training.epochs else []
    named: OptimizerConfig = dataclasses.replace(optimizer, schedule_steps=end)
    return named, learning_rate(optimizer, end, *epoch)


def _start_problems(config: ExperimentConfig) -> list[str]:
    training = config.training
    if not training.start_from:
        return []
    try:
        place = find_model(training.start_from)
        theirs = place.config()
    except (ConfigError, huggingface.FolderError) as error:
        return [f"training.start_from: {error}"]
    if not place.is_run and training.start_with != "weights":
        return ["training.start_with must be 'weights' for a Hugging Face folder"]
    free = {name: getattr(config.model, name) for name in huggingface.OVERRIDES}
    if place.is_run:
        free.pop("scan_layers")  # of a checkpoint the arrays are read as they were stored
    wrong = differences(to_dict(dataclasses.replace(theirs, **free)), to_dict(config.model))
    if not wrong:
        return []
    return [
        f"model differs from training.start_from {training.start_from}: {', '.join(wrong)}; set "
        "these fields of model to its values, or start from another model"
        + _OTHER_VOCABULARY
        * (theirs.vocab_size != config.model.vocab_size)
    ]
