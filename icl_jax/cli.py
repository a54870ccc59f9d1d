"""The entry of every command: its flags, its help, its errors in one line, and its exit code."""

import ast
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import difflib
import faulthandler
import functools
import importlib
import os
from pathlib import Path
import runpy
import select
import shlex
import signal
import sys
import textwrap
import typing
from typing import NamedTuple

from absl import flags
from absl import logging as absl_logging

from icl_jax.config import ConfigError, ExperimentConfig, StageError, StoppedError

STOPPED = 128 + signal.SIGTERM  # as if SIGTERM had ended it: schedulers start it again
INTERRUPTED = 128 + signal.SIGINT
UNREAD = 128 + signal.SIGPIPE  # the work is not done, but nobody reads what it prints
HELP = ("--help", "-h", "-help", "--helpshort", "--helpfull")
PACKAGE = Path(__file__).parent
WIDTH = 100  # characters, of the help

# The commands of `icl-jax`, each with its module: `python -m icl_jax.MODULE` is the same.
COMMANDS = {
    "run": "main",
    "show": "retrieval.show",
    "explain": "design.explain",
    "export-arm": "design.export",
    "evaluate": "evaluation.run",
    "compare": "evaluation.compare",
    "harness": "evaluation.lm_harness",
    "export": "training.export",
    "compile": "tpu.compile",
    "summary": "models.summary",
    "architecture": "theory.architecture",
    "bias": "theory.in_context_bias",
    "builtin": "corpus.builtin",
    "task-sentences": "studies.task_sentences",
    "table1": "studies.table1",
    "results": "studies.results",
    "pods": "studies.pods",
    "automata": "sandboxes.automata",
    "flip-flop": "sandboxes.flip_flop",
    "ask-flip-flop": "sandboxes.flip_flop.ask",
    "dyck": "sandboxes.dyck",
}


def main(argv: Sequence[str] | None = None) -> None:
    """`icl-jax COMMAND FLAGS`; without a command, the list of them."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    with ends_in_one_line():
        if not name or name in HELP:
            print(list_commands())
        elif name not in COMMANDS:
            stop(f"there is no command '{name}'; {_nearest(name, list(COMMANDS))}")
        else:
            sys.argv = [f"icl-jax {name}", *rest]
            path = command_file(name).relative_to(PACKAGE.parent).with_suffix("")
            importlib.import_module(".".join(path.parts)).main()


def list_commands() -> str:
    """What `icl-jax` prints: each command with the first line of its docstring, none imported."""
    width = max(map(len, COMMANDS))
    lines = []
    for name in COMMANDS:
        about = ast.get_docstring(ast.parse(command_file(name).read_text()))
        lines.append(f"  {name:<{width}}  {about.splitlines()[0]}")
    usage = "icl-jax COMMAND --help shows the flags of a command."
    return "\n".join(["Usage: icl-jax COMMAND [--FLAG=value ...]", "", *lines, "", usage])


def command_file(name: str) -> Path:
    """The file that `python -m` runs for a command."""
    path = PACKAGE.joinpath(*COMMANDS[name].split("."))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


# The flags of a command.


class Flag(NamedTuple):
    """A flag, written as in the help: `workdir=DIR`; one without a value (kind bool) is a switch.

    `kind` makes the value of the text and raises a ValueError that says what was expected.
    """

    shown: str
    help: str
    kind: Callable[[str], object] = str
    default: object = None
    required: bool = False

    @property
    def name(self) -> str:
        return self.shown.partition("=")[0]

    def define(self, values: flags.FlagValues, argv: Sequence[str]) -> None:
        """Adds the flag to those that are parsed."""
        if self.kind is bool:
            flags.DEFINE_bool(self.name, self.default, self.help, values)
        else:
            flags.DEFINE(_Parser(self.kind), self.name, self.default, self.help, values)

    def missing(self) -> str:
        """The message if this flag is required and not given."""
        return f"expected --{self.shown}, {self.help}"


class ConfigFile(NamedTuple):
    """--config=FILE and --config.FIELD=value: a file of configs/ that gives an ExperimentConfig."""

    help: str
    default: str | None = None
    required: bool = False
    name: str = "config"
    shown: str = "config=FILE"

    def define(self, values: flags.FlagValues, argv: list[str]) -> None:
        """Adds the flag; stops if the file does not exist."""
        from ml_collections import config_flags

        file, _ = _config_file(argv)
        if file is not None and not Path(file).is_file():
            stop(f"config file '{file}' does not exist")
        config_flags.DEFINE_config_file(
            self.name, None, self.help, flag_values=values, sys_argv=argv
        )

    def missing(self) -> str:
        """The message if a file is required and not given."""
        available = ", ".join(sorted(str(path) for path in Path("configs").glob("*.py")))
        return f"expected --config=FILE; available: {available or 'no files in configs/'}"


class ConfigFields(NamedTuple):
    """--NAME.FIELD=value for every field of a dataclass of icl_jax/config."""

    name: str
    config: Callable[[], object]  # a new one each time: overrides are written into it
    help: str
    default: None = None
    required: bool = False

    @property
    def shown(self) -> str:
        return f"{self.name}.FIELD=value"

    def define(self, values: flags.FlagValues, argv: list[str]) -> None:
        """Adds the flags; stops at a wrong field or value."""
        from ml_collections import config_flags

        if problem := explain_overrides(argv, self.name, self.config()):
            stop(problem)
        config_flags.DEFINE_config_dataclass(
            self.name, self.config(), self.help, flag_values=values, sys_argv=argv
        )


def whole(least: int | None = None, most: int | None = None) -> Callable[[str], int]:
    """The kind of a flag that takes a whole number, within limits if they are given."""

    def parse(text: str) -> int:
        expected = "expected a whole number"
        if least is not None:
            expected += f" of at least {least}" if most is None else f" from {least} to {most}"
        try:
            value = int(text)
        except ValueError:
            raise ValueError(expected) from None
        if (least is not None and value < least) or (most is not None and value > most):
            raise ValueError(expected)
        return value

    return parse


def number(text: str) -> float:
    """The kind of a flag that takes a number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError("expected a number") from None


