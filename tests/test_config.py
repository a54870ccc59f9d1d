"""A wrong config is refused with every wrong field, what it holds, and the fix."""

import json

import pytest

from icl_jax.config import (
    ConfigError,
    CorpusConfig,
    DesignConfig,
    EncoderConfig,
    ExperimentConfig,
    GPTConfig,
    LinearAttentionConfig,
    MeshConfig,
    RobertaConfig,
    SearchConfig,
    TokenizerConfig,
)
from icl_jax.config.tree import differences, from_dict, to_dict, validate


@pytest.mark.parametrize(
    "config", [ExperimentConfig(), GPTConfig(), RobertaConfig(), LinearAttentionConfig()]
)
def test_the_defaults_are_valid(config):
    assert validate(config) is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GPTConfig(embed_dim=10, num_heads=3), ["embed_dim 10", "num_heads 3", "head_dim"]),
        (GPTConfig(position="alibbi"), ["alibi", "got 'alibbi'"]),
        (GPTConfig(num_layers=0), ["num_layers must be at least 1, got 0"]),
        (GPTConfig(attention_dropout=1.0), ["attention_dropout", "got 1.0"]),
        (GPTConfig(position="alibi", position_rank=2), ["position_rank", "'alibi'"]),
        (GPTConfig(position="rotary", head_dim=3), ["even head_dim, got 3"]),
        (RobertaConfig(pad_token_id=50265), ["vocabulary of 50265, got 50265"]),
        (LinearAttentionConfig(embedding="convolution"), ["tie_head=False"]),
        (LinearAttentionConfig(position="rotary"), ["rotary", "analysed network"]),
        (MeshConfig(data=-1, fsdp=-1), ["only one axis may be -1"]),
        (MeshConfig(data=0), ["data must be", "got 0"]),
        (SearchConfig(min_similarity=1.5), ["cosine, -1 to 1, got 1.5"]),
        (SearchConfig(neighbours=0), ["neighbours must be from 1 to 500, got 0"]),
        (SearchConfig(engine="jax", index="IVF64"), ["auto, exact, approximate", "'IVF64'"]),
        (SearchConfig(duplicate_jaccard=0.0), ["duplicate_jaccard must be above 0"]),
        (CorpusConfig(format="csv", max_bad_share=2.0), ["jsonl", "'csv'", "max_bad_share"]),
        (CorpusConfig(language="English"), ["code such as en", "'English'"]),
        (TokenizerConfig(vocab_size=256), ["at least 257, got 256"]),
        (TokenizerConfig(separator="|"), ["separator '|'", "tokenizer.folder"]),
        (EncoderConfig(store="int8"), ["float16, float32", "'int8'"]),
        (DesignConfig(shard_megabytes=0.0, workers=-1), ["shard_megabytes", "workers"]),
    ],
)
def test_impossible_values_are_named(config, words):
    with pytest.raises(ConfigError) as caught:
        validate(config)
    assert all(word in str(caught.value) for word in words), caught.value


def test_all_problems_come_in_one_message_with_their_path():
    config = ExperimentConfig(
        model=GPTConfig(num_layers=0, dtype="float8"), mesh=MeshConfig(fsdp=0)
    )
    with pytest.raises(ConfigError) as caught:
        validate(config)
    for path in ("model.num_layers", "model.dtype", "mesh.fsdp"):
        assert path in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_numpy_does_not_take_is_refused(seed):
    with pytest.raises(ConfigError, match=rf"seed must be from 0 to 4294967295 .*, got {seed}"):
        validate(ExperimentConfig(seed=seed))
    validate(ExperimentConfig(seed=2**32 - 1))


def test_rows_longer_than_the_positions_are_refused():
    config = ExperimentConfig(sequence_length=2000)
    with pytest.raises(ConfigError, match=r"sequence_length 2000.*context_length 1024"):
        validate(config)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_layers", "12", "model.num_layers must be int, got '12'"),
        ("num_layers", True, "model.num_layers must be int, got True"),
        ("head_dim", 1.5, "model.head_dim must be int or None, got 1.5"),
        ("tie_head", 1, "model.tie_head must be bool, got 1"),
    ],
)
def test_a_field_of_the_wrong_type_is_named(field, value, message):
    config = ExperimentConfig()
    setattr(config.model, field, value)
    with pytest.raises(ConfigError) as caught:
        validate(config)
    assert str(caught.value) == message


def test_a_config_survives_being_written_down():
    config = ExperimentConfig(model=RobertaConfig(num_layers=3))
    config.data.sources, config.data.phases = ("a", "b"), ((0, (1.0, 0.0)), (5, (1.0, 1.0)))
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    with pytest.raises(ConfigError, match="MeshConfig has no field dota; was it written by a la"):
        from_dict({"class": "MeshConfig", "dota": 1})


def test_every_difference_of_two_configs_is_named():
    ours, theirs = ExperimentConfig(), ExperimentConfig(seed=3, model=GPTConfig(num_layers=2))
    assert differences(to_dict(theirs), to_dict(ours)) == [
        "seed: 3 there, 0 here",
        "model.num_layers: 2 there, 12 here",
    ]


def test_types_inside_a_tuple_are_checked():
    config = ExperimentConfig()
    config.data.sources = ("a", 3)
    with pytest.raises(ConfigError, match=r"data.sources must be tuple.*, got \('a', 3\)"):
        validate(config)


@pytest.mark.parametrize(
    ("part", "field", "value", "message"),
    [
        ("data", "phases", ((1, (1.0,)),), "the first steps of phases must rise from 0, got [1]"),
        ("data", "phases", ((0, (1.0,)),), "the phase from step 0 has 1 weights for 0 sources"),
        ("optimizer", "b2", 1.0, "b2 must be from 0 to 1 but below, got 1.0"),
        ("optimizer", "warmup", -1, "warmup must be a number of at least 0, got -1"),
        ("training", "objective", "x", "objective must be one of next_token, masked_token, got"),
        ("training", "keep_every", 1500, "keep_every 1500 is not a multiple of checkpoint_every"),
        ("training", "log_every", 0, "log_every must be at least 1, got 0"),
    ],
)
def test_a_wrong_field_of_training_is_named(part, field, value, message):
    config = ExperimentConfig()
    setattr(getattr(config, part), field, value)
    with pytest.raises(ConfigError) as stopped:
        validate(config)
    assert f"{part}.{message}" in str(stopped.value)
