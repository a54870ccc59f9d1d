"""The published models by name."""

import dataclasses

from icl_jax.config import ConfigError, GPTConfig, RobertaConfig

_LARGE = {"num_layers": 24, "embed_dim": 1024, "num_heads": 16}

PRESETS: dict[str, GPTConfig | RobertaConfig] = {
    "gpt2-base": GPTConfig(),  # Radford et al. 2019: 124,439,808 parameters; "gpt2" on the hub
    "gpt2-medium": GPTConfig(**_LARGE),  # 354,823,168
    "roberta-base": RobertaConfig(),  # Liu et al. 2019: 124,697,433 with the MLM head
    "roberta-large": RobertaConfig(**_LARGE),  # 355,412,057
    "bert-base-uncased": RobertaConfig(  # Devlin et al. 2019: 109,514,298 with the MLM head
        vocab_size=30522, norm_epsilon=1e-12, token_types=2, pad_token_id=0, position_offset=0
    ),
}


def preset(name: str) -> GPTConfig | RobertaConfig:
    """A copy of the config called `name`."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset '{name}'; expected one of {', '.join(PRESETS)}")
    return dataclasses.replace(PRESETS[name])
