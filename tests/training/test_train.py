"""A run as a whole: what it writes, how it continues, what it starts from, and what stops it."""

import dataclasses
import json
import math
import re
import shutil

from etils import epath
from flax import nnx
import jax
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from icl_jax.config import ConfigError, MeshConfig, StageError
from icl_jax.data.tfrecord import scan_records
from icl_jax.models import create, huggingface
from icl_jax.sharding import make_mesh
from icl_jax.training import checkpoint
from icl_jax.training import train as train_module
from icl_jax.training.checks import check_run
from icl_jax.training.goodput import PARTS, Goodput
from icl_jax.training.metrics import MetricsLog
from icl_jax.training.run_record import record_run
from icl_jax.training.train import train
from tests.training.small import GPT, experiment, one_device, write_source

CONSTANT = {"schedule": "constant"}  # the number of steps may then be raised later


def arrays(tree):
    return {jax.tree_util.keystr(k): np.asarray(x) for k, x in jax.tree.leaves_with_path(tree)}


def assert_equal(ours, theirs):
    ours, theirs = arrays(ours), arrays(theirs)
    assert ours.keys() == theirs.keys()
    for name, x in ours.items():
        np.testing.assert_array_equal(x, theirs[name], err_msg=name)


def assert_close(ours, theirs, rtol):
    ours, theirs = arrays(ours), arrays(theirs)
    for name, x in ours.items():
        if "['key']['bias']" in name:  # its gradient is 0 but for rounding, which Adam blows up
            continue
        scale = np.abs(theirs[name]).max()
        np.testing.assert_allclose(x, theirs[name], rtol=rtol, atol=rtol * scale, err_msg=name)


