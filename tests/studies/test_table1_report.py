"""The table beside the paper's: how rates are chosen, and what its cells say."""

import csv
import io
from pathlib import Path

import pytest

from icl_jax.config.evaluation import STS_SETS
from icl_jax.studies.table1.report import (
    PAPER,
    Setting,
    choose_rates,
    make_csv,
    make_markdown,
    make_numbers,
    scores_of,
)


def setting(arm, rate, *averages, sets=STS_SETS):
    seeds = [dict.fromkeys(sets, average) for average in averages]
    return Setting(arm, rate, [Path(f"{arm}/{n}.json") for n in range(len(averages))], seeds)


SETTINGS = [
    setting("trunk", None, 40.0),
    setting("task_only", 1e-5, 50.0, 58.0),
    setting("task_only", 3e-5, 55.0, 57.0),
    setting("task_only", 5e-5, 56.0, 56.0),
    setting("neighbours_in_context", 1e-5, 61.0, 60.0),
    setting("neighbours_in_context", 3e-5, 62.0, 50.0),
]
CELL = {
    "difference": -4.5, "difference_interval95": [-5.25, -3.0], "p": 0.001, "p_holm": 0.004,
    "p_seeds": 0.02, "real": True, "verdict": "worse, real",
}  # fmt: skip
COMPARISON = {
    "reference": "neighbours_in_context",
    "updates": {"task_only": [300, 300], "neighbours_in_context": [300, 300]},
    "arms": {
        "trunk": {"sts": {"average": CELL}},
        "task_only": {"sts": {"average": CELL}},
        "neighbours_in_context": {"sts": {"average": dict.fromkeys(CELL)}},
    },
}


def test_the_paper_s_averages_are_those_of_its_rows():
    for _, scores, average in PAPER.values():
        assert sum(scores) / len(STS_SETS) == pytest.approx(average, abs=0.06)


def test_of_each_arm_the_rate_with_the_best_mean_over_seeds_is_chosen():
    chosen = choose_rates(SETTINGS)
    assert [(best.arm, best.rate) for best in chosen] == [
        ("trunk", None), ("task_only", 3e-5), ("neighbours_in_context", 1e-5),
    ]  # fmt: skip
    assert chosen[1].average == 56 and chosen[1].deviation == pytest.approx(2**0.5)
    assert chosen[0].deviation is None


def test_sets_without_a_whole_score_are_left_out():
    held = {name: {"all": {"spearman": 1.0}} for name in STS_SETS} | {"average": None}
    assert list(scores_of(held)) == [*STS_SETS]
    held["STS13"]["all"]["spearman"] = None
    del held["SICK-R"]
    assert list(scores_of(held)) == ["STS12", "STS14", "STS15", "STS16", "STS-B"]


def test_each_row_stands_above_that_of_the_paper_and_all_rates_follow():
    text = make_markdown(SETTINGS, COMPARISON)
    first, _, rates = text.partition("## All learning rates")
    lines = first.splitlines()
    row = next(n for n, line in enumerate(lines) if line.startswith("| **TAPT (task_only)**"))
    cells = [cell.strip() for cell in lines[row].strip("|").split("|")]
    assert cells[1:] == [
        "3e-05", *["56.0"] * 8, "1.41", "300",
        "-4.50 (-5.25 to -3.00), Holm's p 0.004: worse, real",
    ]  # fmt: skip
    assert lines[row + 1].startswith("| in the paper |  | 43.0 | 62.2 |")
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert "| 61.0 |" in first.partition("neighbours_in_context**")[2]
    assert "reference |" in first and "on the test sets themselves" in first
    assert rates.count("TAPT") == 3 and rates.count("neighbours_in_context") == 2


def test_an_average_of_fewer_sets_is_not_put_beside_the_paper_s():
    few = [setting("trunk", None, 40.0, sets=("STS12", "STS-B"))]
    text = make_markdown(few, None)
    assert "Without STS13, STS14, STS15, STS16, SICK-R: the average is not comparable with" in text
    assert "| in the paper |  | 32.1 | 55.4 | - |" in text
    assert "rates" not in text  # there is nothing to choose


def test_programs_get_the_same_numbers():
    numbers = make_numbers(SETTINGS, COMPARISON)
    assert numbers["arms"]["task_only"]["learning_rate"] == 3e-5
    assert numbers["arms"]["task_only"]["difference"]["p_holm"] == 0.004
    assert numbers["arms"]["neighbours_in_context"]["difference"] is None
    assert len(numbers["settings"]) == 6 and numbers["paper"]["trunk"]["average"] == 53.5
    rows = list(csv.DictReader(io.StringIO(make_csv(SETTINGS))))
    assert [row["chosen"] for row in rows[:6]] == [
        "True",
        "False",
        "True",
        "False",
        "True",
        "False",
    ]
    assert [row["source"] for row in rows].count("paper") == 6
    assert float(rows[4]["average"]) == 60.5 and rows[-1]["SICK-R"] == "68.3"


def test_arms_with_other_numbers_of_updates_are_warned_of_above_the_table():
    assert "Warning" not in make_markdown(SETTINGS, COMPARISON)
    other = COMPARISON | {"updates": {"task_only": [17], "neighbours_in_context": [300, 300]}}
    above, _, _ = make_markdown(SETTINGS, other).partition("|")
    assert "**Warning: the arms were not trained for the same number of updates**" in above
    assert "(task_only 17, neighbours_in_context 300)" in above
    assert make_numbers(SETTINGS, other)["arms"]["task_only"]["updates"] == [17]
    assert make_numbers(SETTINGS, other)["arms"]["trunk"]["updates"] is None
