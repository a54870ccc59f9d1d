"""Runs the stages of an experiment.

python -m icl_jax.main --config=configs/NAME.py [--config.FIELD=value ...] --workdir=DIR [--stages=...]
"""

from collections.abc import Callable, Sequence
import dataclasses
import difflib
from pathlib import Path
import runpy
import sys
import typing

from absl import app, flags
from ml_collections import config_flags

from icl_jax.config import ConfigError, ExperimentConfig, type_name, validate


def _check(config: ExperimentConfig, workdir) -> None:
    from icl_jax.models.check import check

    check(config, workdir)


# In the order in which they run.
STAGES: dict[str, Callable] = {"check": _check}

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "A file of configs/; --config.FIELD=value overrides any of its fields."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "The folder that the stages write to.")
_STAGES = flags.DEFINE_list("stages", list(STAGES), f"Which stages to run: {', '.join(STAGES)}.")


def main(argv: Sequence[str]) -> None:
    """Checks everything that can be checked, then runs the stages."""
    del argv
    config, stages = _CONFIG.value, _STAGES.value
    if config is None:
        available = ", ".join(sorted(str(path) for path in Path("configs").glob("*.py")))
        _stop(f"expected --config=FILE; there are: {available or 'no files in configs/'}")
    if not isinstance(config, ExperimentConfig):
        _stop(f"get_config() must return an ExperimentConfig, got {type(config).__name__}")
    if _WORKDIR.value is None:
        _stop("expected --workdir=DIR, the folder to write to")
    unknown = [stage for stage in stages if stage not in STAGES]
    if unknown or not stages:
        _stop(f"unknown stage '{', '.join(unknown)}' in --stages; there are: {', '.join(STAGES)}")
    try:
        validate(config)
        from etils import epath

        for name in STAGES:
            if name in stages:
                STAGES[name](config, epath.Path(_WORKDIR.value))
    except ConfigError as error:
        _stop(str(error))


def _parse(argv: Sequence[str]) -> list[str]:
    """Flags from the command line; a wrong one stops the run in one line."""
    try:
        return flags.FLAGS(argv)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        _stop(_explain_overrides(argv) or str(error).splitlines()[0])


def _explain_overrides(argv: Sequence[str]) -> str | None:
    """What is wrong with the first wrong --config.FIELD=value."""
    files = [arg.partition("=")[2] for arg in argv if arg.startswith("--config=")]
    if not files or not Path(files[-1]).is_file():
        return f"config file '{files[-1]}' does not exist" if files else None
    config = runpy.run_path(files[-1])["get_config"]()
    for arg in argv:
        if not arg.startswith("--config."):
            continue
        path, _, value = arg.removeprefix("--config.").partition("=")
        holder, done = config, []
        for part in path.split("."):
            names = (
                [f.name for f in dataclasses.fields(holder)]
                if dataclasses.is_dataclass(holder)
                else []
            )
            if part not in names:
                close = difflib.get_close_matches(part, names, 1)
                hint = f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(names)}"
                return (
                    f"--config.{path}: {'.'.join(['config', *done])} has no field '{part}'; {hint}"
                )
            expected = typing.get_type_hints(type(holder))[part]
            holder, done = getattr(holder, part), [*done, part]
        if dataclasses.is_dataclass(holder):
            return f"--config.{path} holds fields of its own; set one of them, --config.{path}.FIELD=value"
        if not _parses_as(value, expected):
            return f"--config.{path} must be {type_name(expected)}, got '{value}'"
    return None


def _parses_as(value: str, expected: object) -> bool:
    for option in typing.get_args(expected) or (expected,):
        try:
            if option is bool:
                return value.lower() in ("true", "false", "1", "0", "t", "f")
            if option in (int, float):
                option(value)
            return True
        except ValueError:
            continue
    return False


def _stop(message: str) -> typing.NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    app.run(main, flags_parser=_parse)
