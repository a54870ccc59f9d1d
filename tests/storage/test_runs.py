"""Whole runs in a bucket: the same records and losses as on a disk, whatever fails on the way."""

import gzip
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

from etils import epath
import jax
import numpy as np
import pytest

from icl_jax.config import ExamplesConfig
from icl_jax.data.tfrecord import scan_records
from icl_jax.design.explain import explain
from icl_jax.design.export import export
from icl_jax.design.folders import DesignFolders
from icl_jax.design.stage import design
from icl_jax.files import mirror
from icl_jax.files.remote import StorageError
from icl_jax.retrieval import show
from icl_jax.training import checkpoint
from icl_jax.training import train as train_module
from icl_jax.training.run_record import last_step
from icl_jax.training.train import train
from tests.design.test_find_related import experiment, write_corpus
from tests.training import small

ROOT = Path(__file__).parents[2]
WORK = "gs://bucket/mine"
ARM = "neighbours_in_context"
ABOUT_THE_RUN = ("cost.json", "lock", "card.json", "card.html", ".mirror")


@pytest.fixture(autouse=True)
def _optax():
    with jax.numpy_dtype_promotion("standard"):  # it mixes dtypes
        yield


def small_design(folder):
    made = {"examples": ExamplesConfig(arms=(ARM,)), "shard_megabytes": 0.01}
    config = experiment(write_corpus(folder), **made)
    config.sequence_length = 130
    return config


def files_below(path) -> dict[str, bytes]:
    files = (file for file in sorted(path.rglob("*")) if file.is_file())
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in files
        if file.name not in ABOUT_THE_RUN
    }


def objects_below(gcs, url: str) -> dict[str, bytes]:
    names = [name for name in gcs.names(url) if name.rsplit("/", 1)[-1] not in ABOUT_THE_RUN]
    return {name: gcs.content(f"{url}/{name}") for name in names if "lock" not in name.split("/")}


def metrics_in(content: str) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in map(json.loads, content.splitlines())}


