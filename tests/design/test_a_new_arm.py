"""A new arm is one file in `design/strategies/` and one line in `design/arms.py`, nothing else."""

import dataclasses
import json
import sys

import pytest

from icl_jax.config import (
    BranchesConfig,
    ConfigError,
    DataConfig,
    ExamplesConfig,
    OptimizerConfig,
    TrainingConfig,
)
from icl_jax.config.tree import find_problems
from icl_jax.data.input_pipeline import GlobalBatches
from icl_jax.data.shards import Shards, find_shards
from icl_jax.design import strategies
from icl_jax.design.arms import ARMS, Arm
from icl_jax.design.explain.explain import main as explain
from icl_jax.design.folders import DesignFolders, arm_folder
from icl_jax.design.groups import Groups
from icl_jax.design.sentences import Sentences
from icl_jax.design.stage import design
from icl_jax.training.checks import check_run
from tests.design.small_build import small_config

NAME = "every_other"
MODULE = '''
"""Every second sentence of a shard, in pairs: the first of a pair is its query."""

from pathlib import Path

import numpy as np

from icl_jax.design.groups import GroupShard, write_groups
from icl_jax.design.sentences import open_sentences
from icl_jax.design.strategies.strategy import Count, Strategy


def make_groups(build):
    first = (build.workdir, build.sentences.fingerprint)
    starts = build.sentences.corpus.starts
    return build.by_shard("every_other", {}, make_shard, lambda *place: (*first, *place), starts)


def make_shard(workdir, fingerprint, folder, index):
    corpus = open_sentences(workdir, fingerprint).corpus
    starts = corpus.starts[index : index + 2].tolist()
    ids = np.arange(*starts, 2)
    ids = ids[: len(ids) // 2 * 2]
    scores = np.where(np.arange(len(ids)) % 2, 0.25, 1).astype(np.float32)
    offsets = np.arange(0, len(ids) + 1, 2)
    counts = {"passed_over": starts[1] - starts[0] - len(ids)}
    write_groups(Path(folder), index, GroupShard(offsets, ids, scores), counts)


STRATEGY = Strategy(
    make_groups,
    lambda reasons, ids, left: f"a pair is full, with {left} tokens left",
    score="distance of two",
    counts={"passed_over": Count("sentences that were passed over")},
    remark=lambda arms, results, design: f"{arms[0]} passed over {results['passed_over']}",
)
'''


@pytest.fixture
def one_more(tmp_path, monkeypatch):
    """The file and the line."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / f"{NAME}.py").write_text(MODULE)
    monkeypatch.setattr(strategies, "__path__", [*strategies.__path__, str(tmp_path / "more")])
    monkeypatch.setitem(ARMS, NAME, Arm(NAME, "in_context"))
    yield
    sys.modules.pop(f"{strategies.__name__}.{NAME}", None)


def config_for(folder):
    config = small_config(folder)
    config.design.examples = ExamplesConfig(arms=("contiguous", NAME))
    config.design.workers = 1
    config.data = DataConfig(sources=(f"design:{NAME}",))
    config.optimizer, config.training = OptimizerConfig(warmup=1), TrainingConfig(steps=2)
    return dataclasses.replace(config, batch_size=8, sequence_length=130)


def test_it_is_built_shown_explained_and_trained_on(one_more, tmp_path, capsys):
    config, workdir = config_for(tmp_path), tmp_path / "run"
    assert find_problems(config) == []
    design(config, workdir)
    folders, sentences = DesignFolders(workdir), Sentences.open(workdir)
    used = Groups.open(folders.groups / NAME).results["sentences"]
    assert f"{NAME} passed over {len(sentences) - used}" in capsys.readouterr().out
    assert not folders.neighbours.exists()  # it does not need the search

    card = json.loads((folders.path / "card.json").read_text())
    assert card["arms"][NAME]["groups"] == card["strategies"][NAME]["groups"] > 9
    assert card["arms"][NAME]["sentences"] == 2 * card["arms"][NAME]["groups"] == used
    assert any(NAME in sample["groups"] for sample in card["samples"])
    page = folders.card.read_text()
    assert "sentences that were passed over" in page and f"in {NAME}, the distance of two" in page
    assert f'"with_query":["{NAME}"]' in page

    explain([f"--workdir={workdir}", f"--arm={NAME}", "--index=0"])
    text = capsys.readouterr().out
    assert "query  #" in text and "0.250  #" in text and "no more: a pair is full, with" in text

    records = Shards(find_shards(str(arm_folder(workdir, NAME))))
    made = {tuple(records[index]["tokens"].tolist()) for index in range(len(records))}
    batch = GlobalBatches(check_run(config, workdir), steps=2)[1]
    rows = [tokens[group > 0] for tokens, group in zip(batch["tokens"], batch["group"])]
    assert len(rows) == 8 and {tuple(row.tolist()) for row in rows} <= made


def test_it_may_be_a_branch_and_be_judged_by_the_gain_filter(one_more, tmp_path):
    config = config_for(tmp_path)
    config.design.examples.gain_strategies = (NAME,)
    config.branches = BranchesConfig(arms=(NAME, "contiguous"), reference=NAME, steps=1)
    assert find_problems(config) == []


def test_without_its_line_the_config_refuses_it(tmp_path):
    config = config_for(tmp_path)
    config.design.examples.gain_strategies = (NAME,)
    config.branches = BranchesConfig(arms=(NAME,), reference=NAME, steps=1)
    found = "\n".join(find_problems(config))
    assert f"examples.arms: each must be one of {', '.join(ARMS)}, got '{NAME}'" in found
    assert "gain_strategies: each must be one of contiguous, neighbours, " in found
    assert f"branches.arms must be one of regular, trunk, {', '.join(ARMS)}" in found
    with pytest.raises(ConfigError, match=f"got '{NAME}'"):
        design(config, tmp_path / "run")