def steps_in(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").glob("*") if path.is_dir())


def metrics_of(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 6 steps on 2 x 2 x 2 devices: config, workdir, state."""
    workdir = epath.Path(tmp_path_factory.mktemp("finished"))
    config = experiment(optimizer=CONSTANT, keep_last=2, ema_decay=0.9, dropout=False)
    with jax.numpy_dtype_promotion("standard"):
        return config, workdir, train(config, workdir)


@pytest.fixture(scope="module")
def halfway(tmp_path_factory):
    """The same run, stopped after 4 steps."""
    workdir = epath.Path(tmp_path_factory.mktemp("halfway"))
    config = experiment(optimizer=CONSTANT, keep_last=2, ema_decay=0.9, dropout=False, steps=4)
    with jax.numpy_dtype_promotion("standard"):
        train(config, workdir)
    return workdir


def test_every_step_is_in_the_metrics_and_in_tensorboard(finished):
    _, workdir, _ = finished
    lines = metrics_of(workdir)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[0]["loss"] == pytest.approx(math.log(61), rel=0.05)
    assert [line["learning_rate"] for line in lines] == pytest.approx(
        [0.01 / 3, 0.02 / 3, 0.01, 0.01, 0.01, 0.01]
    )
    for line in lines:
        assert line["tokens_per_second"] > 0 and 0 <= line["input_wait_share"] <= 1
        assert 0 < line["flop_utilisation"] < 1 and line["grad_norm"] > 0
    drawn = {}
    for path in (workdir / "tensorboard").glob("events*"):
        for _, record in scan_records(path):
            event = Event.FromString(record)
            for value in event.summary.value:
                drawn[value.tag, event.step] = value.simple_value
    for line in lines:
        assert drawn["train/loss", line["step"]] == pytest.approx(line["loss"], rel=1e-6)
        assert drawn["train/tokens_per_second", line["step"]] > 0


def test_the_time_of_a_run_adds_up_over_its_restart(finished, halfway):
    for workdir in (finished[1], halfway):
        for line in metrics_of(workdir):
            parts = [line[f"seconds_{name}"] for name in PARTS]
            assert sum(parts) == pytest.approx(line["seconds"])
            assert min(parts) >= 0 and line["seconds_compile"] > 0
            assert line["goodput"] == pytest.approx(line["seconds_step"] / line["seconds"])
    noted = json.loads((halfway / "goodput.json").read_text())
    assert [entry["step"] for entry in noted][-1] == 4


def test_going_on_equals_never_having_stopped_to_the_last_bit(finished, halfway, tmp_path, capsys):
    config, workdir, state = finished
    shutil.copytree(halfway, tmp_path, dirs_exist_ok=True)
    continued = train(config, epath.Path(tmp_path))
    assert_equal(continued, state)
    ours, theirs = metrics_of(epath.Path(tmp_path)), metrics_of(workdir)
    assert [line["loss"] for line in ours] == [line["loss"] for line in theirs]
    assert ours[-1]["seconds_lost"] > 0 == ours[0]["seconds_lost"]
    assert "lost to restarts" in capsys.readouterr().out.splitlines()[-1]


def test_going_on_with_another_mesh_and_accumulation_gives_the_same_weights(
    finished, halfway, tmp_path
):
    config, _, state = finished
    shutil.copytree(halfway, tmp_path, dirs_exist_ok=True)
    other = dataclasses.replace(config, mesh=MeshConfig(1, 4, 2))
    other.training = dataclasses.replace(config.training, accumulate=2, log_every=2)
    assert_close(train(other, epath.Path(tmp_path)).params, state.params, rtol=1e-5)


def test_the_last_k_checkpoints_and_every_mth_are_kept(finished, tmp_path):
    _, workdir, _ = finished
    assert steps_in(workdir) == [4, 6]
    config = experiment(
        optimizer=CONSTANT, ema_decay=0.9, dropout=False, checkpoint_every=1, keep_last=1,
        keep_every=2, steps=5,
    )  # fmt: skip
    train(config, epath.Path(tmp_path))
    assert steps_in(epath.Path(tmp_path)) == [2, 4, 5]


def test_the_last_step_is_saved_wherever_it_falls(tmp_path):
    config = experiment(
        optimizer=CONSTANT, ema_decay=0.9, dropout=False, checkpoint_every=4, steps=5
    )
    train(config, epath.Path(tmp_path))
    assert steps_in(epath.Path(tmp_path)) == [4, 5]


def test_a_finished_run_is_left_alone(finished, capsys):
    config, workdir, state = finished
    files = ("metrics.jsonl", "checkpoints/4", "checkpoints/6")
    before = [(workdir / name).stat().mtime for name in files]
    again = train(config, workdir)
    assert "training is complete: 6 steps" in capsys.readouterr().out
    assert_equal(again.params, state.params)
    assert [(workdir / name).stat().mtime for name in files] == before


def test_the_model_of_a_checkpoint_can_be_loaded_with_and_without_average(finished):
    config, workdir, state = finished
    model = checkpoint.load_model(str(workdir), one_device())
    assert_equal(nnx.as_pure(nnx.state(model)), state.params)
    averaged = checkpoint.load_model(str(workdir / "checkpoints" / "6"), one_device(), ema=True)
    assert_equal(nnx.as_pure(nnx.state(averaged)), state.ema)
    assert checkpoint.read_config(str(workdir)) == config


def start(config):
    """The state before the first step."""
    schedule = train_module.learning_rate(config.optimizer, config.training.steps)
    optimizer = train_module.make_optimizer(config.optimizer, schedule)
    with checkpoint.open_checkpoints(epath.Path("never"), config.training) as none:
        return train_module.start(config, optimizer, make_mesh(config.mesh), none)


def test_a_run_starts_from_weights_or_everything_of_another(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, workdir, state = finished
    options = {
        "start_from": str(workdir),
        "optimizer": CONSTANT,
        "ema_decay": 0.9,
        "steps": 9,
        "dropout": False,
    }
    weights = start(experiment(**options))
    assert_equal(weights.params, state.params)
    assert int(weights.step) == 0 and not np.any(jax.tree.leaves(weights.opt_state[1][0].mu)[0])
    assert_equal(start(experiment(**options, start_with="everything", mesh=(1, 2, 4))), state)


def test_a_run_whose_rate_has_jumped_at_its_start_continues_without_being_asked_again(
    finished, tmp_path
):
    config = experiment(
        optimizer=CONSTANT | {"learning_rate": 0.02}, ema_decay=0.9, dropout=False, steps=9,
        start_from=str(finished[1]), start_with="everything",
    )  # fmt: skip
    workdir = epath.Path(tmp_path)
    with pytest.raises(ConfigError, match=r"would jump from 0\.01 to 0\.02 at step 6"):
        check_run(config, workdir)
    meant = dataclasses.replace(config.training, rate_may_jump=True)
    meant = dataclasses.replace(config, training=meant)
    record_run(meant, workdir, check_run(meant, workdir))
    (workdir / "checkpoints" / "8").mkdir(parents=True)
    check_run(config, workdir)


def test_a_run_starts_from_a_hugging_face_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = create(GPT, seed=5)
    huggingface.save(model, tmp_path / "folder")
    state = start(experiment(start_from=str(tmp_path / "folder")))
    assert_equal(state.params, nnx.as_pure(nnx.state(model)))
    other = experiment(
        start_from=str(tmp_path / "folder"), model=dataclasses.replace(GPT, vocab_size=67)
    )
    with pytest.raises(ConfigError, match=r"start_from .*: vocab_size: 61 there, 67 here"):
        train(other, epath.Path(tmp_path) / "run")


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    config = experiment(
        optimizer={"learning_rate": 1e38, "warmup": 0, "clip_norm": 0.0}, checkpoint_every=1,
        mesh=(8, 1, 1), dropout=False,
    )  # fmt: skip
    with pytest.raises(StageError, match=r"is (nan|inf) at step (\d)") as stopped:
        train(config, epath.Path(tmp_path))
    step = int(re.search(r"at step (\d)", str(stopped.value))[1])
    assert step > 1 and steps_in(epath.Path(tmp_path))[-1] == step - 1
    assert metrics_of(epath.Path(tmp_path))[-1]["step"] == step - 1


def test_one_compilation_per_run(tmp_path, monkeypatch):
    compiled, before_each_step = [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None
    )
    original = train_module.next_batch

    def next_batch(*args):
        before_each_step.append(len(compiled))
        return original(*args)

    monkeypatch.setattr(train_module, "next_batch", next_batch)
    train(experiment(optimizer=CONSTANT, ema_decay=0.9, dropout=False), epath.Path(tmp_path))
    assert len(before_each_step) == 6
    assert before_each_step[1] == before_each_step[-1] == len(compiled)


class Value:
    """A number on a device that notes when it is fetched."""

    def __init__(self, step, fetched):
        self.step, self.fetched = step, fetched

    def item(self):
        self.fetched.append(self.step)
        return 1.0

    def is_ready(self):
        return self.step in self.fetched


def test_metrics_of_a_step_are_fetched_after_the_next_was_started(tmp_path):
    fetched = []
    names = ("loss", "learning_rate", "grad_norm", "tokens")
    workdir = epath.Path(tmp_path)
    with MetricsLog(experiment(), workdir, 0, 3, Goodput(workdir)) as log:
        for step in (1, 2, 3):
            log.push(step, dict.fromkeys(names, Value(step, fetched)), 0.0)
            assert step not in fetched and (step == 1 or step - 1 in fetched)
        log.flush()
    assert 3 in fetched


def test_a_row_that_predicts_nothing_is_refused(tmp_path):
    config = dataclasses.replace(experiment(), sequence_length=1)
    with pytest.raises(ConfigError, match="a row needs at least 2 tokens to predict one, got"):
        train(config, epath.Path(tmp_path))


def test_everything_impossible_is_said_at_once_before_anything_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(train_module, "compile_train_step", None)
    source = write_source(tmp_path / "records", [[1, 2, 3], [4, 99, 6]])
    config = experiment(source, mesh=(4, 1, 2), accumulate=3, objective="masked_token")
    config.data.sources += (str(tmp_path / "missing"),)
    config.model.context_length = 8
    config.optimizer.schedule = "square"
    config.model.attention, config.model.attention_dropout = "splash", 0.1
    config.training.dropout = True
    with pytest.raises(ConfigError) as stopped:
        train(config, epath.Path(tmp_path) / "run")
    for part in (
        "optimizer.schedule must be one of constant, linear, cosine, got 'square'",
        "sequence_length 16 is longer than model.context_length 8",
        "batch_size 8 is not divisible by mesh.data 4 x mesh.fsdp 1 x training.accumulate 3",
        "objective 'masked_token' needs a RobertaConfig, but model is a GPTConfig",
        "model.attention 'splash' has no attention dropout, but model.attention_dropout is 0.1",
        f"{tmp_path / 'missing'}",
    ):
        assert part in str(stopped.value), part
    assert not (tmp_path / "run").exists()


def test_a_token_outside_the_vocabulary_is_named_by_file_and_offset(tmp_path):
    source = write_source(tmp_path / "records", [[1, 2, 3], [4, 99, 6]])
    with pytest.raises(
        ConfigError, match=r"part\.tfrecord.*expected token ids from 0 to 60, got 99"
    ):
        train(experiment(source), epath.Path(tmp_path) / "run")


def test_a_workdir_of_another_config_is_refused_with_the_difference(finished):
    config, workdir, _ = finished
    other = dataclasses.replace(config, model=dataclasses.replace(GPT, num_layers=2), seed=1)
    with pytest.raises(ConfigError) as stopped:
        train(other, workdir)
    assert "belongs to a run of another config (seed: 0 there, 1 here, " in str(stopped.value)
    assert "model.num_layers: 1 there, 2 here" in str(stopped.value)
    longer = dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, schedule="linear")
    )
    with pytest.raises(ConfigError, match=r"optimizer\.schedule: 'constant' there, 'linear' here"):
        train(longer, workdir)


def test_a_value_of_the_wrong_type_is_named_alone(tmp_path):
    config = experiment()
    config.batch_size = "8"
    with pytest.raises(ConfigError, match=r"^batch_size must be int, got '8'$"):
        train(config, epath.Path(tmp_path) / "run")
