"""The papers' optimisers by name."""

import dataclasses

from icl_jax.config import ConfigError, OptimizerConfig

PRESETS: dict[str, OptimizerConfig] = {
    # Levine et al. 2022, appendix D.2. It gives no learning rate: peak and cosine, down to a tenth
    # of the peak, are GPT-3's for these sizes (Brown et al. 2020, table 2.1 and appendix B).
    "knn-pretraining-base": OptimizerConfig(final_share=0.1),
    "knn-pretraining-medium": OptimizerConfig(learning_rate=3e-4, final_share=0.1),
    # Levine et al. 2022, section 3.1 and appendix D.1: the first of 5 epochs is warm-up; peaks
    # 1, 3, 5 and 7e-5 were tried. The decay after the warm-up is not given: linear, as is usual.
    "knn-tapt": OptimizerConfig(
        learning_rate=5e-5, schedule="linear", warmup=1, b2=0.98, epsilon=1e-6, weight_decay=0.01
    ),
    # Levine et al. 2020, appendix D: Adam; no peak is given, this is that of the paper below.
    "depth-to-width": OptimizerConfig(
        learning_rate=1.6e-3, warmup=12_000, b2=0.999, weight_decay=0.0
    ),
    # Wies et al. 2021, appendix C.
    "vocabulary-bottleneck": OptimizerConfig(
        learning_rate=1.6e-3, warmup=12_000, b2=0.999, weight_decay=0.01
    ),
}


def preset(name: str, **changes) -> OptimizerConfig:
    """A copy of the optimiser called `name`, with `changes`."""
    if name not in PRESETS:
        raise ConfigError(f"unknown optimiser '{name}'; expected one of {', '.join(PRESETS)}")
    return dataclasses.replace(PRESETS[name], **changes)
