"""A GPT small enough for any machine: to try the code, not to learn language.

Command:  python -m icl_jax.main --config=configs/tiny.py --workdir=runs/tiny
Cost:     half a minute on 2 CPU cores
Expected: the table of 875,264 parameters, then "all checks passed"
"""

from icl_jax.config import ExperimentConfig, GPTConfig


def get_config() -> ExperimentConfig:
    return ExperimentConfig(
        batch_size=8,
        sequence_length=128,
        model=GPTConfig(
            vocab_size=512, context_length=128, num_layers=4, embed_dim=128, num_heads=4
        ),
    )
