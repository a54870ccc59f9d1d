"""What is told of several runs while they go on."""

from etils import epath
import pytest

from icl_jax.config import ExperimentConfig
from icl_jax.experiment import progress
from icl_jax.experiment.branches import Branch
from icl_jax.experiment.progress import one_by_one, show_time


def test_each_run_is_told_with_its_place_and_the_time_left(monkeypatch, capsys):
    now, took = [0.0], {"there": 1.0, "long": 100.0, "short": 50.0, "last": 0.0}
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    runs = [Branch(name, "arm", ExperimentConfig(), epath.Path(name)) for name in took]
    for run in one_by_one(runs, "training branch"):
        now[0] += took[run.name]
    assert capsys.readouterr().out.split("\n\n") == [
        "\ntraining branch 1 of 4: there",
        "training branch 2 of 4: long",
        "training branch 3 of 4: short; about 3 minutes left",
        "training branch 4 of 4: last; about 100 seconds left\n",
    ]


@pytest.mark.parametrize(
    "seconds, told",
    [(7.4, "7 seconds"), (119, "119 seconds"), (150, "2 minutes"), (9000, "2 hours")],
)
def test_a_time_is_told_in_one_unit(seconds, told):
    assert show_time(seconds) == told
