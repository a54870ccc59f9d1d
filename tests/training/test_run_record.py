"""A workdir belongs to one run: what would mix another into it is refused and named."""

import dataclasses
import json
import shutil
import types

from etils import epath
import numpy as np
import pytest

from icl_jax.config import ConfigError, StageError
from icl_jax.data.input_pipeline import open_data
from icl_jax.training import checkpoint
from icl_jax.training.run_record import (
    find_start,
    planned_steps,
    record_run,
    require_trained,
    run_problems,
    settle_dropout_keys,
)
from tests.training.small import experiment, one_device, write_source

CONSTANT = {"schedule": "constant"}


@pytest.fixture
def trunk(tmp_path):
    """The workdir of a run with checkpoints after 4 and 6 steps."""
    return add_checkpoints(tmp_path / "trunk", 4, 6)


def add_checkpoints(workdir, *steps):
    for step in steps:
        folder = workdir / "checkpoints" / str(step) / "params"
        folder.mkdir(parents=True)
        (folder / "weights").write_text(f"after {step}")
    return epath.Path(workdir)


def make(tmp_path, start="", **fields):
    """Config and data of a run that begins with everything of `start`."""
    source = tmp_path / "records"
    if not source.exists():
        write_source(source, [[5, 6, 7, 0]] * 20)
    start_with = {"start_from": str(start), "start_with": "everything"}
    config = experiment(source, **start_with | {"optimizer": CONSTANT} | fields)
    return config, open_data(config.data, config.batch_size, config.sequence_length, config.seed)


def begun(tmp_path, *steps, **fields):
    """Config, workdir and data of a run with these checkpoints."""
    config, data = make(tmp_path, **fields)
    workdir = add_checkpoints(tmp_path / "run", *steps)
    record_run(config, workdir, data)
    return config, workdir, data


def test_a_start_is_known_by_its_weights_and_not_by_its_path(tmp_path, trunk, monkeypatch):
    config, workdir, data = begun(tmp_path, 8, start=trunk, steps=8)
    assert run_problems(config, workdir, data) == []
    monkeypatch.chdir(tmp_path)
    moved = tmp_path / "moved"
    shutil.copytree(trunk, moved)
    for path in ("trunk", moved, trunk / "checkpoints" / "6"):
        assert run_problems(make(tmp_path, path, steps=8)[0], workdir, data) == []
    (problem,) = run_problems(
        make(tmp_path, trunk / "checkpoints" / "4", steps=8)[0], workdir, data
    )
    assert "another config (training.start_from.step: 6 there, 4 here, " in problem
    (moved / "checkpoints" / "6" / "params" / "weights").write_text("of another training")
    (problem,) = run_problems(make(tmp_path, moved, steps=8)[0], workdir, data)
    assert "another config (training.start_from.checksum: " in problem


def test_a_run_that_has_done_more_than_is_asked_for_is_not_called_complete(tmp_path):
    config, workdir, data = begun(tmp_path, 6, steps=6)
    fewer = dataclasses.replace(config.training, steps=5)
    (problem,) = run_problems(dataclasses.replace(config, training=fewer), workdir, data)
    assert "it has done 6 steps, more than the requested 5" in problem
    more = dataclasses.replace(config.training, steps=9)
    assert run_problems(dataclasses.replace(config, training=more), workdir, data) == []


def test_a_run_does_not_continue_with_records_that_were_written_again(tmp_path):
    config, workdir, _ = begun(tmp_path, 4, steps=6)
    write_source(tmp_path / "records", [[5, 6, 7, 1]] * 20)
    data = open_data(config.data, config.batch_size, config.sequence_length, config.seed)
    (problem,) = run_problems(config, workdir, data)
    assert "another config (data: the record files changed)" in problem


