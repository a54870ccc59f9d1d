"""Every command: its help, its errors in one line, its exit code, and `icl-jax`, which runs it."""

import ast
import os
from pathlib import Path
import re
import runpy
import shlex
import subprocess
import sys

from absl import flags
import pytest

from icl_jax import cli
from icl_jax.cli import COMMANDS, Flag, suggest, suggest_removal
from icl_jax.config import ConfigError, StoppedError

pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")

ROOT = Path(__file__).parents[1]
FORMER = {  # names of commands
    "example_design.explain": "design.explain",
    "example_design.export": "design.export",
    "training.compile_for_tpu": "tpu.compile",
}
NO_COMMANDS = {"studies.pods.measure", "cli"}  # started by another one only; `icl-jax` itself
# Their help does not wait for JAX.
LIGHT = [
    "main", "corpus.builtin", "evaluation.run", "retrieval.show", "design.explain", "design.export",
    "studies.pods", "studies.table1", "studies.task_sentences", "theory.architecture",
]  # fmt: skip


def docstring(command):
    return ast.get_docstring(ast.parse(cli.command_file(command).read_text()))


def run(module, *args):
    """`python -m icl_jax.MODULE`; the last line of the output says if JAX was imported."""
    code = f"""import runpy, sys
try:
    runpy.run_module("icl_jax.{module}", run_name="__main__", alter_sys=True)
finally:
    print("jax" in sys.modules)"""
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.fixture
def run_here(monkeypatch, capsys):
    """Runs a program in this process, which has JAX: its exit code, output and errors."""
    monkeypatch.setattr(cli, "_become_command", lambda: None)
    monkeypatch.setattr(sys, "argv", [])

    def run(program, *args):
        sys.argv[:] = ["program", *args]
        code = 0
        try:
            program()
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    return run


