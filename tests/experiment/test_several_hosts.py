"""All stages in a job of several processes: what one process makes, whoever is killed."""

import dataclasses
import json
from pathlib import Path
import pickle
import shutil
import time

from etils import epath
import pytest

from icl_jax.config import (
    EncoderConfig,
    ExamplesConfig,
    ExperimentConfig,
    GPTConfig,
    MeshConfig,
    SearchConfig,
)
from icl_jax.design.folders import DesignFolders
from icl_jax.design.stage import design
from icl_jax.experiment.stages import run_stages
from icl_jax.files.step_folder import read_results
from icl_jax.models import huggingface
from tests.a_job import end_job, start_job
from tests.design.test_find_related import experiment, write_corpus
from tests.design.test_kill_design import assert_same
from tests.experiment.test_stages import STAGES, small_experiment
from tests.models.small import make_model
from tests.retrieval.small_encoder import make_sentence_folder

pytestmark = pytest.mark.slow  # tests/workers/test_job.py covers how the processes work together
DEVICES = 4  # of each process


def start(config: ExperimentConfig, folder: Path, name: str, stages, processes: int = 2):
    """The stages in WORKDIR `folder`/`name`, by so many processes."""
    held = folder / f"{name}.pickle"
    held.write_bytes(pickle.dumps(config))
    command = ["-m", "icl_jax.main", f"--config=tests/experiment/pickled_config.py:{held}"]
    command += [f"--workdir={folder / name}", f"--stages={','.join(stages)}"]
    return start_job(command, processes, DEVICES)


def run(*arguments) -> None:
    for code, _, errors in end_job(start(*arguments)):
        assert code == 0, errors[-6000:]


def network_experiment(folder: Path) -> ExperimentConfig:
    """All that needs devices: the vectors of a network, the search, and the filter of groups."""
    network = make_sentence_folder(folder / "bert", {"pooling_mode_mean_tokens": True})
    judge = GPTConfig(vocab_size=300, context_length=130, num_layers=1, embed_dim=16, num_heads=2)
    huggingface.save(make_model(judge), folder / "judge")
    examples = ExamplesConfig(
        arms=("neighbours_in_context", "random_in_batch"),
        gain_model=str(folder / "judge"),
        min_gain=-100.0,
        max_related_share=1.0,
    )
    config = experiment(
        write_corpus(folder, people=20),
        encoder=EncoderConfig(folder=str(network)),
        search=SearchConfig(min_similarity=-0.9, neighbours=3, engine="jax"),
        examples=examples,
        workers=2,
        shard_megabytes=0.001,
    )
    config.mesh, config.sequence_length = MeshConfig(data=-1), 130
    return config


def test_two_hosts_make_the_files_of_one_also_when_they_are_killed(tmp_path):
    config = network_experiment(tmp_path)
    run(config, tmp_path, "alone", ["design"], 1)
    job = start(config, tmp_path, "job", ["design"])
    vectors = DesignFolders(tmp_path / "job").corpus_vectors
    while not any(vectors.glob("vectors-*.npy")):
        assert all(process.poll() is None for process in job)
        time.sleep(0.005)
    for process in job:
        process.kill()
    end_job(job)
    assert not read_results(vectors)
    run(config, tmp_path, "job", ["design"])
    assert_same(tmp_path / "job", tmp_path / "alone")
    one = DesignFolders(tmp_path / "alone").path
    assert len([*one.glob("corpus_vectors/vectors-*.npy")]) > 3
    assert [*one.glob("groups/neighbours/gain/gain-*.npy")]
    assert {*one.iterdir()} == {one / path.name for path in (tmp_path / "job/design").iterdir()}


def test_two_hosts_design_train_and_evaluate_in_step(tmp_path):
    config = small_experiment(tmp_path)
    run(dataclasses.replace(config, mesh=MeshConfig()), tmp_path, "job", STAGES)
    design(config, tmp_path / "alone")
    assert_same(tmp_path / "job", tmp_path / "alone")
    found = json.loads((tmp_path / "job/comparison.json").read_text())
    shutil.rmtree(tmp_path / "job/evaluation")
    for folder in (tmp_path / "job/branches").iterdir():
        shutil.rmtree(folder / "evaluation")
    run_stages(config, epath.Path(tmp_path / "job"), ["evaluate"])
    assert json.loads((tmp_path / "job/comparison.json").read_text()) == found


def test_rounds_run_in_a_job_of_two(tmp_path):
    config = small_experiment(tmp_path)
    config.branches = dataclasses.replace(
        config.branches, arms=("regular", "neighbours_in_context")
    )
    run(dataclasses.replace(config, mesh=MeshConfig(), rounds=2), tmp_path, "job", STAGES)
    found = json.loads((tmp_path / "job/rounds.json").read_text())
    assert [set(each["arms"]) for each in found["rounds"]] == [
        {"regular", "neighbours_in_context"},
        {"regular", "neighbours_in_context", "unchanged"},
    ]


def test_the_check_of_one_process_is_refused_in_a_job(tmp_path):
    for code, _, errors in end_job(start(small_experiment(tmp_path), tmp_path, "job", ["check"])):
        assert code == 2 and "runs in one process, but this job has 2" in errors
