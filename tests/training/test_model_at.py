"""What can be evaluated is known, with its tokenizer, before weights are read."""

import json
import shutil

from etils import epath
import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.models import huggingface
from icl_jax.training.model_at import model_at, planned_model
from tests.evaluation import small
from tests.training.small import experiment


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    return small.gpt_folder(tmp_path_factory.mktemp("gpt") / "model")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with a moving average, and the tokenizer of a design."""
    config = experiment(model=small.GPTConfig(**small.SIZES), mesh=(-1, 1, 1), ema_decay=0.5)
    return config, epath.Path(small.run_folder(tmp_path_factory.mktemp("run"), config))


def test_a_folder_is_known_before_its_weights_are_read(gpt, tmp_path):
    subject = small.subject_of(gpt)
    assert (subject.place.kind, subject.masked) == ("model folder", False)
    assert subject.tokenizer.encode("Ada").size
    copy = tmp_path / "elsewhere"
    shutil.copytree(gpt, copy)
    assert small.subject_of(copy).identity == subject.identity
    fields = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(fields | {"activation_function": "relu"}))
    assert small.subject_of(copy).identity != subject.identity
    model = subject.load(small.mesh_of())
    assert model is subject.load(small.mesh_of())
    other = small.gpt_folder(tmp_path / "other", num_layers=1)
    assert small.subject_of(other).identity != subject.identity


def test_a_run_is_its_last_checkpoint_with_the_tokenizer_of_its_design(run, monkeypatch):
    config, workdir = run
    subject = model_at(str(workdir))
    assert subject.place.kind == "run" and subject.identity["step"] == 2
    named = model_at(str(workdir / "checkpoints" / "2"))
    assert named.identity == subject.identity
    monkeypatch.chdir(workdir / "checkpoints")
    assert model_at("2").identity == subject.identity
    monkeypatch.undo()
    average = model_at(str(workdir), ema=True)
    assert average.identity["checksum"] != subject.identity["checksum"]
    tokens = np.array([[5, 6, 7]])
    mesh = small.mesh_of()
    last, mean = subject.load(mesh)(tokens), average.load(mesh)(tokens)
    assert not np.allclose(last, mean)
    planned = planned_model(config, workdir)
    assert planned.config == subject.config
    assert planned.tokenizer.fingerprint == subject.tokenizer.fingerprint


def test_what_is_said_is_the_first_sentence(gpt):
    subject = small.subject_of(gpt)
    mark = subject.tokenizer.separator_id
    assert mark not in subject.end_ids and subject.tokenizer.end_of_text_id in subject.end_ids
    for tokens, said, ended in (
        ([7, 8], [7, 8], False),
        ([mark, mark, 7, 8], [7, 8], False),
        ([mark, 7, mark, 8], [7], True),
        ([7, mark], [7], True),
        ([mark], [], False),
        ([], [], False),
    ):
        found = subject.said(np.array(tokens, np.int32))
        assert (found[0].tolist(), found[1]) == (said, ended)


def test_what_cannot_be_evaluated_is_reported(run, gpt, tmp_path):
    with pytest.raises(ConfigError, match="no model at"):
        model_at(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="no finished checkpoint"):
        model_at(str(tmp_path))
    with pytest.raises(ConfigError, match="no moving average"):
        model_at(str(gpt), ema=True)
    bare = tmp_path / "bare"
    shutil.copytree(gpt, bare)
    (bare / "tokenizer.json").unlink()
    (bare / "special_ids.json").unlink()
    with pytest.raises(ConfigError, match=r"expected tokenizer\.json, or vocab\.json"):
        model_at(str(bare))
    assert model_at(str(bare), tokenizer=str(gpt)).tokenizer.encode("Ada").size
    small_model = tmp_path / "small"
    huggingface.save(
        small.make_model(small.GPTConfig(**small.SIZES | {"vocab_size": 299})), small_model
    )
    with pytest.raises(ConfigError, match="up to 299, but the model knows only 299"):
        model_at(str(small_model), tokenizer=str(gpt))


def test_a_run_without_tokenizer_says_where_it_was_sought(run, tmp_path):
    _, workdir = run
    shutil.copytree(workdir / "checkpoints", tmp_path / "checkpoints")
    with pytest.raises(ConfigError, match="name the folder of the tokenizer"):
        model_at(str(tmp_path))
