"""Items become rows part by part; what is finished is kept, and other inputs are refused."""

import dataclasses
import json

import pytest

from icl_jax.config import ConfigError, StageError
from icl_jax.evaluation import evaluate as stage
from icl_jax.evaluation.task import read_finished, read_rows, run_task
from icl_jax.files.step_folder import OtherInputsError
from tests.evaluation import small

MODEL = {"kind": "model folder", "checksum": "0"}
BOOTSTRAP = {"resamples": 10, "seed": 0}


class Lengths:
    """How long some words are; dies before the word `until`."""

    unit, part_size = "words", 2

    def __init__(self, words, until=None):
        self.items, self.until, self.asked = words, until, []
        self.inputs = {"words": words}

    def run(self, items, first, mesh, progress):
        if self.until in items:
            raise KeyboardInterrupt
        self.asked += items
        progress(len(items))
        return [{"number": first + n, "length": len(word)} for n, word in enumerate(items)]

    def results(self, rows):
        return {"mean": sum(row["length"] for row in rows) / len(rows)}

    def table(self, results):
        return f"mean length: {results['mean']}"


WORDS = ["a", "bb", "ccc", "dddd", "\u2028"]


def test_rows_results_and_table_are_written(tmp_path):
    table = run_task(Lengths(WORDS), "lengths", MODEL, BOOTSTRAP, tmp_path, None)
    assert table == "## lengths\n\nmean length: 2.2\n"
    assert read_rows(tmp_path) == [
        {"number": n, "length": len(word)} for n, word in enumerate(WORDS)
    ]
    assert read_finished(tmp_path) == ({"mean": 2.2, "bootstrap": BOOTSTRAP}, table)
    assert not list(tmp_path.glob("part-*"))


def test_a_killed_task_continues_after_its_last_part(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_task(Lengths(WORDS, until="dddd"), "lengths", MODEL, BOOTSTRAP, tmp_path, None)
    assert read_finished(tmp_path) is None
    again = Lengths(WORDS)
    run_task(again, "lengths", MODEL, BOOTSTRAP, tmp_path, None)
    assert again.asked == ["ccc", "dddd", "\u2028"]
    assert [row["number"] for row in read_rows(tmp_path)] == [0, 1, 2, 3, 4]
    third = Lengths(WORDS)
    run_task(third, "lengths", MODEL, BOOTSTRAP, tmp_path, None)
    assert third.asked == []


def test_a_killed_task_continues_in_parts_of_another_size(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        run_task(Lengths(WORDS, until="\u2028"), "lengths", MODEL, BOOTSTRAP, tmp_path, None)
    monkeypatch.setattr(Lengths, "part_size", 3)
    run_task(Lengths(WORDS), "lengths", MODEL, BOOTSTRAP, tmp_path, None)
    assert [row["number"] for row in read_rows(tmp_path)] == [0, 1, 2, 3, 4]
    assert not list(tmp_path.glob("part-*"))


def test_other_resamples_make_results_again_of_the_rows_that_are_there(tmp_path):
    run_task(Lengths(WORDS), "lengths", MODEL, BOOTSTRAP, tmp_path, None)
    again = Lengths(WORDS)
    run_task(again, "lengths", MODEL, BOOTSTRAP | {"resamples": 20}, tmp_path, None)
    assert again.asked == []
    assert read_finished(tmp_path)[0]["bootstrap"]["resamples"] == 20


def test_other_words_or_another_model_are_refused(tmp_path):
    run_task(Lengths(WORDS), "lengths", MODEL, BOOTSTRAP, tmp_path, None)
    with pytest.raises(OtherInputsError, match="words"):
        run_task(Lengths(["z"]), "lengths", MODEL, BOOTSTRAP, tmp_path, None)
    with pytest.raises(OtherInputsError, match="checksum: '0' there, '1' here"):
        run_task(Lengths(WORDS), "lengths", MODEL | {"checksum": "1"}, BOOTSTRAP, tmp_path, None)


@pytest.fixture
def subject(tmp_path_factory):
    return small.subject_of(small.gpt_folder(tmp_path_factory.mktemp("gpt") / "model"))


def use(monkeypatch, **tasks):
    monkeypatch.setattr(stage, "open_tasks", lambda subject, config: tasks)


def test_results_of_earlier_commands_stay_in_the_file(tmp_path, subject, monkeypatch, capsys):
    output = tmp_path / "made" / "here.json"
    use(monkeypatch, sts=Lengths(WORDS))
    stage.evaluate(subject, small.evaluation(tasks=("sts",)), output, None)
    use(monkeypatch, glue=Lengths(["zz"]))
    stage.evaluate(subject, small.evaluation(tasks=("glue",)), output, None)
    held = json.loads(output.read_text())
    assert held["sts"]["mean"] == 2.2 and held["glue"]["mean"] == 2.0
    assert held["model"]["checksum"] == subject.identity["checksum"]
    assert output.with_suffix(".md").read_text().count("mean length") == 2
    assert "mean length: 2.0" in capsys.readouterr().out


def test_other_inputs_or_another_model_are_reported_before_anything_runs(
    tmp_path, subject, monkeypatch
):
    output = tmp_path / "here.json"
    use(monkeypatch, sts=Lengths(WORDS))
    stage.evaluate(subject, small.evaluation(tasks=("sts",)), output, None)
    first = Lengths(["zz"])
    use(monkeypatch, glue=first, sts=Lengths(["other"]))
    with pytest.raises(StageError, match=r"sts was made from other inputs .*into another file"):
        stage.evaluate(subject, small.evaluation(tasks=("glue", "sts")), output, None)
    assert first.asked == []
    other = dataclasses.replace(subject, identity=subject.identity | {"checksum": "other"})
    use(monkeypatch, glue=first)
    with pytest.raises(StageError, match="sts is of another model; delete it"):
        stage.evaluate(other, small.evaluation(tasks=("glue",)), output, None)
    assert first.asked == [] and json.loads(output.read_text())["sts"]["mean"] == 2.2


def test_what_is_finished_is_in_the_file_whatever_happens_then(tmp_path, subject, monkeypatch):
    output = tmp_path / "here.json"
    use(monkeypatch, sts=Lengths(WORDS), glue=Lengths(["zz"], until="zz"))
    with pytest.raises(KeyboardInterrupt):
        stage.evaluate(subject, small.evaluation(tasks=("sts", "glue")), output, None)
    assert json.loads(output.read_text()).keys() == {"model", "sts"}


def test_a_wrong_output_and_no_task_are_reported(tmp_path, subject):
    with pytest.raises(ConfigError, match=r"must end in \.json"):
        stage.evaluate(subject, small.evaluation(tasks=("sts",)), tmp_path / "a.txt", None)
    with pytest.raises(ConfigError, match="some of sts, nq_open"):
        stage.evaluate(subject, small.evaluation(), tmp_path / "a.json", None)


def test_all_that_is_wrong_with_all_tasks_is_reported_at_once(subject):
    config = small.evaluation(tasks=("sts", "nq_open", "glue"), data="nowhere")
    with pytest.raises(ConfigError) as error:
        stage.open_tasks(subject, config)
    assert all(f"{name}: " in str(error.value) for name in config.tasks)
