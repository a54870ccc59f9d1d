"""A model continues only with records of the tokens that it knows."""

import dataclasses
import shutil

from etils import epath
import pytest

from icl_jax.config import ConfigError, DesignConfig, TokenizerConfig
from icl_jax.corpus import train_tokenizer
from icl_jax.corpus.tokenizers import Tokenizer, load
from icl_jax.models import huggingface
from icl_jax.training.checks import check_before_design, check_run
from tests.evaluation.small import roberta_folder, run_folder
from tests.training.small import experiment, write_source

ARM = "neighbours_in_context"
OTHER_TEXT = "Zebras quickly vex jumping foxes; 42 grumpy wizards brew 17 dark pots of glue. " * 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A RoBERTa folder of 300 tokens, with its tokenizer."""
    return roberta_folder(tmp_path_factory.mktemp("model") / "roberta")


def make_workdir(folder, tokenizer: Tokenizer):
    """As a design leaves it: records of one arm, and the tokenizer that they were made with."""
    arm = folder / "design" / "arms" / ARM
    write_source(arm, [[5, 6, 7, 0]] * 20)
    (arm / "results.json").write_text("{}")
    tokenizer.save(folder / "design" / "tokenizer")
    return epath.Path(folder)


def make_config(start, source=f"design:{ARM}", **design):
    made = experiment(source, model=huggingface.read_config(start), start_from=str(start))
    return dataclasses.replace(made, design=DesignConfig(**design))


def other_tokenizer():
    return train_tokenizer.train([OTHER_TEXT], 300)


def test_as_many_tokens_but_others_stop_the_run_and_both_tokenizers_are_named(model, tmp_path):
    workdir = make_workdir(tmp_path, other_tokenizer())
    for source in (f"design:{ARM}", str(workdir / "design" / "arms" / ARM)):
        with pytest.raises(ConfigError) as stopped:
            check_run(make_config(model, source), workdir)
        told = str(stopped.value)
        assert f"the tokenizer of training.start_from {model} does not fit: the records" in told
        assert f"{tmp_path}/design/tokenizer, where " in told and "of 299 ids are other" in told
        assert f"--config.design.tokenizer.folder={model}, or start from" in told


def test_records_of_the_model_s_own_tokenizer_fit_whatever_the_separator(model, tmp_path):
    for separator in ("", "<|between|>"):
        own = load(model, separator)
        check_run(make_config(model), make_workdir(tmp_path / str(own.separator_id), own))
    assert len(list(tmp_path.iterdir())) == 2


def test_where_no_tokenizer_is_known_nothing_is_said(model, tmp_path):
    bare = shutil.copytree(model, tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    workdir = make_workdir(tmp_path / "design", other_tokenizer())
    check_run(make_config(bare), workdir)
    records = write_source(tmp_path / "records", [[5, 6, 7, 0]] * 20)
    check_run(make_config(model, str(records)), workdir)


def test_another_tokenizer_is_reported_before_hours_of_designing(model, tmp_path):
    other_tokenizer().save(tmp_path / "other")
    planned = {"tokenizer": TokenizerConfig(folder=str(tmp_path / "other"))}
    with pytest.raises(ConfigError, match=r"would be made with design\.tokenizer\.folder .*other"):
        check_before_design(make_config(model, **planned), epath.Path(tmp_path))
    planned["tokenizer"].folder = str(model)
    check_before_design(make_config(model, **planned), epath.Path(tmp_path))
    published = shutil.copytree(model, tmp_path / "published")
    (published / "special_ids.json").unlink()
    with pytest.raises(ConfigError, match=r"another one would be trained; set --config\.design\.t"):
        check_before_design(make_config(published), epath.Path(tmp_path))


def test_the_tokenizer_of_another_run_s_design_is_known_too(tmp_path, model):
    begun = run_folder(tmp_path / "begun", make_config(model))
    config = make_config(model)
    config.training.start_from = str(begun)
    with pytest.raises(ConfigError, match=f"start_from {begun} does not fit: the records"):
        check_run(config, make_workdir(tmp_path / "other", other_tokenizer()))
    check_run(config, make_workdir(tmp_path / "same", load(model)))


def test_a_checkpoint_of_another_vocabulary_is_reported_with_what_to_do(model, tmp_path):
    config = make_config(model)
    config.model = dataclasses.replace(config.model, vocab_size=400)
    with pytest.raises(ConfigError) as stopped:
        check_run(config, make_workdir(tmp_path, load(model)))
    assert (
        f"model differs from training.start_from {model}: vocab_size: 300 there, 400 here; set "
        "these fields of model to its values, or start from another model. A model keeps its own "
        "vocabulary, so its records must be made with its own tokenizer (design.tokenizer.folder)"
    ) in str(stopped.value)
