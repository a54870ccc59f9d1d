"""All stages of an experiment with branches: trained from one checkpoint, evaluated, compared."""

import dataclasses
import json
from pathlib import Path
import shutil

from etils import epath
import pytest

from icl_jax.config import (
    BranchesConfig,
    ConfigError,
    DataConfig,
    EvaluationConfig,
    GPTConfig,
    OptimizerConfig,
    QuestionsConfig,
    StageError,
    StoppedError,
    TrainingConfig,
)
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.experiment.branches import plan_branches
from icl_jax.experiment.stages import run_stages
from icl_jax.sharding import make_mesh
from icl_jax.training import train as training
from tests.design.small_build import small_config
from tests.evaluation.small import gpt_folder

STAGES = ("design", "train", "evaluate")
STEPS, MORE = 4, 2


def small_experiment(folder, people=40):
    """A trunk of 4 steps and branches of 2."""
    questions = folder / "questions.jsonl"
    questions.write_text('{"question": "Where was Ada born?", "answer": ["Kersk"]}\n' * 3)
    config = small_config(folder, people)
    config.design.examples.arms = ("contiguous", "neighbours_in_context")
    return dataclasses.replace(
        config,
        batch_size=8,
        sequence_length=130,
        model=GPTConfig(
            vocab_size=300, context_length=130, num_layers=1, embed_dim=16, num_heads=2
        ),
        data=DataConfig(sources=("design:contiguous",), pack=True),
        optimizer=OptimizerConfig(warmup=1),
        training=TrainingConfig(steps=STEPS, checkpoint_every=2, log_every=1),
        branches=BranchesConfig(
            arms=("trunk", "regular", "neighbours_in_context"), steps=MORE, seeds=1
        ),
        evaluation=EvaluationConfig(
            tasks=("nq_open",),
            resamples=100,
            questions=QuestionsConfig(file=str(questions), max_new_tokens=4),
        ),
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(config, workdir) after all stages."""
    folder = tmp_path_factory.mktemp("experiment")
    config, workdir = small_experiment(folder), epath.Path(folder / "run")
    run_stages(config, workdir, STAGES)
    return config, workdir


def losses(workdir):
    return [json.loads(line)["loss"] for line in (workdir / "metrics.jsonl").open()]


def test_the_regular_branch_is_the_trunk_that_went_on(finished):
    """To the bit: weights, optimiser, place in the data, and a schedule that ends with it."""
    config, workdir = finished
    whole = dataclasses.replace(
        config,
        branches=BranchesConfig(),
        data=DataConfig(sources=(str(workdir / "design/arms/contiguous"),), pack=True),
        training=dataclasses.replace(config.training, steps=STEPS + MORE),
    )
    training.train(whole, workdir.parent / "whole")
    assert [
        json.loads(line)["step"] for line in (workdir / "branches/regular/metrics.jsonl").open()
    ] == [5, 6]
    assert losses(workdir) == losses(workdir.parent / "whole")[:STEPS]
    assert losses(workdir / "branches/regular") == losses(workdir.parent / "whole")[STEPS:]
    other = losses(workdir / "branches/neighbours_in_context")
    assert len(other) == MORE and other != losses(workdir / "branches/regular")


def test_half_of_every_batch_of_a_branch_is_of_its_arm(finished):
    config, workdir = finished
    branch = plan_branches(config, workdir)[1]
    data = training.check_run(branch.config, branch.workdir)
    separator = Tokenizer.open(Path(workdir / "design" / "tokenizer")).separator_id
    mesh = make_mesh(branch.config.mesh)
    before, after = (
        next(training.open_batches(branch.config, data, mesh, step, step + 1))["tokens"]
        for step in (STEPS - 1, STEPS)
    )
    separated = (after == separator).any(axis=1)  # regular examples have none
    assert separated.tolist() == [False] * 4 + [True] * 4
    assert not (before == separator).any()


def test_every_arm_is_evaluated_and_all_are_compared(finished):
    _, workdir = finished
    compared = json.loads((workdir / "comparison.json").read_text())
    assert list(compared) == ["trunk", "regular", "neighbours_in_context"]
    assert {arm["total"] for arm in compared.values()} == {3}
    assert compared["neighbours_in_context"]["p_exact_match"] is None
    files = ("comparison.md", "comparison.png", "comparison/comparison.csv")
    assert all((workdir / name).read_bytes() for name in files)
    evaluated = json.loads((workdir / "branches/regular/evaluation/6.json").read_text())
    assert evaluated["model"]["step"] == STEPS + MORE
    assert json.loads((workdir / "evaluation/trunk.json").read_text())["model"]["step"] == STEPS


def test_the_same_command_again_trains_nothing(finished, capsys):
    config, workdir = finished
    before = {file: file.stat().st_mtime_ns for file in Path(workdir).rglob("metrics.jsonl")}
    run_stages(config, workdir, STAGES)
    told = capsys.readouterr().out
    assert told.count("training is complete") == 3
    assert "\ntraining branch 2 of 2: neighbours_in_context\n" in told
    assert "\nevaluating 1 of 3: trunk\n" in told
    assert "| metric" not in told and told.count("| arm ") == 1  # one table, of all arms
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_what_is_not_the_end_of_this_experiment_is_not_evaluated(finished):
    """Alone, the stage would compare whatever checkpoints it finds."""
    config, workdir = finished
    before = (workdir / "comparison.json").read_text()
    more = dataclasses.replace(config, optimizer=OptimizerConfig(warmup=1, schedule_steps=6))
    more.branches = dataclasses.replace(config.branches, steps=MORE + 2)
    with pytest.raises(StageError, match="regular has done 6 of 8 steps; rerun the command with"):
        run_stages(more, workdir, ("evaluate",))
    other = dataclasses.replace(config, branches=dataclasses.replace(config.branches, share=0.25))
    with pytest.raises(ConfigError, match=r"belongs to a run of another config \(data\.phases"):
        run_stages(other, workdir, ("evaluate",))
    assert (workdir / "comparison.json").read_text() == before


def test_an_experiment_can_be_moved(finished, tmp_path):
    config, workdir = finished
    moved = epath.Path(tmp_path / "moved")
    shutil.copytree(workdir, moved, ignore=shutil.ignore_patterns("compiled"))
    for branch in plan_branches(config, moved):
        training.check_run(branch.config, branch.workdir)


def test_a_trunk_that_has_branches_does_not_continue(finished, tmp_path):
    config, workdir = finished
    begun = epath.Path(tmp_path / "begun")
    shutil.copytree(workdir, begun, ignore=shutil.ignore_patterns("compiled"))
    shutil.rmtree(begun / "checkpoints" / str(STEPS))
    with pytest.raises(ConfigError, match="regular, neighbours_in_context branched off at step 2"):
        run_stages(config, begun, ("train",))


def test_a_regular_checkpoint_that_is_there_is_one_field(finished, tmp_path):
    """Its branches begin there, and nothing is trained before them."""
    config, workdir = finished
    start = {"start_from": str(workdir / "checkpoints" / "4"), "start_with": "everything"}
    config = dataclasses.replace(
        config,
        branches=BranchesConfig(("regular",), "regular", steps=MORE),
        training=dataclasses.replace(config.training, **start),
        data=DataConfig(sources=(str(workdir / "design/arms/contiguous"),), pack=True),
    )
    run_stages(config, epath.Path(tmp_path), ("train",))
    assert not list(tmp_path.glob("checkpoints/*"))
    assert losses(epath.Path(tmp_path) / "branches/regular") == losses(workdir / "branches/regular")


@pytest.mark.parametrize("stages", [("train",), ("design", "train")])
def test_a_rate_that_would_jump_at_the_branch_is_reported_before_anything_runs(
    finished, tmp_path, stages
):
    config, workdir = finished
    start = {"start_from": str(workdir / "checkpoints" / "4"), "start_with": "everything"}
    config = dataclasses.replace(
        config,
        branches=BranchesConfig(("regular",), "regular", steps=40),
        training=dataclasses.replace(config.training, **start),
        data=DataConfig(sources=(str(workdir / "design/arms/contiguous"),), pack=True),
    )
    with pytest.raises(ConfigError, match=r"rate would jump from .*schedule_steps: 6 there, 44 he"):
        run_stages(config, epath.Path(tmp_path), stages)
    assert not list(tmp_path.rglob("checkpoints")) and not (tmp_path / "design").exists()


def test_a_signal_ends_the_command_and_not_only_the_trunk(finished, tmp_path, monkeypatch):
    config, workdir = finished
    config = dataclasses.replace(
        config, data=DataConfig(sources=(str(workdir / "design/arms/contiguous"),), pack=True)
    )
    config.branches = BranchesConfig(("regular",), "regular", steps=MORE)
    monkeypatch.setattr(training.StopSignals, "requested", lambda self, step: step == 2)
    with pytest.raises(StoppedError):
        run_stages(config, epath.Path(tmp_path), ("train",))
    assert not (tmp_path / "branches").exists()
    monkeypatch.undo()
    run_stages(config, epath.Path(tmp_path), ("train",))
    assert losses(epath.Path(tmp_path) / "branches/regular") == losses(workdir / "branches/regular")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda config: setattr(config.branches, "arms", ("random_in_context",)),
            "reference must be one of the arms",
        ),
        (
            lambda config: setattr(
                config.branches, "arms", ("random_in_batch", "neighbours_in_context")
            ),
            "branches.arms names 'random_in_batch', but design.examples.arms are contiguous, neigh",
        ),
        (
            lambda config: setattr(config, "optimizer", OptimizerConfig(warmup=7)),
            "at most 6 steps, optimizer.schedule_steps, got 7 steps",
        ),
        (
            lambda config: setattr(
                config, "branches", BranchesConfig(("neighbours_in_context",), epochs=5.0)
            ),
            r"at most 5 epochs, training\.epochs \(in a branch branches\.epochs\), got 2000 epochs",
        ),
        (
            lambda config: setattr(config.training, "steps", 0),
            "branches.steps continue from",
        ),
        (
            lambda config: setattr(config.evaluation.questions, "file", "nowhere.jsonl"),
            "nowhere.jsonl",
        ),
    ],
)
def test_what_any_branch_would_stop_on_is_reported_before_the_design(tmp_path, change, message):
    config = small_experiment(tmp_path)
    change(config)
    with pytest.raises(ConfigError, match=message):
        run_stages(config, epath.Path(tmp_path / "run"), STAGES)
    assert not (tmp_path / "run").exists()


def test_questions_without_answers_are_reported_before_the_design(tmp_path):
    config = small_experiment(tmp_path)
    (tmp_path / "questions.jsonl").write_text('{"question": "Where was Ada born?"}\n')
    with pytest.raises(ConfigError, match=r"question 1 \('Where was Ada born\?'\) has no answer"):
        run_stages(config, epath.Path(tmp_path / "run"), STAGES)
    assert not (tmp_path / "run").exists()


def test_a_model_that_cannot_be_evaluated_as_the_trunk_is_reported_before_the_design(tmp_path):
    config = small_experiment(tmp_path)
    model = gpt_folder(tmp_path / "gpt", num_layers=1, context_length=130)
    for file in ("tokenizer.json", "special_ids.json"):
        (model / file).unlink()
    config.training = TrainingConfig(start_from=str(model))
    config.branches = BranchesConfig(
        ("trunk", "neighbours_in_context"), epochs=1.0, optimizer=OptimizerConfig(warmup=1)
    )
    with pytest.raises(ConfigError, match=r"start_from, which is evaluated too: .*tokenizer\.json"):
        run_stages(config, epath.Path(tmp_path / "run"), STAGES)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_vocabulary_is_reported_before_training(finished, tmp_path):
    config, workdir = finished
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, vocab_size=301),
        data=DataConfig(sources=(str(workdir / "design/arms/contiguous"),), pack=True),
        training=dataclasses.replace(config.training, start_from=str(workdir)),
    )
    with pytest.raises(ConfigError, match="vocab_size: 300 there, 301 here"):
        run_stages(config, epath.Path(tmp_path), ("train",))
