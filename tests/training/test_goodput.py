"""The time of a run adds up, over restarts, and what was lost is reported as lost."""

import json

from etils import epath
import pytest

from icl_jax.training.goodput import PARTS, Goodput


class Clock:
    """A time that passes when it is told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


def begin(folder, clock: Clock, step: int) -> Goodput:
    """A start of the run: 3 seconds to read, 5 to compile."""
    goodput = Goodput(epath.Path(folder), clock)
    clock.passes(3)
    goodput.continue_from(step)
    with goodput.spent_on("compile"):
        clock.passes(5)
    goodput.begin_steps()
    return goodput


def seconds(goodput: Goodput) -> list[float]:
    numbers = goodput.numbers()
    return [numbers[f"seconds_{name}"] for name in PARTS]


def test_every_second_has_its_part(tmp_path):
    clock = Clock()
    goodput = begin(tmp_path, clock, 0)
    clock.passes(10)
    goodput.add("input_wait", 4)
    with goodput.spent_on("checkpoint"):
        clock.passes(2)
    assert seconds(goodput) == [6, 3, 5, 4, 2, 0]
    assert goodput.numbers()["goodput"] == 6 / 20
    assert goodput.report() == (
        "of 20 s: steps 30.0%, start 15.0%, compile 25.0%, waiting for input 20.0%, "
        "checkpoints 10.0%"
    )


@pytest.mark.parametrize("saved", [False, True])
def test_what_was_not_saved_and_when_nothing_ran_is_lost(tmp_path, saved):
    clock = Clock()
    killed = begin(tmp_path, clock, 0)
    clock.passes(10)
    if saved:
        killed.note(5)
    clock.passes(7)  # of steps that no checkpoint has
    clock.passes(60)  # until somebody starts it again
    goes_on = begin(tmp_path, clock, 5 if saved else 0)
    clock.passes(10)
    # Without a checkpoint only the first 3 seconds, until it knew where it stood, are kept.
    expected = [20, 6, 10, 0, 0, 67] if saved else [10, 6, 5, 0, 0, 82]
    assert seconds(goes_on) == expected
    assert goes_on.numbers()["seconds"] == clock.now - 1000


def test_a_run_that_went_back_forgets_what_came_after(tmp_path):
    clock = Clock()
    first = begin(tmp_path, clock, 0)
    for step in (5, 10):
        clock.passes(10)
        first.note(step)
    again = begin(tmp_path, clock, 5)  # the checkpoint of step 10 was not finished
    assert seconds(again)[-1] == 10
    again.note(10)
    entries = json.loads((tmp_path / "goodput.json").read_text())
    assert [entry["step"] for entry in entries] == [0, 5, 10]


def test_a_clock_that_goes_back_takes_nothing_away(tmp_path):
    clock = Clock()
    begin(tmp_path, clock, 0).note(5)
    clock.passes(-500)
    assert seconds(begin(tmp_path, clock, 5))[-1] == 0
