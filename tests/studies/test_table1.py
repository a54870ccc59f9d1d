"""Table 1 from a corpus to the table, on data of seconds."""

import dataclasses
import json
from pathlib import Path
import shutil
import subprocess
import sys

from etils import epath
import pytest

from icl_jax.config import (
    BranchesConfig,
    ConfigError,
    CorpusConfig,
    DataConfig,
    DesignConfig,
    EvaluationConfig,
    ExamplesConfig,
    ExperimentConfig,
    OptimizerConfig,
    SearchConfig,
    StageError,
    TokenizerConfig,
    TrainingConfig,
)
from icl_jax.models import huggingface
from icl_jax.studies.table1.report import PAPER
from icl_jax.studies.table1.runs import check, design_is_missing, list_runs, run_table1
from tests.design.test_find_related import ROOT, write_corpus
from tests.evaluation.small import roberta_folder
from tests.evaluation.sts_data import write_senteval


def make_config(folder):
    """A published model, here a random one with its tokenizer, and a corpus with neighbours."""
    model = roberta_folder(folder / "roberta", num_layers=1)
    (folder / "task.txt").write_text(
        "".join(f"Mar{n}ek was born in Kersk, they say.\n" for n in range(8))
    )
    return ExperimentConfig(
        batch_size=8,
        sequence_length=64,
        model=huggingface.read_config(model),
        design=DesignConfig(
            corpus=CorpusConfig(files=(str(write_corpus(folder)),), max_sentence_tokens=60),
            queries=CorpusConfig(
                files=(str(folder / "task.txt"),),
                text_documents="line",
                clean=False,
                max_sentence_tokens=60,
            ),
            tokenizer=TokenizerConfig(folder=str(model)),
            search=SearchConfig(neighbours=2, min_similarity=0.2, recall_sample=0),
            examples=ExamplesConfig(
                arms=("task_only", "neighbours_in_context"),
                rows="one_query",
                min_neighbours=0,
                card_samples=2,
            ),
            workers=1,
        ),
        data=DataConfig(pack=True),
        training=TrainingConfig(
            objective="masked_token",
            dropout=False,
            mask_token_id=3,
            special_token_ids=(0, 1, 2, 3),
            start_from=str(model),
        ),
        branches=BranchesConfig(
            arms=("trunk", "task_only", "neighbours_in_context"),
            epochs=1,
            optimizer=OptimizerConfig(warmup=0, schedule="constant"),
            learning_rates=(1e-3, 1e-2),
        ),
        evaluation=EvaluationConfig(
            tasks=("sts",), data=str(write_senteval(folder / "data", pairs=4)), resamples=20
        ),
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Of a config what was to do, what came out, and where."""
    folder = tmp_path_factory.mktemp("table1")
    config, workdir = make_config(folder), epath.Path(folder / "run")
    before = list_runs(config, workdir)
    return config, workdir, before, run_table1(config, workdir)


@pytest.mark.slow
def test_every_arm_with_every_rate_is_in_the_table_beside_the_paper(study):
    config, workdir, _, numbers = study
    settings = [(held["arm"], held["learning_rate"]) for held in numbers["settings"]]
    rates = config.branches.learning_rates
    arms = ("task_only", "neighbours_in_context")
    assert settings == [("trunk", None), *((arm, rate) for arm in arms for rate in rates)]
    assert len({held["average"] for held in numbers["settings"]}) == 5  # each its own model
    for arm, held in numbers["arms"].items():
        averages = [s["average"] for s in numbers["settings"] if s["arm"] == arm]
        assert held["average"] == max(averages)
        evaluated = json.loads(Path(held["evaluations"][0]).read_text())["sts"]
        assert held["average"] == pytest.approx(evaluated["average"])
        assert held["STS12"] == evaluated["STS12"]["all"]["spearman"]
    assert numbers["arms"]["trunk"]["difference"]["p"] is not None
    assert [numbers["arms"][arm]["updates"] for arm in arms] == [[1], [1]]  # 8 queries
    text = (workdir / "table1.md").read_text()
    assert all(
        f"| {average:.1f} |" in text
        for arm, (*_, average) in PAPER.items()
        if arm in numbers["arms"]
    )
    assert json.loads((workdir / "table1.json").read_text()) == json.loads(json.dumps(numbers))
    assert (workdir / "table1.csv").read_text().count("\n") == 1 + 5 + len(PAPER)


@pytest.mark.slow
def test_what_is_to_do_is_listed_and_what_is_done(study):
    config, workdir, before, _ = study
    assert before.splitlines()[0] == "design: missing"
    assert "task_only-rate0.001: not begun" in before
    assert before.endswith("4 runs, 0 of them evaluated")
    done = list_runs(config, workdir)
    assert done.splitlines()[0] == "design: complete"
    assert done.endswith("4 runs, 4 of them evaluated")
    assert not design_is_missing(config, workdir)


@pytest.mark.slow
def test_another_search_is_not_taken_for_the_one_that_was_made(study):
    config, workdir, *_ = study
    search = dataclasses.replace(config.design.search, min_similarity=0.5)
    other = dataclasses.replace(config, design=dataclasses.replace(config.design, search=search))
    with pytest.raises(StageError, match=r"min_similarity: 0\.2 there, 0\.5 here"):
        run_table1(other, workdir)


@pytest.mark.slow
def test_what_would_stop_the_study_at_its_end_stops_it_at_its_beginning(study, tmp_path):
    config = study[0]
    with pytest.raises(
        ConfigError, match=r"no branches\.arms, the rows of the table; expected one"
    ):
        check(dataclasses.replace(config, branches=BranchesConfig()))
    no_data = dataclasses.replace(config.evaluation, data=str(tmp_path))
    with pytest.raises(ConfigError, match=r"none of STS12, .* expected SentEval's layout"):
        check(dataclasses.replace(config, evaluation=no_data))
    bare = shutil.copytree(config.training.start_from, tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    (bare / "special_ids.json").unlink()
    training = dataclasses.replace(config.training, start_from=str(bare))
    with pytest.raises(ConfigError, match=r"start_from, which is evaluated too: .*tokenizer\.json"):
        check(dataclasses.replace(config, training=training))


def test_the_command_asks_for_its_data(tmp_path):
    command = [sys.executable, "-m", "icl_jax.studies.table1", f"--workdir={tmp_path}/run"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 2
    assert run.stderr.endswith(
        "error: expected --data=DATA, a folder with sts/ and sick/ in SentEval's layout\n"
    )