def several(kind: Callable[[str], object] = str) -> Callable[[str], tuple]:
    """The kind of a flag that takes several values with commas."""
    return lambda text: tuple(kind(part.strip()) for part in text.split(",")) if text else ()


def one_of(*options: str) -> Callable[[str], str]:
    """The kind of a flag that takes one of a few words."""

    def parse(text: str) -> str:
        if text not in options:
            raise ValueError(f"expected one of {', '.join(options)}")
        return text

    return parse


class _Parser(flags.ArgumentParser):
    def __init__(self, kind: Callable[[str], object]):
        super().__init__()
        self.kind = kind

    def parse(self, argument: object) -> object:
        return self.kind(argument) if isinstance(argument, str) else argument  # a default


# Running a command.


def command(
    *known: Flag | ConfigFile | ConfigFields, words: str = "", passes_on: bool = False
) -> Callable[[Callable], Callable[[Sequence[str] | None], None]]:
    """Makes a function of parsed flags the `main` of a module, which is then a command.

    `words` describes the arguments without -- that it takes, in brackets if there may be none;
    the function gets a list of them after the flags, with `passes_on` unknown flags included.
    """

    def decorate(run: Callable) -> Callable[[Sequence[str] | None], None]:
        @functools.wraps(run)
        def main(argv: Sequence[str] | None = None) -> None:
            if argv is None:
                _become_command()
                argv = sys.argv[1:]
            with ends_in_one_line():
                if any(arg in HELP for arg in argv):
                    description = sys.modules[run.__module__].__doc__
                    print(show_help(description, known, words, "--helpfull" in argv))
                    return
                given, rest = _parse(known, ["", *argv], passes_on)
                if rest and not words:
                    stop(f"unexpected argument '{rest[0]}'; flags begin with --")
                if words and not rest and not words.startswith("["):
                    stop(f"expected {words}")
                run(given, *([rest] if words else []))

        return main

    return decorate


def _become_command() -> None:
    """Prepares this process, which runs one command: logs, and a traceback of crashes in C++."""
    with contextlib.suppress(Exception):  # where there is no stderr
        faulthandler.enable()
    absl_logging.use_absl_handler()
    flags.FLAGS.mark_as_parsed()  # those of libraries have their defaults


def show_help(description: str, known: Sequence, words: str = "", full: bool = False) -> str:
    """What --help prints: the docstring of the module, and a line about each flag."""
    lines = [description.strip(), "", "flags:"]
    column = min(28, 6 + max(len(flag.shown) for flag in known))
    for flag in known:
        text = flag.help + (" (required)" if flag.required else "")
        if flag.default not in (None, False, "", ()):
            several = isinstance(flag.default, tuple)
            shown = ",".join(map(str, flag.default)) if several else flag.default
            text += f" (default: {shown})"
        head = f"  --{flag.shown}".ljust(column)
        indent = " " * column
        if len(head) > column:
            lines.append(head)
            head = indent
        lines += textwrap.wrap(
            text, WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False
        )
    if words:
        lines += ["", f"arguments: {words}"]
    return "\n".join([*lines, *(["", flags.FLAGS.get_help()] if full else [])])


