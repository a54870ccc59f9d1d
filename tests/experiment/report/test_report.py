import copy
import json
from pathlib import Path
import re

import pytest

from icl_jax.experiment.report import report
from icl_jax.experiment.report.figure import draw_report
from icl_jax.experiment.report.numbers import headlines, make_numbers
from icl_jax.experiment.report.report import make_table, make_text, write_report
from icl_jax.experiment.report.sentences import say_what_was_seen, say_where_to_look

REFERENCE = "neighbours_in_context"
ITEMS = 400


@pytest.fixture(autouse=True)
def without_figure(monkeypatch):
    """Drawing takes longer than all else here; one test does it."""
    monkeypatch.setattr(report, "draw_report", lambda comparison, file, kind: file.touch())


def cell(value, reference=None, *, p=0.0001, p_seeds=None, seeds=None, **fields):
    """A number of an arm; `reference` is that of the arm it is compared with."""
    made = {
        "value": value, "interval95": [value * 0.9, value * 1.1], "seeds": seeds or [value],
        "items": ITEMS, "right": None, "unit": "share of 1", "better": "higher",
    }  # fmt: skip
    if reference is None:
        return (
            made | dict.fromkeys(("difference", "test", "p", "p_holm", "p_seeds", "real")) | fields
        )
    real = p < 0.05 and (len(made["seeds"]) == 1 or (p_seeds is not None and p_seeds < 0.05))
    made |= {"difference": value - reference, "test": "sign test", "p": p / 2, "p_holm": p}
    return made | {"p_seeds": p_seeds, "real": real} | fields


def compared(task, cells, reference=REFERENCE):
    """A comparison of one task: arm -> metric -> cell."""
    return {
        "reference": reference,
        "comparisons": 8,
        "evaluations": {
            arm: [f"runs/q/branches/{arm}-seed{n}/evaluation/550" for n in range(_seeds(metrics))]
            for arm, metrics in cells.items()
        },
        "updates": {arm: [60] * _seeds(metrics) for arm, metrics in cells.items()},
        "arms": {arm: {task: metrics} for arm, metrics in cells.items()},
    }


def _seeds(metrics):
    return len(next(iter(metrics.values()))["seeds"])


def questions(right, **p):
    """Arm -> how many right, a list for several seeds; an arm's p is 0.0001, or in `p`.

    There it may be two: over items, and over seeds.
    """
    right = {arm: held if isinstance(held, list) else [held] for arm, held in right.items()}
    shares = {arm: [n / ITEMS for n in counts] for arm, counts in right.items()}
    means = {arm: sum(held) / len(held) for arm, held in shares.items()}
    cells = {}
    for arm, seeds in shares.items():
        tests = p.get(arm, 0.0001)
        tests = dict(zip(("p", "p_seeds"), tests if isinstance(tests, tuple) else (tests,)))
        cells[arm] = {
            metric: cell(
                means[arm] + more,
                None if arm == REFERENCE else means[REFERENCE] + more,
                seeds=[seed + more for seed in seeds],
                right=means[arm] * ITEMS if metric == "exact_match" else None,
                **tests,
            )
            for metric, more in (("exact_match", 0.0), ("f1", 0.1))
        }
    return compared("nq_open", cells)


COUNTS = {"regular": 3, REFERENCE: 112, "random_in_context": 7, "random_in_batch": 0}


def seen(comparison):
    (headline,) = headlines(comparison)
    return say_what_was_seen(comparison, headline)


# Numbers.


def test_the_file_has_arms_at_the_top_and_their_numbers_below(tmp_path, capsys):
    write_report(questions(COUNTS), tmp_path)
    numbers = json.loads((tmp_path / "comparison.json").read_text())
    assert list(numbers) == list(COUNTS)
    assert numbers[REFERENCE] == {
        "exact_match": 0.28, "f1": 0.38, "correct": 112, "total": 400,
        "exact_match_interval95": pytest.approx([0.252, 0.308]),
        "f1_interval95": pytest.approx([0.342, 0.418]),
        "p_exact_match": None, "p_f1": None, "updates": [60], "seeds": 1,
    }  # fmt: skip
    assert isinstance(numbers["regular"]["correct"], int)
    assert numbers["regular"]["p_exact_match"] == 0.00005  # not adjusted


