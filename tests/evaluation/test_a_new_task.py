"""A new task is one new file and one line: evaluation, comparison and report all know it then."""

import json

import pytest

from icl_jax.evaluation import tasks
from icl_jax.evaluation.compare.compare import compare
from icl_jax.evaluation.evaluate import evaluate
from icl_jax.experiment.report import report
from tests.evaluation import small

NEW_FILE = '''
"""How many tokens the words of a file have."""

from pathlib import Path

import numpy as np

from icl_jax.config import ConfigError
from icl_jax.evaluation.bootstrap import mean_of
from icl_jax.evaluation.metric import Metric, Unit
from icl_jax.evaluation.task import Task

TOKENS = Unit("tokens a word", 1, "lower")


class Spelling(Task):
    """The task `spelling`."""

    unit, part_size, folders = "words", 2, ("spelling",)
    item, units = ("word",), (TOKENS,)
    rank, outputs = 0, "the spelt words"

    @classmethod
    def check(cls, config, model):
        if not (Path(config.data) / "spelling" / "words.txt").exists():
            raise ConfigError("there is no words.txt")

    def __init__(self, model, config):
        self.check(config, model.config)
        self.items = (Path(config.data) / "spelling" / "words.txt").read_text().split()
        self._tokenizer, self.inputs = model.tokenizer, {"words": self.items}

    def run(self, items, first, mesh, progress):
        progress(len(items))
        return [{"word": word, "tokens": len(self._tokenizer.encode(word))} for word in items]

    def results(self, rows):
        return {"mean": sum(row["tokens"] for row in rows) / len(rows)}

    def table(self, results):
        return f"{results['mean']:.1f} tokens a word"

    @staticmethod
    def metrics(rows, results):
        tokens = np.array([row["tokens"] for row in rows], float)
        return {
            name: Metric(TOKENS, mean_of(tokens**power), tokens**power)
            for name, power in (("squared", 2), ("plain", 1))
        }

    @staticmethod
    def headline(metrics):
        return ["plain"]

    @classmethod
    def title(cls, metric, items):
        return f"Tokens of {items} words"
'''
WORDS = ["mill", "Kersk", "seven", "ferry", "quartz"]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The new file, the line of the table, and the data that the task reads."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "spelling.py").write_text(NEW_FILE)
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(tmp_path / "code")])
    monkeypatch.setitem(tasks.TASKS, "spelling", ("spelling", "Spelling"))
    (tmp_path / "data" / "spelling").mkdir(parents=True)
    (tmp_path / "data" / "spelling" / "words.txt").write_text("\n".join(WORDS))
    return tmp_path / "data"


def test_a_new_task_is_evaluated_compared_and_reported(data, tmp_path, capsys):
    config = small.evaluation(tasks=("spelling",), data=str(data))
    arms = {"regular": {"num_layers": 1}, "knn": {"num_layers": 2}}
    for arm, fields in arms.items():
        subject = small.subject_of(small.gpt_folder(tmp_path / arm, **fields))
        found = evaluate(subject, config, tmp_path / f"{arm}.json", small.mesh_of())
        assert json.loads((tmp_path / f"{arm}.json").read_text())["spelling"] == found["spelling"]
        assert (
            f"{found['spelling']['mean']:.1f} tokens a word" in (tmp_path / f"{arm}.md").read_text()
        )
    assert found["spelling"]["mean"] > 1

    evaluations = {arm: [tmp_path / f"{arm}.json"] for arm in arms}
    comparison = compare(evaluations, "knn", tmp_path / "comparison", resamples=50)
    value = f"{found['spelling']['mean']:.1f}"
    text = (tmp_path / "comparison" / "comparison.md").read_text()
    assert "## spelling" in text and f"| plain | knn | {value} |" in text
    assert "metric (tokens a word, lower is better)" in text
    assert "spelling: plain" in (tmp_path / "comparison" / "comparison.svg").read_text()

    report.write_report(comparison, tmp_path)
    numbers = json.loads((tmp_path / "comparison.json").read_text())
    assert numbers["knn"]["spelling_plain"] == found["spelling"]["mean"]
    assert "spelling_squared" not in numbers["knn"]  # no headline
    text = (tmp_path / "comparison.md").read_text()
    assert f"spelling plain: knn has {value}, regular {value}" in text
    assert "on the same 5 words" in text and "at the spelt words of knn in" in text
    assert "Tokens of 5 words" in (tmp_path / "comparison.svg").read_text()
    assert capsys.readouterr().out.count(f"{value} tokens a word") == 2
