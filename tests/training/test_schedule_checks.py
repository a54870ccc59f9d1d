"""A warm-up that never ends and a learning rate that jumps are refused, with what to change."""

import dataclasses
import json
import re
import runpy

from etils import epath
import pytest

from icl_jax.config import (
    BranchesConfig,
    ConfigError,
    ExperimentConfig,
    OptimizerConfig,
    TrainingConfig,
)
from icl_jax.experiment.branches import plan_branches, trunk_config
from icl_jax.training import checkpoint
from icl_jax.training.checks import rate_problems, warmup_problems


def run_of(warmup=10, start="other", schedule="cosine", schedule_steps=0, **training):
    """A run with everything of another."""
    return ExperimentConfig(
        optimizer=OptimizerConfig(
            learning_rate=1e-3, warmup=warmup, schedule=schedule, schedule_steps=schedule_steps
        ),
        training=TrainingConfig(**{"start_from": start, "start_with": "everything"} | training),
    )


@pytest.mark.parametrize(
    ("warmup", "fields", "steps_per_epoch", "message"),
    [
        (100, {"steps": 100}, None, None),
        (101, {"steps": 100}, None, r"at most 100 steps, training\.steps, got 101 steps"),
        (50, {"steps": 50, "schedule_steps": 200}, None, None),
        (51, {"steps": 50, "schedule_steps": 200}, None, r"50 steps, training\.steps, got 51"),
        (100, {"steps": 500, "schedule_steps": 99}, None, r"99 steps, optimizer\.schedule_steps"),
        (5, {"epochs": 5.0}, None, None),
        (2000, {"epochs": 5.0}, None, r"at most 5 epochs, training\.epochs .*got 2000 epochs"),
        (2, {"epochs": 5.0, "schedule_steps": 19}, None, None),  # not known yet
        (6, {"epochs": 5.0, "schedule_steps": 90}, None, r"at most 5 epochs.*got 6 epochs"),
        (6, {"epochs": 5.0, "schedule_steps": 90}, 10.0, r"at most 5 epochs.*got 6 epochs"),
        (2, {"epochs": 5.0, "schedule_steps": 19}, 10.0, r"at most 19 steps.*got 20 steps"),
        (2, {"epochs": 5.0, "schedule_steps": 20}, 10.0, None),
    ],
)
def test_a_warm_up_beyond_the_run_is_refused(warmup, fields, steps_per_epoch, message):
    found = warmup_problems(run_of(warmup, **fields), steps_per_epoch)
    if message is None:
        assert found == []
    else:
        (problem,) = found
        assert re.search(message, problem)


@pytest.mark.parametrize(("warmup", "refused"), [(120, False), (121, True)])
def test_branches_that_carry_a_trunk_on_may_end_its_warm_up(warmup, refused):
    trunk = run_of(warmup, steps=50)
    trunk.branches = BranchesConfig(arms=("regular",), steps=70)
    (branch,) = plan_branches(trunk, epath.Path("nowhere"))
    for run in (trunk_config(trunk), branch.config):
        assert bool(warmup_problems(run)) == refused


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Makes `start_from` a run of some config that stands at some step."""

    def at(theirs, step):
        monkeypatch.setattr(checkpoint, "read_config", lambda path: theirs)
        place = (epath.Path(tmp_path / "checkpoints"), step)
        monkeypatch.setattr(checkpoint, "find", lambda path: place)
        return tmp_path

    return at


def test_a_rate_that_continues_is_accepted_and_a_jump_is_not(started):
    started(run_of(steps=400), 200)
    assert rate_problems(run_of(steps=400), 400) == []
    assert rate_problems(run_of(steps=220, schedule_steps=400), 220) == []
    assert rate_problems(run_of(steps=401), 401) == []  # less than a percent
    (problem,) = rate_problems(run_of(steps=220), 220)
    # 1e-3 (1 + cos(pi x)) / 2 at x = 190 / 390 and 190 / 210
    assert "jump from 0.00052 to 2.22e-05 at step 200, where training.start_from other" in problem
    assert "optimizer.schedule_steps: 400 there, 220 here" in problem
    assert "training.rate_may_jump=True if the jump is intended" in problem
    assert rate_problems(run_of(steps=220, rate_may_jump=True), 220) == []
    assert rate_problems(run_of(steps=220, start_with="weights"), 220) == []
    assert rate_problems(run_of(steps=220, start=""), 220) == []


def test_what_is_not_there_is_left_to_the_other_checks(monkeypatch):
    def missing(path):
        raise ConfigError("there is no folder")

    monkeypatch.setattr(checkpoint, "read_config", missing)
    assert rate_problems(run_of(steps=220), 220) == []


def test_the_rate_of_a_run_by_epochs_is_known_by_its_record(started):
    workdir = started(run_of(warmup=1, epochs=4.0), 20)
    same = run_of(warmup=1, epochs=4.0)
    (problem,) = rate_problems(same, 40, 10.0)
    assert "is not known: expected the steps of its epochs in" in problem
    (workdir / "config.json").write_text(json.dumps({"steps": 40}))
    assert rate_problems(same, 40, 10.0) == []
    assert rate_problems(same, 0) == []  # before its records are there
    (problem,) = rate_problems(same, 80, 20.0)
    assert "at step 20" in problem


@pytest.mark.parametrize("size", ["base", "medium"])
def test_what_the_configs_recommend_has_no_jump(started, size):
    regular, knn = (
        runpy.run_path(f"configs/gpt_{size}_{kind}.py")["get_config"]()
        for kind in ("regular", "knn")
    )
    told = runpy.run_path(f"configs/gpt_{size}_knn.py")["__doc__"]
    assert "--config.optimizer.schedule_steps=400000" in told
    workdir = started(regular, 200_000)
    training = dataclasses.replace(knn.training, start_from=f"runs/gpt_{size}/checkpoints/200000")
    alone = dataclasses.replace(knn, training=training)
    optimizer = dataclasses.replace(knn.optimizer, schedule_steps=400_000)
    recommended = dataclasses.replace(alone, optimizer=optimizer)
    for config, jumps in ((recommended, 0), (alone, 1)):
        (branch,) = plan_branches(config, epath.Path(workdir))
        for run in (trunk_config(config), branch.config):
            assert len(rate_problems(run, run.training.steps)) == jumps
            assert warmup_problems(run) == []