def test_several_seeds_are_counted_and_their_right_answers_averaged():
    numbers = make_numbers(questions({"regular": [3, 4], REFERENCE: [100, 112]}))
    assert [numbers[arm]["seeds"] for arm in numbers] == [2, 2]
    assert numbers["regular"]["correct"] == 3.5 and numbers[REFERENCE]["correct"] == 106


def test_numbers_of_other_tasks_have_the_task_before_them():
    comparison = every_task()
    numbers = make_numbers(comparison)["regular"]
    values = [name for name in numbers if not name.startswith("p_") and "interval" not in name]
    assert values == [
        "exact_match", "f1", "sts_average", "sts_STS12", "sts_STS-B", "neighbour_gain",
        "neighbour_gain_gain_neighbours", "perplexity_loss_of_documents", "glue_RTE_accuracy",
        "correct", "total", "updates", "seeds",
    ]  # fmt: skip
    for name in values[:-4]:
        assert len(numbers[f"{name}_interval95"]) == 2 and numbers[f"p_{name}"] == 0.00005
    assert make_numbers(comparison)[REFERENCE]["p_sts_average"] is None
    for arm in comparison["arms"].values():
        del arm["perplexity"]["loss of documents"]  # where arms have other tokens
    assert "perplexity_loss_of_documents_by_byte" in make_numbers(comparison)["regular"]


def every_task():
    """All five tasks, with the names that metrics have in a comparison."""
    metrics = {
        "sts": {"STS12": (30, 40), "STS-B": (31, 41), "average": (30.5, 40.5)},
        "glue": {"RTE accuracy": (0.5, 0.52), "RTE accuracy by token": (0.5, 0.53)},
        "perplexity": {
            f"loss of documents{by}": (3.0, 3.1) for by in ("", ", by character", ", by byte")
        },
        "neighbour_gain": {"gain_neighbours": (0.05, 0.06), "neighbour_gain": (0.1, 0.2)},
    }
    units = {
        "sts": {"unit": "Spearman x 100, all"},
        "glue": {},
        "perplexity": {"unit": "nats per token", "better": "lower"},
        "neighbour_gain": {"unit": "nats gained per token"},
    }
    comparison = questions({"regular": 3, REFERENCE: 112})
    for task, held in metrics.items():
        comparison["arms"]["regular"][task] = {
            name: cell(*values, **units[task]) for name, values in held.items()
        }
        comparison["arms"][REFERENCE][task] = {
            name: cell(ours, **units[task]) for name, (_, ours) in held.items()
        }
    return comparison


# Tables.


def test_the_table_is_aligned_in_the_order_of_the_arms(tmp_path, capsys):
    comparison = questions(COUNTS, random_in_context=0.02)
    write_report(comparison, tmp_path)
    printed, written = capsys.readouterr().out, (tmp_path / "comparison.md").read_text()
    (headline,) = headlines(comparison)
    table = make_table(comparison, headline)
    assert table in printed and table in written
    lines = table.splitlines()
    assert len({len(line) for line in lines}) == 1  # so that it is a table in a terminal too
    assert len({tuple(m.start() for m in re.finditer(r"\|", line)) for line in lines}) == 1
    rows = [[text.strip() for text in line.strip("|").split("|")] for line in lines]
    assert rows[0] == [
        "arm", "updates", "exact match", "F1", "correct", "95% interval", "p against reference"
    ]  # fmt: skip
    assert [row[0] for row in rows[2:]] == list(COUNTS)
    assert rows[3] == [
        REFERENCE, "60", "28.00%", "38.00%", "112 of 400", "25.20 to 30.80%", "reference"
    ]  # fmt: skip
    assert [row[-1] for row in rows[2:]] == ["< 0.001", "reference", "0.010", "< 0.001"]
    assert "![The arms compared](comparison.png)" in written
    assert "(comparison/comparison.md)" in written
    assert "sign test, not adjusted): exact match on the same 400 questions" in written
    assert "1 seed per arm" in written


