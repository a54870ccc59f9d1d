"""A model family is one entry of a table: what reads configs then knows it."""

import dataclasses

import pytest

from icl_jax.config import ExperimentConfig, GPTConfig, LinearAttentionConfig, TrainingConfig
from icl_jax.models import create, kinds
from icl_jax.models.gpt import GPT
from icl_jax.training.checks import _objective_problems


@dataclasses.dataclass(unsafe_hash=True)
class MadeUpConfig(GPTConfig):
    vocab_size: int = 11
    num_layers: int = 1
    embed_dim: int = 6
    num_heads: int = 2


class MadeUp(GPT):
    pass


@pytest.fixture
def made_up(monkeypatch):
    kind = kinds.Kind(MadeUp, "masked_token", presets={"made-up": MadeUpConfig()})
    monkeypatch.setitem(kinds.KINDS, MadeUpConfig, kind)


def test_a_new_family_is_created_and_trained_by_its_entry(made_up):
    assert isinstance(create(MadeUpConfig()), MadeUp)
    assert kinds.predicts_masked(MadeUpConfig()) and not kinds.predicts_masked(GPTConfig())
    config = ExperimentConfig(model=MadeUpConfig(), training=TrainingConfig(mask_token_id=10))
    (problem,) = _objective_problems(config)
    assert "'next_token' needs a GPTConfig, but model is a MadeUpConfig" in problem
    config.training.objective = "masked_token"
    assert _objective_problems(config) == []


def test_a_family_without_a_format_has_no_folder(made_up):
    for config in (MadeUpConfig(), LinearAttentionConfig()):
        with pytest.raises(ValueError, match=f"no model for a {type(config).__name__}"):
            kinds.format_of(config)


def test_formats_and_presets_are_those_of_the_table():
    assert [*kinds.FORMATS] == ["gpt2", "roberta", "bert"]
    assert kinds.format_of(kinds.preset("bert-base-uncased")).model_type == "bert"
    assert kinds.format_of(kinds.preset("roberta-large")).model_type == "roberta"
