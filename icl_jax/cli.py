"""What is wrong with a command, told in one line: a flag, a field of its config, a stage."""

from collections.abc import Sequence
import contextlib
import dataclasses
import difflib
import functools
from pathlib import Path
import runpy
import shlex
import signal
import sys
import typing

from absl import flags

from icl_jax.config import ConfigError, StageError, StoppedError

STOPPED = 128 + signal.SIGTERM  # as of a program that ended by it: schedulers start it again


@contextlib.contextmanager
def ends_in_one_line():
    """What stops an experiment is told in one line; a signal that it noted itself, not again.

    Exit codes: 2, another start would stop there too; STOPPED, it would go on.
    """
    try:
        yield
    except (ConfigError, StageError) as error:
        stop(str(error))
    except StoppedError:
        sys.exit(STOPPED)  # it said so
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from what was finished", file=sys.stderr)
        sys.exit(130)


def parse_flags(argv: Sequence[str], name: str, config: object) -> list[str]:
    """Flags of the command line, of which --NAME.FIELD=value belong to `config`."""
    try:
        return flags.FLAGS(argv)
    except (flags.Error, KeyError, TypeError, ValueError) as error:
        stop(explain_overrides(argv, name, config) or str(error))


def parse_config_flags(argv: Sequence[str], default: str = "") -> list[str]:
    """Flags of a command with --config=FILE (else `default`), a file of configs/.

    A wrong one stops the program in one line.
    """
    if default and not any(arg == "--config" or arg.startswith("--config=") for arg in argv):
        argv = [argv[0], f"--config={default}", *argv[1:]]
    pairs = zip(argv, [*argv[1:], ""])
    files = [
        following if arg == "--config" else arg.partition("=")[2]
        for arg, following in pairs
        if arg == "--config" or arg.startswith("--config=")
    ]
    file, _, argument = files[-1].partition(":") if files else (None, "", "")
    if file is not None and not Path(file).is_file():
        stop(f"config file '{file}' does not exist")
    try:
        return flags.FLAGS(argv)
    except (flags.Error, KeyError, TypeError, ValueError) as error:
        if file is not None and any(arg.startswith("--config.") for arg in argv):
            config = runpy.run_path(file)["get_config"](*filter(None, [argument]))
            stop(explain_overrides(argv, "config", config) or str(error))
        if isinstance(error, flags.Error):
            stop(str(error))
        raise  # from inside the config file: its author needs the place


def explain_overrides(argv: Sequence[str], name: str, config: object) -> str | None:
    """What is wrong with the first wrong --NAME.FIELD=value; None: nothing."""
    overrides = [arg for arg in argv if arg.startswith(f"--{name}.")]
    explain = (_explain_field, _explain_value)  # all names first, then the values
    return next(filter(None, (step(a, name, config) for step in explain for a in overrides)), None)


def stop(message: str) -> typing.NoReturn:
    """Ends the program as a wrong command line does."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def _explain_field(arg: str, name: str, config: object) -> str | None:
    path = arg.removeprefix(f"--{name}.").partition("=")[0]
    holder, done = config, [name]
    for part in path.split("."):
        fields = dataclasses.fields(holder) if dataclasses.is_dataclass(holder) else []
        names = [field.name for field in fields]
        if part not in names:
            close = difflib.get_close_matches(part, names, 1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(names)}"
            return f"--{name}.{path}: {'.'.join(done)} has no field '{part}'; {hint}"
        holder = getattr(holder, part)
        done.append(part)
    if dataclasses.is_dataclass(holder):
        return f"--{name}.{path} has fields of its own: set --{name}.{path}.FIELD=value"
    return None


def _explain_value(arg: str, name: str, config: object) -> str | None:
    path, equals, value = arg.removeprefix(f"--{name}.").partition("=")
    *parents, field = path.split(".")
    holder = functools.reduce(getattr, parents, config)
    expected = typing.get_type_hints(type(holder))[field]
    options = [o for o in typing.get_args(expected) or (expected,) if o is not type(None)]
    if not equals or any(_parses_as(value, option) for option in options):
        return None
    names = " or ".join(option.__name__ for option in options)
    hint = "; None can be set in the config file only" if value == "None" else ""
    return f"--{name}.{path} must be {names}, got '{value}'{hint}"


def _parses_as(value: str, expected: type) -> bool:
    if expected is bool:
        return value.lower() in ("true", "false", "1", "0", "t", "f")
    try:
        expected(value)
    except ValueError:
        return False
    return True


def suggest(module: str, **options: object) -> str:
    """`python -m icl_jax.MODULE --OPTION=VALUE ...`."""
    named = (f"--{name}={value}" for name, value in options.items())
    return shlex.join(["python", "-m", f"icl_jax.{module}", *named])


def suggest_removal(*paths: str) -> str:
    """What deletes folders, on a disk or in a bucket."""
    remove = "gcloud storage rm -r" if paths[0].startswith("gs://") else "rm -r"
    return f"{remove} {shlex.join(paths)}"
