import dataclasses
import json
import re

from etils import epath
import pytest

from icl_jax.config import (
    BranchesConfig,
    ConfigError,
    DataConfig,
    DesignConfig,
    ExamplesConfig,
    ExperimentConfig,
    OptimizerConfig,
    TrainingConfig,
)
from icl_jax.config.tree import find_problems
from icl_jax.data.mixture import Mixture
from icl_jax.design.folders import design_workdir
from icl_jax.experiment import branches
from icl_jax.experiment.branches import (
    Branch,
    has_trunk,
    one_by_one,
    plan_branches,
    show_time,
    trunk_checkpoint,
    trunk_config,
)
from icl_jax.training.checks import check_run
from tests.training.small import experiment, write_source

ARMS = ("regular", "neighbours_in_context", "random_in_batch")


def with_steps(**fields):
    """A trunk of 500 steps; its branches continue for 60."""
    return ExperimentConfig(
        seed=7,
        data=DataConfig(sources=("design:contiguous",)),
        training=TrainingConfig(steps=500),
        branches=BranchesConfig(**{"arms": ARMS, "steps": 60} | fields),
    )


def with_epochs(**fields):
    """No trunk: the branches begin with a published model."""
    fields = {"arms": ARMS[1:], "epochs": 5, "optimizer": OptimizerConfig(warmup=1)} | fields
    return ExperimentConfig(
        seed=7,
        data=DataConfig(sources=("design:contiguous",), pack=True),
        training=TrainingConfig(start_from="roberta"),
        branches=BranchesConfig(**fields),
    )


def change(config, part, **values):
    return dataclasses.replace(
        config, **{part: dataclasses.replace(getattr(config, part), **values)}
    )


@pytest.fixture
def workdir(tmp_path):
    """Of a trunk that was trained."""
    (tmp_path / "checkpoints" / "500").mkdir(parents=True)
    return epath.Path(tmp_path)


def test_every_arm_continues_in_a_workdir_of_its_own(workdir):
    config = with_steps()
    branches = plan_branches(config, workdir)
    assert [branch.name for branch in branches] == [branch.arm for branch in branches] == [*ARMS]
    for branch in branches:
        assert branch.workdir == workdir / "branches" / branch.name
        assert branch.config.training == dataclasses.replace(
            config.training, steps=560, start_from=str(workdir), start_with="everything"
        )
        assert branch.config.branches == BranchesConfig() and branch.config.rounds == 1
        assert branch.config.seed == 7
        assert branch.config.evaluation == config.evaluation
        assert not find_problems(branch.config)


def test_the_schedule_of_trunk_and_branches_ends_with_the_branches(workdir):
    config = with_steps()
    trunk = trunk_config(config)
    assert trunk.optimizer.schedule_steps == 560 and trunk.training.steps == 500
    for branch in plan_branches(config, workdir):
        assert branch.config.optimizer == trunk.optimizer
    several = dataclasses.replace(config, rounds=3)
    assert trunk_config(several).optimizer.schedule_steps == 500 + 3 * 60
    assert plan_branches(several, workdir)[0].config.optimizer.schedule_steps == 680
    constant = change(config, "optimizer", schedule="constant")  # has no end: more may be added
    assert trunk_config(constant).optimizer.schedule_steps == 0
    own = change(config, "optimizer", schedule_steps=900)
    assert trunk_config(own) == own
    alone = change(config, "branches", arms=())
    assert trunk_config(alone) == alone and plan_branches(alone, workdir) == []


def test_regular_continues_with_the_trunks_data_and_others_mix_in_their_arm(workdir):
    config = with_steps(share=0.25)
    regular, neighbours, in_batch = plan_branches(config, workdir)
    assert regular.config.data == config.data
    assert neighbours.config.data.sources == ("design:contiguous", "design:neighbours_in_context")
    assert neighbours.config.data.phases == ((0, (1.0, 0.0)), (500, (0.75, 0.25)))
    assert in_batch.config.data.sources[-1] == "design:random_in_batch"
    everything = plan_branches(with_steps(share=1.0), workdir)[1].config.data
    assert everything.phases[-1] == (500, (0.0, 1.0))


