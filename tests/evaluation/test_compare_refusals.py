"""Evaluations that cannot be compared: what is wrong is said, and nothing is written."""

import json
import re

import numpy as np
import pytest

from icl_jax.config import ConfigError, StageError
from icl_jax.evaluation.compare.compare import compare, parse_runs
from icl_jax.evaluation.compare.table import make_markdown
from icl_jax.files.step_folder import write_json
from tests.evaluation.compare.test_compare import (  # noqa: F401
    question_rows,
    questions,
    sts,
    without_figure,
    write_task,
)


def refused(tmp_path, **arms) -> str:
    """What a comparison of these stops with, before it writes anything."""
    with pytest.raises(StageError) as error:
        compare({arm: [path] for arm, path in arms.items()}, next(iter(arms)), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    return str(error.value)


def test_vectors_must_be_made_in_the_same_way(tmp_path):
    (a, _), (b, _) = sts(tmp_path / "a", 1.0, 0), sts(tmp_path / "b", 1.0, 1)
    inputs = json.loads((b / "sts/inputs.json").read_text())
    inputs["vectors"] |= {"max_tokens": 128, "pooling": ["cls"]}
    write_json(b / "sts/inputs.json", inputs)
    assert re.search(
        r"\(vectors.pooling: \['mean'\] there, \['cls'\] here\)", refused(tmp_path, a=a, b=b)
    )


def test_other_items_or_settings_are_refused_and_named(tmp_path):
    a = questions(tmp_path / "a", 0.2, prompt={"template": "Q"})
    b = questions(tmp_path / "b", 0.2, prompt={"template": "Q?"})
    assert re.search("prompt.template: 'Q' there, 'Q\\?' here", refused(tmp_path, a=a, b=b))
    rows = question_rows(np.zeros(60))
    d = write_task(tmp_path / "d/nq_open", rows[:-1], prompt={"template": "Q"})
    assert re.search("it has 59 of them, not 60", refused(tmp_path, a=a, d=d))
    rows[3]["question"] = "who was 3"
    e = write_task(tmp_path / "e/nq_open", rows, prompt={"template": "Q"})
    assert re.search(
        "line 4: question: 'who is 3' there, 'who was 3' here", refused(tmp_path, a=a, e=e)
    )


def test_unfinished_missing_and_several_evaluations_are_named(tmp_path):
    a, b = questions(tmp_path / "a", 0.2), questions(tmp_path / "b", 0.2)
    assert re.search(
        "there is no evaluation at .*none", refused(tmp_path, a=a, none=tmp_path / "none")
    )
    (tmp_path / "empty").mkdir()
    assert re.search("holds no evaluation", refused(tmp_path, a=a, empty=tmp_path / "empty"))
    questions(tmp_path / "runs/100", 0.2)
    questions(tmp_path / "runs/200", 0.2)
    assert re.search(
        r"2 evaluations \(100, 200\); name one", refused(tmp_path, a=a, b=tmp_path / "runs")
    )
    (b / "nq_open" / "results.json").unlink()
    assert re.search(r"b is not finished \(nq_open\)", refused(tmp_path, a=a, b=b))


def test_a_task_that_an_arm_lacks_is_left_out_and_named(tmp_path):
    a, b = questions(tmp_path / "a", 0.2), questions(tmp_path / "b", 0.2)
    rows = [{"task": "RTE", "label": "yes", "prediction": "no"}]
    write_task(a / "glue", rows)
    result = compare({"a": [a], "b": [b]}, "a", tmp_path / "fine", 50)
    assert [(left["task"], left["arms"]) for left in result["left_out"]] == [("glue", ["b"])]
    assert "Left out: glue (not evaluated in b)." in make_markdown(result)
    c = write_task(tmp_path / "c/glue", rows)
    assert re.search("no task that all arms", refused(tmp_path, b=b, c=c))


def test_two_models_in_one_evaluation_and_one_model_twice_are_refused(tmp_path):
    a, b = questions(tmp_path / "a", 0.2), questions(tmp_path / "b", 0.2)
    with pytest.raises(
        StageError, match=r"b and .*b are two seeds of 'knn', but of the same model"
    ):
        compare({"a": [a], "knn": [b, b]}, "a", tmp_path / "out")
    rows = [{"task": "RTE", "label": "yes", "prediction": "no"}]
    write_task(b / "glue", rows, model={"checksum": "another"})
    assert re.search(
        "b/nq_open and .*b/glue are of two models; evaluate again", refused(tmp_path, a=a, b=b)
    )


def test_wrong_names_are_refused(tmp_path):
    a = questions(tmp_path / "a", 0.2)
    with pytest.raises(ConfigError, match="'knn' is not one of the arms: a"):
        compare({"a": [a]}, "knn", tmp_path / "out")
    for text in ("runs/a", "a=", "=runs/a", "a=x,"):
        with pytest.raises(ConfigError, match="expected NAME=PATH"):
            parse_runs(text)
    assert {k: len(v) for k, v in parse_runs("a=x,b=y,a=z").items()} == {"a": 2, "b": 1}
