"""The commands of the README are one line each; what it, the pages and the configs name exists."""

import ast
from pathlib import Path
import re

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def set_up_commands():
    return [line for line in README.splitlines() if line.startswith("python3 -m venv ")]


def test_two_commands_set_up_and_run_everything():
    main_job, tests = set_up_commands()
    assert "-m icl_jax.main --config=" in main_job
    assert tests.endswith("-m pytest -n 2")
    for command in (main_job, tests):
        assert "pip install" in command


def test_ci_calls_both_commands_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text()
    patterns = re.findall(r"grep -E '(.*)' README.md", script)
    found = [
        line for pattern in patterns for line in README.splitlines() if re.search(pattern, line)
    ]
    assert found == set_up_commands()[::-1]  # the tests, then the main job


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_file_that_a_page_names_exists(page):
    text = page.read_text()
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)  # code has brackets too
    for link in re.findall(r"\]\((?!http)([^)#]+)", prose):
        assert (page.parent / link).exists(), link
    named = re.findall(r"--config=(configs/\w+\.py)", text)
    named += re.findall(r"python (benchmarks/\S+?\.py)", text)
    for path in named:
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m (icl_jax\.[\w.]+)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_the_readme_leads_to_every_page_and_every_config():
    for path in [*PAGES[1:], *(ROOT / "configs").glob("*.py")]:
        assert f"]({path.relative_to(ROOT)})" in README, path


def test_each_config_states_its_command_cost_and_expected_result():
    for path in (ROOT / "configs").glob("*.py"):
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert f"--config=configs/{path.name}" in text, path
        assert all(word in text for word in ("Command:", "Cost:", "Expected:")), path
