"""Every config dataclass, and the checks that stop a wrong one before any work is done.

A file of `configs/` defines `get_config() -> ExperimentConfig`; `--config.FIELD=value` overrides.
The dataclasses are not frozen because the flags assign to their fields; each checks its own.
"""

from icl_jax.config.checks import (
    ConfigError,
    StageError,
    StoppedError,
)
from icl_jax.config.design import (
    CorpusConfig,
    DesignConfig,
    EncoderConfig,
    ExamplesConfig,
    SearchConfig,
    TokenizerConfig,
)
from icl_jax.config.evaluation import (
    EvaluationConfig,
    GlueConfig,
    NeighbourGainConfig,
    PerplexityConfig,
    QuestionsConfig,
    StsConfig,
)
from icl_jax.config.experiment import (
    BranchesConfig,
    ExperimentConfig,
)
from icl_jax.config.model import (
    GPTConfig,
    LinearAttentionConfig,
    LSTMConfig,
    ModelConfig,
    RobertaConfig,
    TransformerConfig,
    head_dim,
    mlp_dim,
)
from icl_jax.config.training import (
    DataConfig,
    MeshConfig,
    OptimizerConfig,
    TrainingConfig,
)

__all__ = [
    "BranchesConfig",
    "ConfigError",
    "CorpusConfig",
    "DataConfig",
    "DesignConfig",
    "EncoderConfig",
    "EvaluationConfig",
    "ExamplesConfig",
    "ExperimentConfig",
    "GPTConfig",
    "GlueConfig",
    "LSTMConfig",
    "LinearAttentionConfig",
    "MeshConfig",
    "ModelConfig",
    "NeighbourGainConfig",
    "OptimizerConfig",
    "PerplexityConfig",
    "QuestionsConfig",
    "RobertaConfig",
    "SearchConfig",
    "StageError",
    "StoppedError",
    "StsConfig",
    "TokenizerConfig",
    "TrainingConfig",
    "TransformerConfig",
    "head_dim",
    "mlp_dim",
]
