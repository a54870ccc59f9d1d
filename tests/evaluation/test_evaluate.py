"""The stage and the command: from a run or a folder to results that can be traced."""

import json
from pathlib import Path
import subprocess
import sys

from etils import epath
import pytest

from icl_jax.config import ConfigError
from icl_jax.evaluation.evaluate import (
    check_before_design,
    check_before_training,
    evaluate_run,
)
from tests.evaluation import small
from tests.evaluation.sts_data import write_senteval
from tests.training.small import experiment

ROOT = Path(__file__).parents[2]
QUESTIONS = [{"question": "who was born in kersk", "answer": ["Ada"]}] * 3


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_senteval(folder)
    (folder / "nq_open").mkdir()
    lines = "".join(json.dumps(question) + "\n" for question in QUESTIONS)
    (folder / "nq_open" / "NQ-open.dev.jsonl").write_text(lines)
    return folder


def make_run(workdir, data, **fields):
    config = experiment(model=small.GPTConfig(**small.SIZES), mesh=(-1, 1, 1))
    config.evaluation = small.evaluation(data=str(data), **fields)
    config.evaluation.questions.max_new_tokens = 4
    return config, epath.Path(small.run_folder(workdir, config))


def test_the_stage_evaluates_the_last_checkpoint_of_a_run(tmp_path, data, capsys):
    config, workdir = make_run(tmp_path, data, tasks=("sts", "nq_open"))
    check_before_training(config, workdir)
    results = json.loads(evaluate_run(config, workdir).read_text())
    assert json.loads((tmp_path / "evaluation" / "2.json").read_text()) == results
    assert results["model"]["step"] == 2
    for year in ("STS12", "STS13", "STS14", "STS15", "STS16"):
        assert {"all", "mean", "wmean", "subsets"} <= results["sts"][year].keys()
        assert -100 <= results["sts"][year]["all"]["spearman"] <= 100
    names = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
    mean = sum(results["sts"][name]["all"]["spearman"] for name in names) / 7
    assert results["sts"]["average"] == pytest.approx(mean)
    assert results["nq_open"]["total"] == 3
    rows = (tmp_path / "evaluation" / "2" / "nq_open" / "outputs.jsonl").read_text().splitlines()
    assert json.loads(rows[0])["prompt"] == "Q: who was born in kersk?\n\nA:"
    shown, page = capsys.readouterr().out, (tmp_path / "evaluation" / "2.md").read_text()
    for task in config.evaluation.tasks:
        table = (tmp_path / "evaluation" / "2" / task / "table.md").read_text()
        assert table in shown and table in page
    assert "SICK-R" in page


def test_what_evaluation_would_stop_on_is_reported_before_training(tmp_path, data):
    config, workdir = make_run(tmp_path, data, tasks=("nq_open", "glue"))
    (tmp_path / "empty").mkdir()
    config.evaluation.data = str(tmp_path / "empty")
    with pytest.raises(ConfigError, match=r"nq_open: .*NQ-open") as error:
        check_before_training(config, workdir)
    assert "glue: " in str(error.value)
    with pytest.raises(ConfigError, match=r"nq_open: .*NQ-open") as early:
        check_before_design(config)
    assert "glue: " in str(early.value)
    config.model = small.RobertaConfig(**small.SIZES)
    for check in (lambda: check_before_training(config, workdir),
                  lambda: check_before_design(config)):  # fmt: skip
        with pytest.raises(ConfigError, match="cannot generate"):
            check()


def test_the_command_evaluates_a_folder_and_reports_a_wrong_one(tmp_path, data):
    small.gpt_folder(tmp_path / "model")
    command = [sys.executable, "-m", "icl_jax.evaluation.run", f"--model={tmp_path / 'model'}"]
    flags = ["--tasks=nq_open", f"--data={data}", "--evaluation.questions.max_new_tokens=4"]
    output = tmp_path / "made" / "results.json"
    run = subprocess.run(
        [*command, *flags, f"--output={output}"], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(output.read_text())["nq_open"]["total"] == 3
    assert str(output) in run.stdout
    wrong = subprocess.run(
        [*command, "--evaluation.questions.preset=x", "--tasks=nq_open"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: questions.preset must be one of gpt3, harness")