def test_a_branch_continues_where_the_trunk_stopped_in_its_data(workdir):
    trunk = DataConfig(sources=("a", "b"), phases=((0, (1, 0)), (300, (3, 1))))
    config = dataclasses.replace(with_steps(), data=trunk)
    data = plan_branches(config, workdir)[1].config.data
    assert data.phases == (
        (0, (1, 0, 0.0)), (300, (3, 1, 0.0)), (500, (0.375, 0.125, 0.5))
    )  # fmt: skip
    before, after = Mixture(trunk.phases, 2, 16), Mixture(data.phases, 3, 16)
    for step in (0, 299, 300, 499):
        for theirs, ours in zip(before.rows(step), after.rows(step), strict=True):
            assert theirs.tolist() == ours.tolist()
    # the first row of each source that the trunk had not read yet
    source, number = after.rows(500)
    used = [300 * 16 + 200 * 12, 200 * 4, 0]
    assert [number[source == s].min() for s in range(3)] == used
    assert [(source == s).sum() for s in range(3)] == [6, 2, 8]


@pytest.mark.parametrize("first", [500, 530])
def test_phases_of_the_trunk_that_begin_with_the_branches_or_later_stay(workdir, first):
    phases = ((0, (1, 0)), (first, (1, 1)))
    config = dataclasses.replace(with_steps(), data=DataConfig(sources=("a", "b"), phases=phases))
    regular, neighbours, _ = plan_branches(config, workdir)
    assert regular.config.data.phases == phases
    mixed = neighbours.config.data
    assert not mixed.problems()
    assert mixed.phases[0] == (0, (1, 0, 0.0)) and mixed.phases[-1] == (first, (0.25, 0.25, 0.5))
    assert mixed.phases[1:-1] == (() if first == 500 else ((500, (0.5, 0.0, 0.5)),))


def test_seeds_and_rates_have_names_and_values_of_their_own(workdir):
    branches = plan_branches(with_steps(seeds=2, arms=ARMS[1:]), workdir)
    assert [(b.name, b.config.seed) for b in branches] == [
        ("neighbours_in_context", 7), ("neighbours_in_context-seed1", 8),
        ("random_in_batch", 7), ("random_in_batch-seed1", 8),
    ]  # fmt: skip
    config = with_epochs(arms=ARMS[1:2], seeds=2, learning_rates=(1e-5, 3e-5))
    branches = plan_branches(config, workdir)
    assert [(b.name, b.config.optimizer.learning_rate, b.config.seed) for b in branches] == [
        ("neighbours_in_context-rate1e-05", 1e-5, 7),
        ("neighbours_in_context-rate1e-05-seed1", 1e-5, 8),
        ("neighbours_in_context-rate3e-05", 3e-5, 7),
        ("neighbours_in_context-rate3e-05-seed1", 3e-5, 8),
    ]
    assert {branch.arm for branch in branches} == {"neighbours_in_context"}


def test_epochs_train_on_the_arm_alone_from_weights_with_an_optimiser_of_their_own(workdir):
    config = with_epochs()
    assert not has_trunk(config)
    for branch in plan_branches(config, workdir):
        own = branch.config
        assert own.data == DataConfig(sources=(f"design:{branch.arm}",), pack=True)
        assert own.optimizer == OptimizerConfig(warmup=1)
        assert (own.training.steps, own.training.epochs) == (0, 5)
        # there are checkpoints in the workdir, but none of a trunk of this config
        assert (own.training.start_from, own.training.start_with) == ("roberta", "weights")
        assert not find_problems(own)
    trained = change(config, "training", epochs=2.0)
    assert has_trunk(trained) and trunk_config(trained) == trained
    assert plan_branches(trained, workdir)[0].config.training.start_from == str(workdir)


def test_arms_with_one_query_a_row_are_not_packed_though_their_trunk_is(workdir):
    examples = ExamplesConfig(rows="one_query")
    config = with_epochs(arms=("contiguous", "neighbours_in_context", "random_in_batch"))
    config = dataclasses.replace(config, design=DesignConfig(examples=examples))
    assert not find_problems(config)
    packed = {b.arm: b.config.data.pack for b in plan_branches(config, workdir)}
    assert packed == {"contiguous": True, "neighbours_in_context": False, "random_in_batch": False}
    for branch in plan_branches(config, workdir):
        assert not find_problems(branch.config)


def test_packing_what_is_designed_as_one_query_a_row_is_refused():
    design = DesignConfig(examples=ExamplesConfig(rows="one_query"))
    message = r"data.pack=True .*rows is 'one_query' for neighbours_in_context; set data.pack"
    data = DataConfig(sources=("design:contiguous",), pack=True)
    mixed = dataclasses.replace(with_steps(), design=design, data=data)
    sources = ("design:contiguous", "design:neighbours_in_context")
    alone = ExperimentConfig(design=design, data=dataclasses.replace(data, sources=sources))
    for wrong in (mixed, alone):
        assert any(re.search(message, problem) for problem in find_problems(wrong))
        assert not find_problems(change(wrong, "data", pack=False))
        assert not find_problems(dataclasses.replace(wrong, design=DesignConfig()))