def as_module(module):
    return lambda: runpy.run_module(f"icl_jax.{module}", run_name="__main__", alter_sys=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_answers_help_and_a_wrong_flag(command, run_here):
    module = COMMANDS[command]
    if module == "evaluation.lm_harness":
        pytest.importorskip("lm_eval")
        shown = run(module, "--help")  # the harness's own
        assert shown.returncode == 0 and "lm-eval" in shown.stdout
        return
    code, about, _ = run_here(as_module(module), "--help")
    assert code == 0
    assert about.startswith(docstring(command).splitlines()[0]) and "\nflags:\n" in about
    assert f"python -m icl_jax.{module}" in about
    assert run_here(cli.main, command, "--help") == (0, about, "")
    error = "error: Unknown command line flag 'nothing'\n"
    assert run_here(as_module(module), "--nothing=3") == (2, "", error)
    assert run_here(cli.main, command, "--nothing=3") == (2, "", error)


@pytest.mark.parametrize("module", LIGHT)
def test_help_does_not_wait_for_jax(module):
    shown = run(module, "--help")
    assert shown.returncode == 0, shown.stderr
    assert "\nflags:\n" in shown.stdout and shown.stdout.endswith("\nFalse\n")


@pytest.mark.parametrize("module", FORMER)
def test_former_names_of_commands_still_work(module, run_here):
    code, about, _ = run_here(as_module(module), "--help")
    assert code == 0 and f"python -m icl_jax.{FORMER[module]}" in about
    error = "error: Unknown command line flag 'nothing'\n"
    assert run_here(as_module(module), "--nothing=3") == (2, "", error)


def test_the_script_runs_a_command_with_its_flags():
    code = "from icl_jax.cli import main; main()"
    command = [sys.executable, "-c", code, "architecture", "--depth=3"]
    stopped = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert stopped.returncode == 2
    assert stopped.stderr == "error: --depth and --width go together, got --depth only\n"


def test_icl_jax_runs_every_module_that_is_a_program():
    package = ROOT / "icl_jax"
    programs = set()
    for path in package.rglob("*.py"):
        if '\nif __name__ == "__main__":\n' in path.read_text():
            parts = path.relative_to(package).with_suffix("").parts
            programs.add(".".join(part for part in parts if part != "__main__"))
    assert programs == {*COMMANDS.values(), *FORMER, *NO_COMMANDS}


def test_the_module_runs_commands_as_icl_jax_does():
    run = subprocess.run(
        [sys.executable, "-m", "icl_jax.cli", "evaluat"], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 2 and "did you mean 'evaluate'?" in run.stderr


def test_icl_jax_lists_its_commands_without_importing_them():
    code = "import sys; from icl_jax.cli import main; main([]); print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    *listed, modules = shown.stdout.splitlines()
    for command in COMMANDS:
        about = docstring(command).splitlines()[0]
        assert any(re.fullmatch(rf"  {command} +{re.escape(about)}", line) for line in listed)
    assert not {"jax", "numpy", "icl_jax.main", "ml_collections"} & set(modules.split())
    assert all(len(line) <= 100 for line in listed)


def test_a_wrong_command_is_answered_with_the_nearest(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["evaluat"])
    assert stopped.value.code == 2
    error = "error: there is no command 'evaluat'; did you mean 'evaluate'?\n"
    assert capsys.readouterr().err == error


def test_the_readme_shows_the_list_of_commands():
    assert cli.list_commands() in (ROOT / "README.md").read_text()


def test_flags_of_commands_do_not_clash_with_each_other_or_the_library(capsys):
    """Each run has flags of its own; those of absl are among them."""
    seen = []
    for kind in (int, str):
        main = cli.command(Flag("size=N", "a size", kind))(lambda given: seen.append(given.size))
        main(["--size=3", "--verbosity=0"])
    assert seen == [3, "3"]
    assert "size" not in flags.FLAGS
    flags.FLAGS.verbosity = -1


KINDS = [
    Flag("n=N", "a number of things", cli.whole(least=1), required=True),
    Flag("few=N,...", "some", cli.several(cli.whole()), (1, 2)),
    Flag("rate=X", "a rate", cli.number, 0.5),
    Flag("rule=RULE", "one of a, b", cli.one_of("a", "b")),
    Flag("dry_run", "do nothing", bool, False),
]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--n=3"], (3, (1, 2), 0.5, None, False)),
        (["--n", "3", "--few=4,5,6", "--dry_run"], (3, (4, 5, 6), 0.5, None, True)),
        (["--n=3", "--few=", "--rate=1e-3", "--rule=b"], (3, (), 1e-3, "b", False)),
    ],
)
def test_flags_have_the_values_of_their_kinds(given, expected):
    seen = []
    cli.command(*KINDS)(seen.append)(given)
    values = seen[0]
    assert (values.n, values.few, values.rate, values.rule, values.dry_run) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "expected --n=N, a number of things"),
        (["--n=0"], "flag --n=0: expected a whole number of at least 1"),
        (["--n=x"], "flag --n=x: expected a whole number of at least 1"),
        (["--n=1", "--few=1,x"], "flag --few=1,x: expected a whole number"),
        (["--n=1", "--rate=x"], "flag --rate=x: expected a number"),
        (["--n=1", "--rule=c"], "flag --rule=c: expected one of a, b"),
        (["--n=1", "--rates=1"], "Unknown command line flag 'rates'. Did you mean: rate ?"),
        (["--n=1", "more"], "unexpected argument 'more'; flags begin with --"),
    ],
)
def test_a_wrong_value_is_one_line(given, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.command(*KINDS)(lambda values: None)(given)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_arguments_without_a_flag_are_those_that_a_command_names(capsys):
    seen = []
    main = cli.command(KINDS[0], words="NAME ...")(lambda given, words: seen.append(words))
    main(["one", "--n=1", "two"])
    assert seen == [["one", "two"]]
    with pytest.raises(SystemExit):
        main(["--n=1"])
    assert capsys.readouterr().err == "error: expected NAME ...\n"


def ended_by(error):
    def fail(given):
        raise error

    with pytest.raises(SystemExit) as stopped:
        cli.command(Flag("n=N", "unused"))(fail)([])
    return stopped.value.code


def test_exit_codes_say_whether_another_start_would_help(capsys):
    assert ended_by(ConfigError("wrong")) == 2
    assert capsys.readouterr().err == "error: wrong\n"
    assert ended_by(StoppedError()) == cli.STOPPED == 143
    assert capsys.readouterr().err == ""
    assert ended_by(KeyboardInterrupt()) == 130
    assert "rerun the command" in capsys.readouterr().err


def test_a_pipe_other_than_the_output_is_not_taken_for_it(monkeypatch):
    monkeypatch.setattr(sys, "stdout", os.fdopen(os.dup(1), "w"))
    with pytest.raises(BrokenPipeError), cli.ends_in_one_line():
        raise BrokenPipeError


def test_output_that_nobody_reads_ends_a_stage_as_unfinished(monkeypatch, capfd):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        with pytest.raises(SystemExit) as stopped, cli.ends_in_one_line(cli.UNREAD):
            print("step 1", flush=True)
    assert stopped.value.code == 141
    assert capfd.readouterr().err == ""


def test_the_package_installs_the_script():
    assert 'icl-jax = "icl_jax.cli:main"' in (ROOT / "pyproject.toml").read_text()


def test_suggested_commands_can_be_pasted_whatever_a_path_holds():
    command = suggest("retrieval.show", workdir="my runs/it's", sentence=0)
    assert shlex.split(command) == [
        "python", "-m", "icl_jax.retrieval.show", "--workdir=my runs/it's", "--sentence=0",
    ]  # fmt: skip
    assert shlex.split(suggest_removal("a b/c", "d;e")) == ["rm", "-r", "a b/c", "d;e"]
    assert suggest_removal("gs://x/y z") == "gcloud storage rm -r 'gs://x/y z'"
