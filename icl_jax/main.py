"""Runs the stages of an experiment.

python -m icl_jax.main --config=configs/NAME.py [--config.FIELD=value ...] --workdir=DIR
"""

from collections.abc import Callable, Sequence
import dataclasses
import difflib
import functools
import logging
from pathlib import Path
import runpy
import sys
import typing

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from icl_jax.config import ConfigError, ExperimentConfig, StageError


def _check(config: ExperimentConfig, workdir) -> None:
    from icl_jax.models.check import check

    check(config, workdir)


def _design(config: ExperimentConfig, workdir) -> None:
    from icl_jax.example_design.build import design

    design(config, workdir)


def _check_before_design(config: ExperimentConfig, workdir) -> None:
    from icl_jax.training.checks import check_before_design

    check_before_design(config, workdir)


def _train(config: ExperimentConfig, workdir) -> None:
    from icl_jax.training.train import train

    train(config, workdir)


# In the order in which they run.
STAGES: dict[str, Callable] = {"check": _check, "design": _design, "train": _train}

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "A file of configs/; --config.FIELD=value overrides any of its fields."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "The folder that the stages write to.")
_STAGES = flags.DEFINE_list(
    "stages",
    None,
    f"Which to run of {', '.join(STAGES)}; by default train, after design where the config names a "
    "corpus (design.corpus.files).",
)


def main(argv: Sequence[str]) -> None:
    """Checks everything that can be checked, then runs the stages."""
    logging.getLogger("jax").setLevel(logging.WARNING)  # not each backend that is not there
    if not flags.FLAGS["verbosity"].present:
        absl_logging.set_verbosity(absl_logging.WARNING)  # not each file of a checkpoint
    if len(argv) > 1:
        _stop(f"unexpected argument '{argv[1]}'; flags begin with --")
    config, stages = _CONFIG.value, _STAGES.value
    if config is None:
        available = ", ".join(sorted(str(path) for path in Path("configs").glob("*.py")))
        _stop(f"expected --config=FILE; there are: {available or 'no files in configs/'}")
    if not isinstance(config, ExperimentConfig):
        _stop(f"get_config() must return an ExperimentConfig, got {type(config).__name__}")
    if stages is None:
        stages = ["design", "train"] if config.design.corpus.files else ["train"]
    if _WORKDIR.value is None:
        _stop("expected --workdir=DIR, the folder to write to")
    unknown = [stage for stage in stages if stage not in STAGES]
    if unknown or not stages:
        _stop(f"unknown stage '{', '.join(unknown)}' in --stages; there are: {', '.join(STAGES)}")
    try:
        from etils import epath

        workdir = epath.Path(_WORKDIR.value)
        if "design" in stages and "train" in stages:
            _check_before_design(config, workdir)  # not after hours of designing
        for name in STAGES:
            if name in stages:
                STAGES[name](config, workdir)
    except (ConfigError, StageError) as error:
        _stop(str(error))
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from what was finished", file=sys.stderr)
        sys.exit(130)


def _parse(argv: Sequence[str]) -> list[str]:
    """Flags from the command line; a wrong one stops the run in one line."""
    pairs = zip(argv, [*argv[1:], ""])
    files = [
        following if arg == "--config" else arg.partition("=")[2]
        for arg, following in pairs
        if arg == "--config" or arg.startswith("--config=")
    ]
    file, _, argument = files[-1].partition(":") if files else (None, "", "")
    if file is not None and not Path(file).is_file():
        _stop(f"config file '{file}' does not exist")
    try:
        return flags.FLAGS(argv)
    except (flags.Error, KeyError, TypeError, ValueError) as error:
        overrides = [arg for arg in argv if arg.startswith("--config.")]
        if file is not None and overrides:
            config = runpy.run_path(file)["get_config"](*filter(None, [argument]))
            explain = (_explain_field, _explain_value)  # all names first, then the values
            found = filter(None, (step(arg, config) for step in explain for arg in overrides))
            _stop(next(found, str(error)))
        if isinstance(error, flags.Error):
            _stop(str(error))
        raise  # from inside the config file: its author needs the place


def _explain_field(arg: str, config: ExperimentConfig) -> str | None:
    """What is wrong with the name in --config.FIELD=value; None: nothing."""
    path = arg.removeprefix("--config.").partition("=")[0]
    holder, done = config, ["config"]
    for part in path.split("."):
        fields = dataclasses.fields(holder) if dataclasses.is_dataclass(holder) else []
        names = [field.name for field in fields]
        if part not in names:
            close = difflib.get_close_matches(part, names, 1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(names)}"
            return f"--config.{path}: {'.'.join(done)} has no field '{part}'; {hint}"
        holder = getattr(holder, part)
        done.append(part)
    if dataclasses.is_dataclass(holder):
        return f"--config.{path} has fields of its own: set --config.{path}.FIELD=value"
    return None


def _explain_value(arg: str, config: ExperimentConfig) -> str | None:
    """What is wrong with the value in --config.FIELD=value; None: nothing."""
    path, equals, value = arg.removeprefix("--config.").partition("=")
    *parents, name = path.split(".")
    holder = functools.reduce(getattr, parents, config)
    expected = typing.get_type_hints(type(holder))[name]
    options = [o for o in typing.get_args(expected) or (expected,) if o is not type(None)]
    if not equals or any(_parses_as(value, option) for option in options):
        return None
    names = " or ".join(option.__name__ for option in options)
    hint = "; None can be set in the config file only" if value == "None" else ""
    return f"--config.{path} must be {names}, got '{value}'{hint}"


def _parses_as(value: str, expected: type) -> bool:
    if expected is bool:
        return value.lower() in ("true", "false", "1", "0", "t", "f")
    try:
        expected(value)
    except ValueError:
        return False
    return True


def _stop(message: str) -> typing.NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    app.run(main, flags_parser=_parse)
