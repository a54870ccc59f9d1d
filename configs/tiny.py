"""A GPT small enough for any machine, on a random language made on the spot, to try the code.

Command:  python -m icl_jax.main --config=configs/tiny.py --workdir=runs/tiny
Cost:     a minute on 2 CPU cores
Expected: the loss falls from 6.3 (a guess among 512 tokens) towards the language's entropy, 1.13
"""

from icl_jax.config import (
    CorpusConfig,
    DataConfig,
    DesignConfig,
    ExperimentConfig,
    GPTConfig,
    OptimizerConfig,
    TrainingConfig,
)


def get_config() -> ExperimentConfig:
    return ExperimentConfig(
        batch_size=8,
        sequence_length=128,
        model=GPTConfig(
            vocab_size=512, context_length=128, num_layers=4, embed_dim=128, num_heads=4
        ),
        design=DesignConfig(corpus=CorpusConfig(max_sentence_tokens=96)),  # for --stages=design
        data=DataConfig(sources=("synthetic:2000",)),
        optimizer=OptimizerConfig(learning_rate=2e-3, warmup=50),
        training=TrainingConfig(steps=400, dropout=False, checkpoint_every=100),
    )
