"""The README's commands are one line each, and what they and the configs name exists."""

import ast
from pathlib import Path
import re

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def set_up_commands():
    return [line for line in README.splitlines() if line.startswith("python3 -m venv ")]


def test_two_commands_set_up_and_run_everything():
    main_job, tests = set_up_commands()
    assert "-m icl_jax.main --config=" in main_job
    assert tests.endswith("-m pytest -n 2")
    for command in (main_job, tests):
        assert "pip install" in command


def test_ci_calls_the_test_command_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text()
    pattern = re.search(r"grep -E '(.*)' README.md", script)[1]
    assert [line for line in README.splitlines() if re.search(pattern, line)] == [
        set_up_commands()[1]
    ]


def test_every_file_that_the_readme_names_exists():
    named = re.findall(r"\]\((?!http)([^)]+)\)", README)
    named += re.findall(r"--config=(\S+\.py)", README)
    named += re.findall(r"python (benchmarks/\S+?\.py)", README)
    assert "benchmarks/forward_latency.py" in named and "configs/tiny.py" in named
    for path in named:
        assert (ROOT / path).exists(), path


def test_each_config_tells_its_command_cost_and_expected_result():
    for path in (ROOT / "configs").glob("*.py"):
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert f"--config=configs/{path.name}" in text, path
        assert all(word in text for word in ("Command:", "Cost:", "Expected:")), path