def test_each_task_has_a_table_and_a_sentence(tmp_path):
    text = make_text(every_task(), tmp_path)
    tasks = ["nq_open", "sts", "neighbour_gain", "perplexity", "glue"]
    assert re.findall("^## (.*)$", text, re.MULTILINE) == tasks
    assert re.findall("^[|] arm +[|] updates [|] (.*?) +[|]", text, re.MULTILINE) == [
        "exact match", "average", "neighbour gain", "loss of documents", "RTE accuracy"
    ]  # fmt: skip
    assert f"sts average: {REFERENCE} has 40.50, regular 30.50; its lead over regular" in text
    assert f"loss of documents: {REFERENCE} has 3.1000, regular 3.0000; regular is" in text
    assert "; regular is significantly better on these texts" in text
    assert "(nats per token) on the same 400 texts, lower is better" in text
    assert text.count("Look next") == 1


def test_seeds_and_few_items_are_reported(tmp_path):
    comparison = questions({"trunk": 2, "regular": [3, 4], REFERENCE: [100, 112]})
    text = make_text(comparison, tmp_path)
    assert "Means of 2 seeds; trunk: 1." in text and "106.0 of 400" in text
    assert "too narrow" not in text
    for tasks in comparison["arms"].values():
        for held in tasks["nq_open"].values():
            held["items"] = 12
    assert "With only 12 questions, intervals are too narrow" in make_text(comparison, tmp_path)


# What was seen.


def test_a_lead_over_every_arm():
    assert seen(questions(COUNTS, random_in_context=0.004)) == (
        f"{REFERENCE} answers 112 of 400 questions, regular 3 and random_in_context, the best of "
        "the others, 7; its lead over every other arm is significant on these questions "
        "(largest adjusted p 0.004)."
    )


def test_a_lead_over_some_arms_and_no_difference_to_others():
    counts = COUNTS | {"random_in_context": 101}
    assert seen(questions(counts, random_in_context=0.3)).endswith(
        "; its lead over regular and random_in_batch is significant on these questions (largest "
        "adjusted p < 0.001); the difference to random_in_context is not significant (adjusted p "
        "0.300)."
    )


def test_no_difference_to_any_arm():
    said = seen(questions({"regular": 3, REFERENCE: 4, "task_only": 2}, regular=1, task_only=0.8))
    assert said == (
        f"{REFERENCE} answers 4 of 400 questions, regular 3; no difference to any other arm is "
        "significant (smallest adjusted p 0.800)."
    )


def test_another_arm_is_better():
    said = seen(questions(COUNTS | {"random_in_context": 200}))
    assert "random_in_context, the best of the others, 200; its lead over regular and" in said
    assert said.endswith(
        "; random_in_context is significantly better on these questions (adjusted p < 0.001)."
    )
    said = seen(questions({"regular": 90, REFERENCE: 4, "random_in_batch": 91}))
    assert "; every other arm is significantly better on these" in said and "lead" not in said


def test_several_seeds_are_named_and_must_agree():
    counts = {"regular": [3, 4], REFERENCE: [100, 112], "random_in_batch": [20, 70]}
    said = seen(questions(counts, regular=(0.001, 0.01), random_in_batch=(0.002, 0.2)))
    assert said == (
        f"{REFERENCE} answers 106.0 of 400 questions (mean of 2 seeds), regular 3.5 and "
        "random_in_batch, the best of the others, 45.0; its lead over regular is significant on "
        "these questions and over seeds (adjusted p 0.001; over seeds p 0.010); the difference to "
        "random_in_batch is significant on these questions, but not over seeds (p 0.200)."
    )
    said = seen(questions(counts, regular=(0.001, None), random_in_batch=(0.001, None)))
    assert said.endswith("every other arm is significant on these questions, but not over "
                         "seeds (an arm's seeds are equal).")  # fmt: skip


def test_where_nothing_is_right_f1_is_spoken_of():
    comparison = questions(dict.fromkeys(COUNTS, 0), regular=0.5)
    said = seen(comparison)
    assert said.startswith(
        f"No arm answers a question exactly; {REFERENCE} has an F1 of 10.00%, regular 10.00%; "
    )
    (headline,) = headlines(comparison)
    assert "10.00%" in make_table(comparison, headline).splitlines()[2]
    assert "9.00 to 11.00%" in make_table(comparison, headline)  # the interval of F1


