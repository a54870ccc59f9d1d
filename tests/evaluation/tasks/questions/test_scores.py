import importlib.util
from pathlib import Path
import random
import re

import pytest

from icl_jax.evaluation.tasks.questions.scores import (
    exact_match,
    f1,
    harness_exact_match,
    normalise,
)

PIECES = (
    "the", "The", "a", "An", "an", "Apple", "apple", "I.B.M.", "U.S.", "12,000", "1903", "-", "?",
    "\u2014", "\u2019s", "'s", "Théâtre", "Łódź", "\ufb01", "the-end", "a.m.", "  ", "\t", "\xa0",
    "\n", "(", "river", "of", "rain", "Rain,", "athe",
)  # fmt: skip


def random_text(source):
    return source.choice(["", " "]).join(source.choices(PIECES, k=source.randrange(6)))


def random_answer(source, golds):
    """Any text, or a gold one in other dress."""
    if source.random() < 0.6:
        return random_text(source)
    before, after = source.choice(["", "the ", "A ", " ("]), source.choice(["", ".", " ?"])
    return before + source.choice([str, str.upper])(source.choice(golds)) + after


def reference(name):
    """A module of lm-evaluation-harness, without the rest of it."""
    package = importlib.util.find_spec("lm_eval")
    if package is None:
        pytest.skip("needs lm_eval")
    file = Path(package.submodule_search_locations[0]) / name
    if not file.exists():
        pytest.skip(f"this lm_eval has no {name}")
    spec = importlib.util.spec_from_file_location(f"reference_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Beatles!", "beatles"),
        ("an apple a day", "apple day"),
        ("A", ""),
        ("anthem of the theatre", "anthem of theatre"),
        ("U.S.A.", "usa"),
        ("co-operate", "cooperate"),
        (" \n ", ""),
    ],
)
def test_normalisation(text, expected):
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("answer", "golds", "match", "score"),
    [
        ("the Saint Lawrence river.", ["Saint Lawrence River"], 1, 1.0),
        ("in December 1972", ["14 December 1972 UTC", "December 1972"], 0, 0.8),
        ("one one", ["one"], 0, 2 / 3),  # a word counts as often as it is there
        ("two", ["one", "two"], 1, 1.0),
        ("", ["one"], 0, 0.0),
        ("the", ["one"], 0, 0.0),
        ("three", ["one"], 0, 0.0),
    ],
)
def test_scores_by_hand(answer, golds, match, score):
    assert exact_match(answer, golds) == match
    assert f1(answer, golds) == pytest.approx(score)


def test_saying_nothing_is_never_right():
    for gold in ("A+", "*", "---", "The A"):
        for answer in ("", "the", "?"):
            assert exact_match(answer, [gold]) == f1(answer, [gold]) == 0
        assert exact_match(f" {gold.lower()}", [gold]) == f1(gold, [gold]) == 1


def test_scores_are_those_of_squads_script():
    squad = reference("tasks/qasper/metrics.py")  # its normalisation and F1 are SQuAD v1.1's
    source = random.Random(0)
    matches = 0
    for _ in range(3000):
        golds = [random_text(source) for _ in range(2)]
        answer = random_answer(source, golds)
        assert normalise(answer) == squad.normalize_answer(answer)
        if not all(map(normalise, golds)):
            continue
        same = [squad.normalize_answer(answer) == squad.normalize_answer(gold) for gold in golds]
        assert exact_match(answer, golds) == any(same)
        assert f1(answer, golds) == pytest.approx(
            max(squad.f1_abstractive([answer], [gold]) for gold in golds)
        )
        matches += any(same)
    assert matches > 100


def test_the_harness_exact_match_is_the_harness_own():
    metrics = pytest.importorskip("lm_eval.api.metrics")
    task = reference_yaml()
    source = random.Random(1)
    matches = 0
    for _ in range(3000):
        golds = [random_text(source) or "x" for _ in range(2)]
        answer = random_answer(source, golds)
        theirs = metrics.exact_match_hf_evaluate(
            predictions=[answer.strip()] * 2,  # its filter remove_whitespace
            references=golds,
            regexes_to_ignore=task,
            ignore_case=True,
            ignore_punctuation=True,
        )
        assert harness_exact_match(answer, golds) == (theirs["exact_match"] > 0), (answer, golds)
        matches += theirs["exact_match"] > 0
    assert matches > 100


def reference_yaml():
    """The regexes of the harness's task."""
    package = importlib.util.find_spec("lm_eval")
    text = (Path(package.submodule_search_locations[0]) / "tasks/nq_open/nq_open.yaml").read_text()
    (regex,) = re.findall(r'regexes_to_ignore:\n\s*- "(.*)"', text)
    return [regex.replace("\\\\", "\\")]
