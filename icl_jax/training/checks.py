"""What would make a training run fail, found before anything is compiled."""

import dataclasses

from etils import epath
from jax.sharding import Mesh

from icl_jax.config import ConfigError, ExperimentConfig, GPTConfig, RobertaConfig, StageError
from icl_jax.config.tree import differences, find_problems, to_dict, type_problems
from icl_jax.data import synthetic
from icl_jax.data.input_pipeline import Data, open_data
from icl_jax.data.source import row_holds
from icl_jax.design.folders import PREFIX, arm_folder, is_arm, planned_rows
from icl_jax.models import huggingface
from icl_jax.sharding import make_mesh
from icl_jax.training.model_at import find_model
from icl_jax.training.run_record import last_step, planned_steps, run_problems
from icl_jax.training.schedule_checks import rate_problems, warmup_problems
from icl_jax.training.start_tokenizer import planned_tokenizer_problems, start_tokenizer_problems

OBJECTIVE_OF = {GPTConfig: "next_token", RobertaConfig: "masked_token"}

_OTHER_VOCABULARY = (
    ". A model goes on with the tokens that it knows: its records must be made with its tokenizer "
    "(design.tokenizer.folder)"
)


def check_run(config: ExperimentConfig, workdir: epath.Path) -> Data:
    """The opened data of a run that can work; else one ConfigError with everything wrong."""
    found, data = _problems(config), None
    # Records that would be made here are not made for a run that cannot work.
    if not (found and any(map(synthetic.is_synthetic, config.data.sources))):
        data, problems = _open_data(config, workdir)
        found += problems
    if data is not None:
        found += run_problems(config, workdir, data)
        epoch = data.steps_per_epoch
        found += warmup_problems(config, epoch)
        if last_step(workdir) is None:  # else it goes on from its own checkpoint
            found += rate_problems(config, planned_steps(config, data), epoch)
        found += start_tokenizer_problems(config, workdir)
    if found:
        raise ConfigError("; ".join(found))
    return data


def check_before_design(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Stops on what can be seen before the records are there."""
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
    if type_problems(config) or min(sizes) < 1:  # the other checks count on these
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
    """The data config with the folders that its sources stand for."""
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
    """Whether every device gets the same number of rows of every part of a batch."""
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
    wanted = OBJECTIVE_OF.get(type(model))
    if training.objective != wanted:
        able = {"next_token": "a GPTConfig (causal)", "masked_token": "a RobertaConfig"}
        needed = able.get(training.objective, "another objective")
        found.append(
            f"training.objective '{training.objective}' needs {needed}, "
            f"but model is a {type(model).__name__}"
        )
    if isinstance(model, RobertaConfig) and not model.mlm_head:
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
        "these fields of model as they are there, or start from another model"
        + _OTHER_VOCABULARY
        * (theirs.vocab_size != config.model.vocab_size)
    ]