@pytest.mark.parametrize(("first", "refused"), [(-20, False), (0, True)])
def test_a_run_of_batch_groups_does_not_continue_by_later_rules(tmp_path, first, refused):
    rows = [[5, 6, 7, 0]] * 20
    groups = [[max(-1, first + place // 2)] for place in range(20)]
    write_source(tmp_path / "records", rows, batch_group=groups)
    config, workdir, data = begun(tmp_path, 4, steps=6, data={"pack": True})
    assert run_problems(config, workdir, data) == []
    record = json.loads((workdir / "config.json").read_text())
    del record["plan"]  # as older versions wrote it
    (workdir / "config.json").write_text(json.dumps(record))
    problems = run_problems(config, workdir, data)
    assert len(problems) == refused
    if refused:
        assert "arranged by another version of icl_jax" in problems[0]
        assert "(plan 1 there, 2 here)" in problems[0]
    add_checkpoints(workdir, 6)  # at its end nothing of it comes any more
    assert run_problems(config, workdir, data) == []


def test_of_several_checkpoints_the_one_of_the_most_steps_is_the_latest(tmp_path):
    workdir = add_checkpoints(tmp_path / "run", 10, 9, 100)
    assert checkpoint.find(str(workdir)) == (workdir / "checkpoints", 100)
    add_checkpoints(tmp_path / "run", 20)
    assert checkpoint.finished_steps(workdir / "checkpoints") == [9, 10, 20, 100]


def test_a_start_beyond_the_end_is_refused(tmp_path, trunk):
    new = epath.Path(tmp_path / "new")
    config, data = make(tmp_path, trunk, steps=5)
    (problem,) = run_problems(config, new, data)
    assert f"{trunk} has done 6 steps, more than the requested 5; raise training.steps" in problem
    assert run_problems(*make_in(tmp_path, trunk, new, steps=6)) == []
    assert run_problems(*make_in(tmp_path, trunk, new, steps=5, start_with="weights")) == []


def make_in(tmp_path, start, workdir, **fields):
    config, data = make(tmp_path, start, **fields)
    return config, workdir, data


def test_only_the_end_of_a_run_is_called_trained(tmp_path):
    config, workdir, _ = begun(tmp_path, 4, steps=6)
    with pytest.raises(StageError, match=r"run has done 4 of 6 steps; rerun the command with --st"):
        require_trained(config, workdir)
    with pytest.raises(StageError, match=r"there is no trained model in .*nowhere"):
        require_trained(config, epath.Path(tmp_path / "nowhere"))
    add_checkpoints(workdir, 6)
    require_trained(config, workdir)
    with pytest.raises(ConfigError, match=r"another config \(seed: 0 there, 1 here\)"):
        require_trained(dataclasses.replace(config, seed=1), workdir)
    fewer = dataclasses.replace(config.training, steps=4)
    with pytest.raises(ConfigError, match="it has done 6 steps, not 4"):
        require_trained(dataclasses.replace(config, training=fewer), workdir)


def test_the_end_of_epochs_is_known_without_the_records(tmp_path):
    config, data = make(tmp_path, steps=0, epochs=2.0)
    assert planned_steps(config, data) == 5  # 20 records, 8 a step
    workdir = add_checkpoints(tmp_path / "run", 4)
    record_run(config, workdir, data)
    shutil.rmtree(tmp_path / "records")
    with pytest.raises(StageError, match="has done 4 of 5 steps"):
        require_trained(config, workdir)
    add_checkpoints(workdir, 5)
    require_trained(config, workdir)


def test_an_epoch_that_ends_within_a_step_takes_the_whole_step(tmp_path):
    assert planned_steps(*make(tmp_path, steps=0, epochs=1.0)) == 3  # 2.5 steps of 8 records


def test_a_start_that_is_not_there_or_far_away_is_distinguished(tmp_path, monkeypatch):
    none, missing, far = (
        make(tmp_path, start)[0] for start in ("", tmp_path / "nowhere", "gs://bucket/model")
    )
    assert find_start(none) is find_start(missing) is None
    monkeypatch.setattr(type(epath.Path("gs://bucket")), "exists", lambda path: False)
    assert find_start(far) == {"path": "gs://bucket/model"}


def test_a_run_keeps_the_dropout_keys_that_it_began_with(tmp_path):
    config, data = make(tmp_path, steps=8)
    workdir, mesh = epath.Path(tmp_path / "run"), one_device()
    fresh = settle_dropout_keys(config, workdir, mesh)
    assert (config.training.dropout_keys, fresh.training.dropout_keys) == ("auto", "threefry")
    chosen = dataclasses.replace(config.training, dropout_keys="rbg")
    chosen = dataclasses.replace(config, training=chosen)
    record_run(settle_dropout_keys(chosen, workdir, mesh), workdir, data)
    # Nothing was trained with them yet.
    assert settle_dropout_keys(config, workdir, mesh).training.dropout_keys == "threefry"
    add_checkpoints(workdir, 4)
    assert run_problems(config, workdir, data) == []
    assert settle_dropout_keys(config, workdir, mesh).training.dropout_keys == "rbg"
    assert (
        json.loads((workdir / "config.json").read_text())["config"]["training"]["dropout_keys"]
        == "rbg"
    )
    other = dataclasses.replace(config.training, dropout_keys="threefry")
    other = dataclasses.replace(config, training=other)
    (told,) = run_problems(other, workdir, data)
    assert "training.dropout_keys: 'rbg' there, 'threefry' here" in told


def test_a_run_from_before_there_was_a_choice_continues_with_threefry(tmp_path):
    config, workdir, data = begun(tmp_path, 4, steps=8)
    held = json.loads((workdir / "config.json").read_text())
    del held["config"]["training"]["dropout_keys"]
    (workdir / "config.json").write_text(json.dumps(held))
    tpu = types.SimpleNamespace(devices=np.array([types.SimpleNamespace(platform="tpu")]))
    assert settle_dropout_keys(config, workdir, tpu).training.dropout_keys == "threefry"
    assert settle_dropout_keys(config, workdir / "new", tpu).training.dropout_keys == "rbg"
    assert run_problems(config, workdir, data) == []
