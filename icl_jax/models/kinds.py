"""The one table of model families: what each config class stands for.

To add a family: its config class in `config/model.py` (with a hash, as the others; named also in
`ModelConfig` there and in `config/__init__.py`, by which `config.json` is read), a file with the
network, an entry here, and if Hugging Face has the family, its format in `formats/`.
"""

from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

from flax import nnx

from icl_jax.config import (
    ConfigError,
    GPTConfig,
    LinearAttentionConfig,
    LSTMConfig,
    ModelConfig,
    RobertaConfig,
)
from icl_jax.models.formats.bert import BertFormat, RobertaFormat
from icl_jax.models.formats.format import Format
from icl_jax.models.formats.gpt2 import GPT2Format
from icl_jax.models.gpt import GPT
from icl_jax.models.linear_attention import LinearAttention
from icl_jax.models.lstm import LSTM
from icl_jax.models.roberta import Roberta

_LARGE = {"num_layers": 24, "embed_dim": 1024, "num_heads": 16}


class Kind(NamedTuple):
    """One family of models."""

    module: type[nnx.Module]  # the network, built from the config
    objective: str = ""  # what it is trained for: next_token, masked_token; "": it is not trained
    formats: tuple[Format, ...] = ()  # Hugging Face folders that can store it
    presets: Mapping[str, ModelConfig] = {}  # published models by name


KINDS: dict[type, Kind] = {
    GPTConfig: Kind(
        GPT,
        "next_token",
        (GPT2Format(),),
        {
            "gpt2-base": GPTConfig(),  # Radford et al. 2019: 124,439,808 parameters; "gpt2" there
            "gpt2-medium": GPTConfig(**_LARGE),  # 354,823,168
        },
    ),
    RobertaConfig: Kind(
        Roberta,
        "masked_token",
        (RobertaFormat(), BertFormat()),
        {
            "roberta-base": RobertaConfig(),  # Liu et al. 2019: 124,697,433 with the MLM head
            "roberta-large": RobertaConfig(**_LARGE),  # 355,412,057
            "bert-base-uncased": RobertaConfig(  # Devlin et al. 2019: 109,514,298 with the head
                vocab_size=30522, norm_epsilon=1e-12, token_types=2, pad_token_id=0,
                position_offset=0,
            ),
        },
    ),
    LinearAttentionConfig: Kind(LinearAttention),
    LSTMConfig: Kind(LSTM),
}  # fmt: skip
FORMATS = {format.model_type: format for kind in KINDS.values() for format in kind.formats}
PRESETS = {name: config for kind in KINDS.values() for name, config in kind.presets.items()}


def kind_of(config: ModelConfig) -> Kind:
    """The family of a config."""
    return KINDS[type(config)]


def predicts_masked(config: ModelConfig) -> bool:
    """Whether the model predicts masked tokens; a model that does not predicts the next one."""
    return kind_of(config).objective == "masked_token"


def format_of(config: ModelConfig) -> Format:
    """How Hugging Face stores a model of this config."""
    why = f"Hugging Face has no model for a {type(config).__name__}"
    for known in kind_of(config).formats:
        why = known.mismatch(config)
        if not why:
            return known
    raise ValueError(why)


def preset(name: str) -> ModelConfig:
    """A copy of the config called `name`."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset '{name}'; expected one of {', '.join(PRESETS)}")
    return dataclasses.replace(PRESETS[name])