def test_an_arm_that_was_designed_with_other_rows_than_the_config_says_is_refused(tmp_path):
    arm = tmp_path / "design" / "arms" / "neighbours_in_context"
    write_source(arm, [[5, 6, 7, 0]] * 20)
    own = experiment("design:neighbours_in_context")
    for held, wanted in (("packed", "one_query"), ("one_query", "packed")):
        (arm / "results.json").write_text(json.dumps({"row_holds": held}))
        design = DesignConfig(examples=ExamplesConfig(rows=wanted))
        message = f"designed with examples.rows '{held}', but design.examples.rows is '{wanted}'"
        with pytest.raises(ConfigError, match=message):
            check_run(dataclasses.replace(own, design=design), epath.Path(tmp_path))
        right = DesignConfig(examples=ExamplesConfig(rows=held))
        check_run(dataclasses.replace(own, design=right), epath.Path(tmp_path))


def test_branches_begin_where_the_trunk_would_until_it_is_there(tmp_path):
    config = change(with_steps(), "training", start_from="runs/other")
    new = epath.Path(tmp_path / "new")
    assert trunk_checkpoint(config, new) == "runs/other"
    (new / "checkpoints" / "500.partial").mkdir(parents=True)
    assert trunk_checkpoint(config, new) == "runs/other"
    (new / "checkpoints" / "500").mkdir()
    assert trunk_checkpoint(config, new) == str(new)


def test_a_branch_in_a_bucket_reads_the_design_of_its_bucket(monkeypatch):
    monkeypatch.setattr(type(epath.Path("gs://bucket")), "exists", lambda path: False)
    held = {str(design_workdir(f"gs://bucket/run{end}")) for end in ("", "/branches/regular")}
    assert held == {"gs://bucket/run"}


def test_the_trunk_itself_is_no_branch(workdir):
    config = with_steps(arms=("trunk", *ARMS))
    assert [branch.arm for branch in plan_branches(config, workdir)] == [*ARMS]


def test_branches_without_a_beginning_are_refused(workdir):
    config = change(with_steps(), "training", steps=0, start_from="runs/other")
    with pytest.raises(ConfigError, match=r"continue from training\.steps, but that is 0"):
        plan_branches(config, workdir)
    with pytest.raises(ConfigError, match="branches have nothing to start from"):
        plan_branches(change(with_epochs(), "training", start_from=""), workdir)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"arms": ("neighbours_in_context", "nearest")}, "arms.*'nearest'"),
        ({"arms": (*ARMS, "regular")}, "names an arm twice"),
        ({"steps": 0}, "expected steps or epochs.*got steps 0 and epochs 0"),
        ({"epochs": 2.0}, "expected steps or epochs.*got steps 60 and epochs 2"),
        ({"steps": -1}, "steps must be at least 0"),
        ({"reference": "contiguous"}, "reference must be one of the arms.*got 'contiguous'"),
        ({"seeds": 0}, "seeds must be"),
        ({"share": 0.0}, "share must be above 0"),
        ({"share": 1.5}, "share must be"),
        ({"learning_rates": (1e-5,)}, "learning_rates are for branches.epochs"),
        ({"steps": 0, "epochs": 5.0}, "regular needs branches.steps"),
        (
            {"steps": 0, "epochs": 5.0, "arms": ARMS[1:], "learning_rates": (0.0,)},
            "learning_rates must be above 0",
        ),
        (
            {"steps": 0, "epochs": 5.0, "arms": ARMS[1:], "learning_rates": (1e-5, 1.00000001e-5)},
            "learning_rates must differ in their first 6 digits",
        ),
    ],
)
def test_wrong_fields_are_named(fields, message):
    found = find_problems(with_steps(**fields))
    assert any(re.search(message, problem) for problem in found), found


def test_right_fields_have_no_problems():
    assert find_problems(with_steps()) == []
    assert find_problems(with_steps(arms=("trunk", *ARMS), reference="trunk", seeds=3)) == []
    assert BranchesConfig().problems() == []
    assert with_epochs(learning_rates=(1e-5, 3e-5)).branches.problems() == []


# What is printed while several runs are under way.


def test_each_run_is_reported_with_its_place_and_the_time_left(monkeypatch, capsys):
    now, took = [0.0], {"there": 1.0, "long": 100.0, "short": 50.0, "last": 0.0}
    monkeypatch.setattr(branches.time, "monotonic", lambda: now[0])
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
def test_a_time_is_reported_in_one_unit(seconds, told):
    assert show_time(seconds) == told
