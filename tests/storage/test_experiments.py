"""Whole experiments in a bucket, with all that they compare: the same results as on a disk."""

import dataclasses
import json
import os
from pathlib import Path
import re

from etils import epath
import jax
import pytest

from icl_jax.config import PerplexityConfig
from icl_jax.evaluation import task
from icl_jax.evaluation.compare import compare
from icl_jax.experiment.stages import run_stages
from icl_jax.files import mirror
from tests.design.test_find_related import write_corpus
from tests.experiment.rounds import test_rounds
from tests.experiment.test_stages import STAGES, small_experiment
from tests.storage.test_runs import ARM, WORK

pytestmark = pytest.mark.slow
# Of a disk alone, or with names of Orbax and TensorBoard that are never the same twice.
ELSEWHERE = {"compiled", "checkpoints", "tensorboard", "lock"}
# There in both, but with times or with what a run at a URL is known by.
ABOUT_THE_RUN = {"cost.json", "goodput.json", "metrics.jsonl", "config.json", "card.json",
                 "card.html"}  # fmt: skip


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("icl_jax.training.hardware.measured_gemm_flops", lambda dtype: 1e9)
    with jax.numpy_dtype_promotion("standard"):  # Optax mixes dtypes
        yield


def files_of(workdir: Path) -> dict[str, bytes]:
    """By name; links are followed, for a bucket has none."""
    found = {}
    for folder, _, names in os.walk(workdir, followlinks=True):
        for file in (Path(folder) / name for name in names):
            found[file.relative_to(workdir).as_posix()] = file.read_bytes()
    return found


def results_of(files: dict[str, bytes], workdir) -> dict[str, object]:
    """What must be the same wherever the workdir lies, by name."""
    found = {}
    for name, content in files.items():
        last = name.rpartition("/")[2]
        if {*Path(name).parts} & ELSEWHERE:
            continue
        if last in ABOUT_THE_RUN:
            content = b""
        elif last.endswith((".json", ".jsonl", ".md", ".csv")):
            text = content.decode().replace(str(workdir), "WORKDIR")
            # Of the files of a checkpoint, which hold the same weights in other bytes.
            content = re.sub(r'"checksum": "\w{32}"', '"checksum": ""', text)
        found[name] = content
    return found


def compare_with_local(gcs, workdir: Path) -> None:
    local = results_of(files_of(workdir), workdir)
    there = {name: gcs.content(f"{WORK}/{name}") for name in gcs.names(WORK)}
    remote = results_of(there, WORK)
    assert {*remote} == {*local}
    assert [name for name in local if remote[name] != local[name]] == []
    assert not [name for name in gcs.names() if ".partial" in name]


def with_all_readers(config):
    """Also the tasks that read the design and its records."""
    evaluation = dataclasses.replace(
        config.evaluation,
        tasks=("nq_open", "perplexity", "neighbour_gain"),
        perplexity=PerplexityConfig(records=("design:contiguous",), limit=3),
    )
    evaluation.neighbour_gain.queries = 3
    config.design.examples.arms += ("random_in_context",)
    config.design.examples.max_related_share = 1.0
    return dataclasses.replace(config, evaluation=evaluation)


def test_an_experiment_in_a_bucket_comes_to_the_results_of_a_disk(
    gcs, tmp_path, monkeypatch, capsys
):
    config = with_all_readers(small_experiment(tmp_path))
    run_stages(config, epath.Path(tmp_path / "run"), STAGES)
    gcs.fail("GET", "alt=media", "cut", times=2)
    gcs.fail("POST", "outputs.jsonl|comparison.json", "die", times=2)
    run_stages(config, epath.Path(WORK), STAGES)
    compare_with_local(gcs, tmp_path / "run")
    told = capsys.readouterr().out
    assert f"written: {WORK}/comparison.md" in told

    arms = {arm: f"{WORK}/branches/{arm}/evaluation" for arm in ("regular", ARM)}
    runs = ",".join(f"{arm}={place}" for arm, place in arms.items())
    compare.main([f"--runs={runs}", f"--to={WORK}/again", f"--reference={ARM}"])
    again = json.loads(gcs.content(f"{WORK}/again/comparison.json"))
    whole = json.loads(gcs.content(f"{WORK}/comparison/comparison.json"))
    assert again["evaluations"][ARM] == whole["evaluations"][ARM]
    for name in gcs.names(f"{WORK}/again"):
        del gcs.objects[f"{WORK}/again/{name}"[5:]]

    monkeypatch.setenv(mirror.PLACE, str(tmp_path / "second machine"))
    mirror.fetch.cache_clear()
    before = {name: held for name, held in gcs.objects.items() if "/lock/" not in name}
    monkeypatch.setattr(task, "_make_parts", None)  # nothing is evaluated again
    run_stages(config, epath.Path(WORK), ["evaluate"])
    compare_with_local(gcs, tmp_path / "run")
    written = [name for name in before if gcs.objects[name][1] != before[name][1]]
    assert not [name for name in written if "/outputs.jsonl" in name or "results.json" in name]


def test_rounds_in_a_bucket_come_to_the_results_of_a_disk(gcs, tmp_path, monkeypatch, capsys):
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "Where is Mar3ek from?", "answer": ["Kersk"]}\n' * 4)
    config = test_rounds.small(write_corpus(tmp_path, people=12), questions)
    run_stages(config, epath.Path(tmp_path / "run"), STAGES)
    run_stages(config, epath.Path(WORK), STAGES)
    compare_with_local(gcs, tmp_path / "run")

    monkeypatch.setenv(mirror.PLACE, str(tmp_path / "second machine"))
    mirror.fetch.cache_clear()
    before = {name: held[1] for name, held in gcs.objects.items()}
    run_stages(config, epath.Path(WORK), STAGES)
    assert "all 2 rounds are complete" in capsys.readouterr().out
    assert {name: held[1] for name, held in gcs.objects.items()} == before
