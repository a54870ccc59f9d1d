"""Models in a bucket are evaluated and compared there, whoever continues with it."""

import dataclasses
import json
from pathlib import Path
import shutil

from etils import epath
import pytest

from icl_jax.config import ConfigError, EncoderConfig, StageError
from icl_jax.design.export import _check as check_export
from icl_jax.evaluation.compare.compare import compare
from icl_jax.evaluation.evaluate import evaluate_run, open_tasks
from icl_jax.evaluation.tasks.questions.task import NaturalQuestions
from icl_jax.files import mirror
from icl_jax.files.remote import StorageError
from icl_jax.models import huggingface
from icl_jax.retrieval.encoders.folder import read_encoder_folder
from icl_jax.training import export
from icl_jax.training.checks import check_run
from icl_jax.training.model_at import model_at
from tests.evaluation import small
from tests.training.small import experiment, write_source

WORK = "gs://bucket/mine"
QUESTIONS = [{"question": f"who was born in kersk in {year}", "answer": ["Ada"]}
             for year in (1901, 1902, 1903)]  # fmt: skip


def send(gcs, folder: Path, url: str) -> None:
    """As if it had been made there: Orbax ends a checkpoint in a bucket with one file more."""
    for file in [path for path in folder.rglob("*") if path.is_file()]:
        gcs.put(f"{url}/{file.relative_to(folder).as_posix()}"[5:], file.read_bytes())
    for step in folder.glob("checkpoints/*"):
        gcs.put(f"{url}/checkpoints/{step.name}/commit_success.txt"[5:], b"done")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(config, workdir, not written to) of a run with weights and their moving average."""
    folder = tmp_path_factory.mktemp("run")
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    model = small.GPTConfig(**small.SIZES)
    config = experiment(model=model, mesh=(-1, 1, 1), ema_decay=0.5)
    config.evaluation = small.evaluation(tasks=("nq_open",))
    config.evaluation.questions.file, config.evaluation.questions.max_new_tokens = str(file), 4
    small.run_folder(folder / "work", config)
    return config, folder / "work"


@pytest.fixture
def asked(monkeypatch):
    """The first item of every part that is made; a part is one question."""
    parts, make = [], NaturalQuestions.run
    monkeypatch.setattr(NaturalQuestions, "part_size", 1)

    def noted(self, items, first, *more):
        parts.append(first)
        return make(self, items, first, *more)

    monkeypatch.setattr(NaturalQuestions, "run", noted)
    return parts


def on_another_machine(monkeypatch, place: Path) -> None:
    monkeypatch.setenv(mirror.PLACE, str(place))
    mirror.fetch.cache_clear()


def evaluate_both(config, workdir) -> dict:
    """Weights and moving average evaluated and compared."""
    found = {}
    for name, ema in (("weights", False), ("mean", True)):
        config.evaluation.ema = ema
        found[name] = [evaluate_run(config, workdir)]
    config.evaluation.ema = False
    return compare(found, "weights", epath.Path(workdir) / "comparison", 50)


def test_a_run_in_a_bucket_is_evaluated_and_compared_as_its_copy_on_a_disk(
    gcs, run, asked, tmp_path, monkeypatch, capsys
):
    config, workdir = run
    send(gcs, workdir, WORK)
    workdir = shutil.copytree(workdir, tmp_path / "copy")
    evaluate_both(config, workdir)
    gcs.fail("GET", "alt=media", "503", times=2)
    gcs.fail("POST", "outputs.jsonl|comparison.json", "die", times=2)
    evaluate_both(config, WORK)
    assert f"results: {WORK}/evaluation/2-ema.json" in capsys.readouterr().out
    for part in ("evaluation", "comparison"):
        local = {f.relative_to(workdir / part).as_posix(): f.read_bytes()
                 for f in (workdir / part).rglob("*") if f.is_file()}  # fmt: skip
        names = {name for name in local if not name.endswith(("lock", "cost.json"))}
        there = {name for name in gcs.names(f"{WORK}/{part}")
                 if not name.endswith("cost.json") and "lock" not in name.split("/")}  # fmt: skip
        assert there == names and len(names) == {"evaluation": 12, "comparison": 5}[part]
        for name in names:
            told = gcs.content(f"{WORK}/{part}/{name}")
            assert told.replace(WORK.encode(), bytes(workdir)) == local[name], name

    on_another_machine(monkeypatch, tmp_path / "second")
    asked.clear()
    held = {name: kept[1] for name, kept in gcs.objects.items()}
    assert evaluate_both(config, WORK)["evaluations"]["mean"] == [f"{WORK}/evaluation/2-ema"]
    assert asked == []
    again = [name for name, kept in gcs.objects.items() if held.get(name) != kept[1]]
    assert not [name for name in again if "/nq_open/" in name]
    assert not list((tmp_path / "second").rglob("*.ocdbt"))  # weights are read where they are


def test_an_evaluation_that_dies_continues_elsewhere_after_its_last_whole_part(
    gcs, run, asked, tmp_path, monkeypatch
):
    config, workdir = run
    send(gcs, workdir, WORK)
    gone = gcs.fail("POST", "part-1-2.jsonl", "die", times=99)
    with pytest.raises(
        StorageError, match=rf"{WORK}/evaluation/2/nq_open/part-1-2.jsonl could not"
    ):
        evaluate_run(config, WORK)
    gone.times = 0
    there = [name for name in gcs.names(f"{WORK}/evaluation") if "/lock/" not in name]
    assert there == ["2/nq_open/inputs.json", "2/nq_open/part-0-1.jsonl"]
    on_another_machine(monkeypatch, tmp_path / "second")
    asked.clear()
    evaluate_run(config, WORK)
    assert asked == [1, 2]
    rows = gcs.content(f"{WORK}/evaluation/2/nq_open/outputs.jsonl").decode().splitlines()
    assert [json.loads(row)["question"] for row in rows] == [q["question"] for q in QUESTIONS]
    assert not [name for name in gcs.names() if "part" in name.rpartition("/")[2]]
    config.evaluation.questions.max_new_tokens = 3
    try:
        with pytest.raises(StageError, match=f"{WORK}/evaluation/2/nq_open was made from other"):
            evaluate_run(config, WORK)
    finally:
        config.evaluation.questions.max_new_tokens = 4


def test_the_data_of_tasks_may_lie_in_a_bucket(gcs, run, tmp_path):
    config, workdir = run
    subject, file = model_at(str(workdir)), tmp_path / "nq_open" / "NQ-open.dev.jsonl"
    file.parent.mkdir()
    shutil.copy(config.evaluation.questions.file, file)
    named = dataclasses.replace(config.evaluation.questions, file="")
    asked = dataclasses.replace(config.evaluation, questions=named)
    there = dataclasses.replace(asked, data="gs://bucket/data")
    with pytest.raises(ConfigError, match=r"nq_open: .* gs://bucket/data/nq_open/NQ-open.dev"):
        open_tasks(subject, there)
    send(gcs, tmp_path, "gs://bucket/data")
    gcs.put("bucket/data/other/large.bin", b"not of a task")
    mirror.fetch.cache_clear()  # another command
    found = open_tasks(subject, there)["nq_open"]
    here = open_tasks(subject, dataclasses.replace(asked, data=str(tmp_path)))["nq_open"]
    assert found.inputs == here.inputs and len(found.items) == 3
    assert not (mirror.local_folder("gs://bucket/data") / "other").exists()


def test_a_model_folder_in_a_bucket_is_the_model_that_it_is_on_a_disk(gcs, tmp_path, monkeypatch):
    folder, url = small.gpt_folder(tmp_path / "gpt"), "gs://bucket/models/gpt"
    send(gcs, folder, url)
    here, there = model_at(str(folder)), model_at(url)
    assert here.identity == there.identity
    identities = [
        read_encoder_folder(EncoderConfig(folder=str(f))).identity() for f in (folder, url)
    ]
    assert identities[0] == identities[1]
    source = write_source(tmp_path / "records", [[5, 6, 7, 0]] * 20)
    check_run(experiment(source, model=here.config, start_from=url), epath.Path(tmp_path / "run"))
    with pytest.raises(StageError, match=f"--to must be a local folder, got {url}; copy it"):
        monkeypatch.setattr("icl_jax.design.export.read_inputs", lambda f: {"layout": ""})
        monkeypatch.setattr("icl_jax.design.export.read_results",
                            lambda f: {"longest_group": 1})  # fmt: skip
        check_export(epath.Path("arm"), "arm", url, 8)


def test_the_model_of_a_run_is_exported_into_a_bucket_once(gcs, run):
    _, workdir = run
    send(gcs, workdir, WORK)
    flags = [f"--run={WORK}", "--to=gs://bucket/exported"]
    export.main(flags)
    assert gcs.names("gs://bucket/exported") == [
        "config.json", "model.safetensors", "special_ids.json", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    folder = mirror.fetched("gs://bucket/exported")
    assert huggingface.read_config(folder).vocab_size == small.SIZES["vocab_size"]
    with pytest.raises(SystemExit, match="error: gs://bucket/exported already holds a model"):
        export.main(flags)


def test_a_step_that_was_half_copied_is_copied_to_its_end(gcs):
    for name in ("a.npy", "b.npy", "results.json"):
        gcs.put(f"bucket/first/{name}", name.encode())
    gone = gcs.fail("POST", "first/b.npy", "503", times=99)
    with pytest.raises(StorageError, match=r"gs://bucket/first/b\.npy could not be copied"):
        mirror.copy("gs://bucket/first", "gs://bucket/second")
    assert gcs.names("gs://bucket/second") == ["a.npy"]
    gone.times, copied = 0, gcs.objects["bucket/second/a.npy"]
    mirror.copy("gs://bucket/first", "gs://bucket/second")
    assert gcs.names("gs://bucket/second") == gcs.names("gs://bucket/first")
    assert gcs.objects["bucket/second/a.npy"] == copied
