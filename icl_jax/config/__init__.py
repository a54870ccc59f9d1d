"""Every config dataclass, and the checks that stop a wrong one before any work is done.

A file of `configs/` defines `get_config() -> ExperimentConfig`; `--config.FIELD=value` overrides.
The dataclasses stay unfrozen because the flags assign to their fields; each checks its own.
"""

from icl_jax.config.checks import (
    ConfigError as ConfigError,
)
from icl_jax.config.checks import (
    StageError as StageError,
)
from icl_jax.config.checks import (
    StoppedError as StoppedError,
)
from icl_jax.config.design import (
    CorpusConfig as CorpusConfig,
)
from icl_jax.config.design import (
    DesignConfig as DesignConfig,
)
from icl_jax.config.design import (
    EncoderConfig as EncoderConfig,
)
from icl_jax.config.design import (
    ExamplesConfig as ExamplesConfig,
)
from icl_jax.config.design import (
    SearchConfig as SearchConfig,
)
from icl_jax.config.design import (
    TokenizerConfig as TokenizerConfig,
)
from icl_jax.config.evaluation import (
    EvaluationConfig as EvaluationConfig,
)
from icl_jax.config.evaluation import (
    GlueConfig as GlueConfig,
)
from icl_jax.config.evaluation import (
    NeighbourGainConfig as NeighbourGainConfig,
)
from icl_jax.config.evaluation import (
    PerplexityConfig as PerplexityConfig,
)
from icl_jax.config.evaluation import (
    QuestionsConfig as QuestionsConfig,
)
from icl_jax.config.evaluation import (
    StsConfig as StsConfig,
)
from icl_jax.config.experiment import (
    BranchesConfig as BranchesConfig,
)
from icl_jax.config.experiment import (
    ExperimentConfig as ExperimentConfig,
)
from icl_jax.config.model import (
    GPTConfig as GPTConfig,
)
from icl_jax.config.model import (
    LinearAttentionConfig as LinearAttentionConfig,
)
from icl_jax.config.model import (
    ModelConfig as ModelConfig,
)
from icl_jax.config.model import (
    RobertaConfig as RobertaConfig,
)
from icl_jax.config.model import (
    TransformerConfig as TransformerConfig,
)
from icl_jax.config.model import (
    head_dim as head_dim,
)
from icl_jax.config.model import (
    mlp_dim as mlp_dim,
)
from icl_jax.config.training import (
    DataConfig as DataConfig,
)
from icl_jax.config.training import (
    MeshConfig as MeshConfig,
)
from icl_jax.config.training import (
    OptimizerConfig as OptimizerConfig,
)
from icl_jax.config.training import (
    TrainingConfig as TrainingConfig,
)