def test_without_a_regular_arm_the_first_is_the_baseline():
    said = seen(questions({"task_only": 9, REFERENCE: 50, "random_in_context": 5}))
    assert f"{REFERENCE} answers 50 of 400 questions, task_only 9; " in said


# Where to look.


def test_where_to_look_names_only_what_is_there(tmp_path, monkeypatch):
    comparison = questions(COUNTS)
    (headline,) = headlines(comparison)
    answers = f"runs/q/branches/{REFERENCE}-seed0/evaluation/550/nq_open/outputs.jsonl"
    told = say_where_to_look(comparison, tmp_path, headline)
    assert told == f"Look next at the answers of {REFERENCE} in {answers}."
    design = tmp_path / "design"
    (design / "arms" / REFERENCE).mkdir(parents=True)
    (design / "arms" / REFERENCE / "results.json").write_text("{}")
    (design / "card.html").write_text("")
    told = say_where_to_look(comparison, tmp_path, headline)
    assert (
        f"(`python -m icl_jax.design.explain --workdir={tmp_path} --arm={REFERENCE} "
        f"--index=1`), at all arms side by side in {design / 'card.html'} and at the answers"
    ) in told
    inside = tmp_path / "branches" / "evaluation"
    comparison["evaluations"][REFERENCE] = [str(inside)]
    monkeypatch.chdir(tmp_path.parent)
    told = say_where_to_look(comparison, Path(tmp_path.name), headline)
    assert f" in {tmp_path.name}/branches/evaluation/nq_open/outputs.jsonl." in told
    comparison["reference"] = with_rate = f"{REFERENCE}-rate3e-05"
    comparison["evaluations"][with_rate] = comparison["evaluations"].pop(REFERENCE)
    assert f"--arm={REFERENCE} " in say_where_to_look(comparison, tmp_path, headline)


# The figure.


def test_the_figure_shows_every_arm_and_is_the_same_each_time(tmp_path):
    comparison = questions({"regular": [3, 4], REFERENCE: [100, 112]}, regular=(0.001, 0.01))
    before = copy.deepcopy(comparison)
    for name in ("one.svg", "two.svg"):
        draw_report(comparison, tmp_path / name, "svg")
    svg = (tmp_path / "one.svg").read_text()
    assert svg == (tmp_path / "two.svg").read_text() and comparison == before
    for text in ("Closed-book questions answered, of 400", "regular", REFERENCE, ">106.0<"):
        assert text in svg
    assert "means of 2 seeds" in svg and "95% intervals over questions" in svg


def test_the_figure_has_a_panel_for_each_of_four_tasks(tmp_path):
    comparison = every_task()
    for tasks in comparison["arms"].values():
        for held in tasks["nq_open"].values():
            held |= {"value": 0.0, "interval95": [0.0, 0.0], "seeds": [0.0]}
            held["right"] = None if held["right"] is None else 0.0
    draw_report(comparison, tmp_path / "figure.svg", "svg")
    svg = (tmp_path / "figure.svg").read_text()
    for text in ("questions, F1", "similarity, average", "Gain of neighbours", "Loss of documents"):
        assert text in svg
    assert "accuracy" not in svg and ">0.00%<" in svg and "lower is better" in svg


def test_the_updates_of_each_arm_are_reported_and_a_warning_comes_first_where_they_differ():
    comparison = questions({"regular": [3, 4], REFERENCE: [100, 112]})
    assert "Warning" not in make_text(comparison, Path("runs/q"))
    comparison["updates"] = {"regular": [1057, 1060], REFERENCE: [1000, 1000]}
    table = make_table(comparison, headlines(comparison)[0])
    assert [line.split("|")[2].strip() for line in table.splitlines()] == [
        "updates", "-------------:", "1,057 to 1,060", "1,000"
    ]  # fmt: skip
    text = make_text(comparison, Path("runs/q"))
    assert text.startswith("**Warning: the arms were not trained for the same number of updates**")
    assert f"(regular 1,057 to 1,060, {REFERENCE} 1,000)" in text
    comparison["updates"]["regular"] = [1050, 1050]  # within 5%
    assert "Warning" not in make_text(comparison, Path("runs/q"))
    del comparison["updates"]  # of an older version
    assert "updates" not in make_text(comparison, Path("runs/q"))