@contextlib.contextmanager
def ends_in_one_line(unread: int = 0) -> Iterator[None]:
    """Errors that the user can fix are one line on stderr, without a traceback.

    Exit codes: 2, another start would stop there too; STOPPED, another start would continue;
    `unread`, nobody reads the output any more, as after `| head`.
    """
    try:
        yield
        sys.stdout.flush()
    except (ConfigError, StageError) as error:
        stop(str(error))
    except StoppedError:
        sys.exit(STOPPED)  # whoever raised it has printed why
    except KeyboardInterrupt:
        print("\nstopped; rerun the command to continue from what is finished", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if not any(event & select.POLLERR for _, event in poll.poll(0)):
            raise  # it was another pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left
        if unread:
            sys.exit(unread)


def stop(message: str, code: int = 2) -> typing.NoReturn:
    """Ends the program as a wrong command line does; the exception holds the message too."""
    print(f"error: {message}", file=sys.stderr)
    ended = SystemExit(f"error: {message}")
    ended.code = code
    raise ended


def expect_one(given: flags.FlagValues, *shown: str) -> None:
    """Stops unless exactly one of the flags, each written as `name=VALUE`, is given."""
    found = [flag for flag in shown if given[flag.partition("=")[0]].value is not None]
    if len(found) != 1:
        stop(f"expected one of --{' and --'.join(shown)}, got {'both' if found else 'none'}")


def _parse(
    known: Sequence[Flag | ConfigFile | ConfigFields], argv: list[str], passes_on: bool
) -> tuple[flags.FlagValues, list[str]]:
    """Values of all flags, and what else the command line holds; a wrong flag stops the program."""
    values = flags.FlagValues()
    for flag in known:
        if isinstance(flag, ConfigFile) and flag.default and _config_file(argv)[0] is None:
            argv = [argv[0], f"--config={flag.default}", *argv[1:]]
        flag.define(values, argv)
    for name in flags.FLAGS:  # of libraries: --verbosity, --flagfile
        if name not in values and flags.FLAGS[name].name == name:  # not by its short name
            values[name] = flags.FLAGS[name]
    try:
        rest = values(argv, known_only=passes_on)[1:]
    except (flags.Error, KeyError, TypeError, ValueError) as error:
        if problem := _explain_config(argv, known):
            stop(problem)
        if isinstance(error, flags.Error):
            stop(str(error))
        raise  # from inside the config file: its author needs the place
    for flag in known:
        if isinstance(flag, ConfigFile) and not isinstance(
            config := values[flag.name].value, ExperimentConfig | None
        ):
            stop(f"get_config() must return an ExperimentConfig, got {type(config).__name__}")
        if flag.required and values[flag.name].value is None:
            stop(flag.missing())
    return values, rest


def _config_file(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The file that --config names, and its argument, if any: --config=FILE:ARGUMENT."""
    found = [
        following if arg == "--config" else arg.partition("=")[2]
        for arg, following in zip(argv, [*argv[1:], ""])
        if arg == "--config" or arg.startswith("--config=")
    ]
    file, _, argument = found[-1].partition(":") if found else (None, "", "")
    return file, [argument] if argument else []


def _explain_config(argv: Sequence[str], known: Sequence) -> str | None:
    """What is wrong with the overrides of the command's config; None: nothing."""
    for flag in known:
        if isinstance(flag, ConfigFields):
            return explain_overrides(argv, flag.name, flag.config())
        file, argument = _config_file(argv)
        if isinstance(flag, ConfigFile) and file and any(a.startswith("--config.") for a in argv):
            config = runpy.run_path(file)["get_config"](*argument)
            return explain_overrides(argv, flag.name, config)
    return None


def explain_overrides(argv: Sequence[str], name: str, config: object) -> str | None:
    """What is wrong with the first wrong --NAME.FIELD=value; None: nothing."""
    overrides = [arg for arg in argv if arg.startswith(f"--{name}.")]
    explain = (_explain_field, _explain_value)  # all names first, then the values
    return next(filter(None, (step(a, name, config) for step in explain for a in overrides)), None)


def _explain_field(arg: str, name: str, config: object) -> str | None:
    path = arg.removeprefix(f"--{name}.").partition("=")[0]
    holder, done = config, [name]
    for part in path.split("."):
        fields = dataclasses.fields(holder) if dataclasses.is_dataclass(holder) else []
        names = [field.name for field in fields]
        if part not in names:
            hint = _nearest(part, names)
            return f"--{name}.{path}: {'.'.join(done)} has no field '{part}'; {hint}"
        holder = getattr(holder, part)
        done.append(part)
    if dataclasses.is_dataclass(holder):
        return f"--{name}.{path} has fields of its own: set --{name}.{path}.FIELD=value"
    return None


def _nearest(word: str, options: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, options, 1)
    return f"did you mean '{close[0]}'?" if close else f"available: {', '.join(options)}"


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


# Commands that messages suggest.


def suggest(module: str, **options: object) -> str:
    """`python -m icl_jax.MODULE --OPTION=VALUE ...`."""
    named = (f"--{name}={value}" for name, value in options.items())
    return shlex.join(["python", "-m", f"icl_jax.{module}", *named])


def suggest_removal(*paths: str) -> str:
    """What deletes folders, on a disk or in a bucket."""
    remove = "gcloud storage rm -r" if paths[0].startswith("gs://") else "rm -r"
    return f"{remove} {shlex.join(paths)}"


if __name__ == "__main__":
    main()