def test_a_design_in_a_bucket_continues_on_another_machine_to_the_same_files(
    gcs, tmp_path, monkeypatch, capsys
):
    config = small_design(tmp_path)
    design(config, tmp_path / "run")
    expected = files_below(tmp_path / "run" / "design")
    gcs.fail("POST", "mine/design/corpus/sentences|trained.faiss", "503", times=2)
    gone = gcs.fail("POST", f"arms/{ARM}/counts", "503", times=99)
    with pytest.raises(StorageError, match=r"gs://bucket/mine/design/arms/.*could not be written"):
        design(config, WORK)
    gone.times = 0
    assert not any("results.json" in name for name in gcs.names(f"{WORK}/design/arms"))

    monkeypatch.setenv(mirror.PLACE, str(tmp_path / "other machine"))
    begun = {name: kept for name, kept in gcs.objects.items() if "/lock/" not in name}
    gcs.fail("GET", "alt=media", "cut", times=2)
    design(config, WORK)
    assert objects_below(gcs, f"{WORK}/design") == expected
    again = [name for name in begun if gcs.objects[name][1] != begun[name][1]]
    told_anew = (f"arms/{ARM}/", "design/config.json", "design/card.json", "design/card.html")
    assert [name for name in again if not any(told in name for told in told_anew)] == []

    monkeypatch.setenv(mirror.PLACE, str(tmp_path / "third machine"))
    capsys.readouterr()
    for workdir in (WORK, str(tmp_path / "run")):
        explain.main([f"--workdir={workdir}", f"--arm={ARM}", "--index=0"])
        show.main([f"--workdir={workdir}", "--query=Where was Mar3ek born?"])
    told = capsys.readouterr().out.replace(WORK, str(tmp_path / "run")).splitlines()
    assert told[: len(told) // 2] == told[len(told) // 2 :]
    exported = [export(place, ARM, tmp_path / str(n), "rows", 130)
                for n, place in enumerate((WORK, tmp_path / "run"))]  # fmt: skip
    assert exported[0] == exported[1]
    third = DesignFolders(WORK).path
    assert not list(third.glob("arms/*/*.tfrecord-*"))  # these are read at the URL


def test_records_of_others_are_not_fetched_while_a_step_is_made(gcs):
    folder = mirror.local_folder("gs://bucket/a design") / "arm"
    for name in ("inputs.json", "counts-00001.json", "arm-train.tfrecord-00001-of-00002"):
        gcs.put(f"bucket/a design/arm/{name}", b"{}")
    mirror.bring_in_sight(folder)
    assert {path.name for path in folder.iterdir()} == {"inputs.json", "counts-00001.json"}


def test_what_was_deleted_or_changed_in_the_bucket_is_so_in_the_copy(gcs):
    folder = mirror.local_folder("gs://bucket/a folder")
    for name in ("one", "two", "three"):
        gcs.put(f"bucket/a folder/step/{name}", name.encode())
    mirror.pull(folder / "step")
    (folder / "step" / "lock").touch()
    del gcs.objects["bucket/a folder/step/one"]
    gcs.put("bucket/a folder/step/two", b"TWO")  # as long as before
    gcs.requests.clear()
    mirror._CLOCK_SECONDS, before = -1, mirror._CLOCK_SECONDS
    try:
        mirror.pull(folder / "step")
    finally:
        mirror._CLOCK_SECONDS = before
    found = {file.name: file.read_text() for file in (folder / "step").iterdir()}
    assert found == {"two": "TWO", "three": "three", "lock": ""}
    assert len([r for r in gcs.requests if "alt=media" in r]) == 1
    mirror.remove(folder / "step" / "two")
    assert gcs.names("gs://bucket/a folder") == ["step/three"]


def records_at(gcs, workdir):
    source = small.write_source(workdir, np.arange(30 * 16).reshape(30, 16) % 61)
    return str(source)


def small_run(source: str, steps: int):
    optimizer = {"schedule": "constant", "warmup": 2}
    return small.experiment(source, steps=steps, optimizer=optimizer, mesh=(8,), checkpoint_every=9)


@pytest.mark.slow
def test_a_run_in_a_bucket_continues_to_the_same_losses_and_weights(gcs, tmp_path, monkeypatch):
    steps, compile_step = [], train_module.compile_train_step
    # All three are of one shape: compiling takes longer than the rest, and more for 8 devices.
    monkeypatch.setattr(train_module, "make_mesh", lambda config: small.one_device())
    monkeypatch.setattr(
        train_module,
        "compile_train_step",
        lambda *made_of: (steps or steps.append(compile_step(*made_of)) or steps)[0],
    )
    local, url = epath.Path(tmp_path / "run"), epath.Path(WORK)
    expected = train(small_run(records_at(gcs, local / "records"), 4), local)
    source = records_at(gcs, url / "records")
    gcs.fail("GET", "alt=media", "503", times=2)
    gcs.fail("POST", "uploadType=media", "503", times=1)  # the arrays of a checkpoint
    train(small_run(source, 2), url)
    # Killed while it saved: a checkpoint without its last file, and lines that will come again.
    for name in gcs.names(f"{WORK}/checkpoints/2"):
        if not name.endswith("commit_success.txt"):
            gcs.put(f"bucket/mine/checkpoints/3/{name}", b"half")
    lines = gcs.content(f"{WORK}/metrics.jsonl")
    gcs.put("bucket/mine/metrics.jsonl", lines + b'{"step": 3, "loss": 9.0}\n{"st')
    assert last_step(url) == 2 and checkpoint.find(WORK)[1] == 2
    state = train(small_run(source, 4), url)
    assert checkpoint.finished_steps(url / "checkpoints")[-1] == 4
    jax.tree.map(np.testing.assert_array_equal, state.params, expected.params)
    losses = metrics_in(gcs.content(f"{WORK}/metrics.jsonl").decode())
    assert losses == metrics_in((local / "metrics.jsonl").read_text()) and len(losses) == 4
    events = [name for name in gcs.names(f"{WORK}/tensorboard") if "tfevents" in name]
    assert sum(1 for e in events for _ in scan_records(url / "tensorboard" / e)) > 4
    assert [name for name in gcs.names() if ".partial" in name] == []


COMMAND = (
    sys.executable, "-m", "icl_jax.main", "--config=configs/tiny.py",
    "--config.design.corpus.files=gs://bucket/corpus/*.jsonl.gz",
    "--config.design.tokenizer.vocab_size=300", "--config.design.search.min_similarity=0.3",
    "--config.sequence_length=130", "--config.model.context_length=130", "--config.batch_size=8",
    f"--config.design.examples.arms=('{ARM}',)", f"--config.data.sources=('design:{ARM}',)",
    "--config.design.workers=2", "--config.design.shard_megabytes=0.005",
    "--config.training.steps=30", "--config.optimizer.warmup=10",
    "--config.training.checkpoint_every=5",
    "--config.training.log_every=1", "--config.evaluation.tasks=perplexity",
    f"--config.evaluation.perplexity.records=('design:{ARM}',)",
)  # fmt: skip


def pack_corpus(gcs, folder) -> None:
    packed = gzip.compress(write_corpus(folder).read_bytes(), mtime=0)
    gcs.put("bucket/corpus/people.jsonl.gz", packed)


@pytest.mark.slow
def test_the_whole_command_killed_in_every_stage_comes_to_what_it_does_on_a_disk(gcs, tmp_path):
    pack_corpus(gcs, tmp_path)
    environment = os.environ | {"XLA_FLAGS": "", "PYTHONWARNINGS": "ignore"}

    def begin(workdir, machine: str) -> subprocess.Popen:
        mine = environment | {mirror.PLACE: str(tmp_path / machine)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([*COMMAND, f"--workdir={workdir}"], cwd=ROOT, env=mine, **pipes)

    local = begin(tmp_path / "run", "none")
    assert local.wait() == 0, local.stdout.read().decode()
    for machine, there in (
        ("first", f"mine/design/arms/{ARM}/counts-00000.json"),
        ("second", "mine/checkpoints/10/commit_success.txt"),
        ("third", "mine/evaluation/30/perplexity/inputs.json"),
    ):
        killed = begin(WORK, machine)
        while f"bucket/{there}" not in gcs.objects:
            assert killed.poll() is None, killed.stdout.read().decode()
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
    last = begin(WORK, "fourth")
    assert last.wait() == 0, last.stdout.read().decode()
    assert objects_below(gcs, f"{WORK}/design") == files_below(tmp_path / "run" / "design")
    told = gcs.content(f"{WORK}/metrics.jsonl").decode()
    assert metrics_in(told) == metrics_in((tmp_path / "run" / "metrics.jsonl").read_text())
    assert len(told.splitlines()) == 30
    rows = "evaluation/30/perplexity/outputs.jsonl"
    assert gcs.content(f"{WORK}/{rows}") == (tmp_path / "run" / rows).read_bytes()
