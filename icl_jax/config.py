"""Every config dataclass, and the checks that stop a wrong one before any work is done.

A file of `configs/` defines `get_config() -> ExperimentConfig`; `--config.FIELD=value` overrides.
The dataclasses stay unfrozen because the flags assign to their fields.
"""

import dataclasses
import itertools

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")
POSITIONS = ("learned", "sinusoidal", "linear", "none", "alibi", "rotary")
REMAT_POLICIES = ("none", "dots", "full")
DTYPES = ("float32", "bfloat16")
EMBEDDINGS = ("vocabulary", "convolution")
OBJECTIVES = ("next_token", "masked_token")
SCHEDULES = ("constant", "linear", "cosine")
STARTS = ("weights", "everything")


class ConfigError(ValueError):
    """A config that cannot work; the message names every wrong field, what it holds and the fix."""


class StageError(RuntimeError):
    """A stage that found what must not be; the run stops with this message."""


@dataclasses.dataclass(unsafe_hash=True)
class TransformerConfig:
    """What GPT and RoBERTa have in common. Hashable, for a model keeps a copy as static data."""

    vocab_size: int = 50257
    context_length: int = 1024  # most tokens of one group; learned positions have this many rows
    num_layers: int = 12
    embed_dim: int = 768
    num_heads: int = 12
    head_dim: int | None = None  # None: embed_dim / num_heads
    mlp_dim: int | None = None  # None: 4 * embed_dim
    activation: str = "gelu_new"  # gelu (exact), gelu_new (tanh form), relu, silu
    norm_epsilon: float = 1e-5
    position: str = "learned"  # learned, sinusoidal, linear, none, alibi, rotary
    embedding_rank: int | None = None  # r: token embedding factored V x r, r x D; None: full
    position_rank: int | None = None  # the same for learned positions
    tie_head: bool = True  # False: the output head has a matrix of its own
    embedding_dropout: float = 0.1  # dropout acts only where a dropout key is given
    attention_dropout: float = 0.1
    residual_dropout: float = 0.1
    dtype: str = "float32"  # of the matrix products; parameters, softmax, norms, logits: float32
    scan_layers: bool = False  # True: one compiled block, parameters stacked over layers
    remat: str = "none"  # recompute in the backward pass: none, dots (keep matmuls), full

    def problems(self) -> list[str]:
        return _transformer_problems(self)


@dataclasses.dataclass(unsafe_hash=True)
class GPTConfig(TransformerConfig):
    """A GPT-2 decoder: pre-norm, causal. The defaults are GPT-2 base."""


@dataclasses.dataclass(unsafe_hash=True)
class RobertaConfig(TransformerConfig):
    """A RoBERTa or BERT encoder: post-norm, bidirectional. The defaults are RoBERTa-base."""

    vocab_size: int = 50265
    context_length: int = 512
    activation: str = "gelu"
    token_types: int = 1  # rows of the token type embedding (RoBERTa 1, BERT 2)
    pad_token_id: int = 1  # its embedding starts at zero
    position_offset: int = 2  # position row of a group's first token; RoBERTa: pad_token_id + 1
    head_activation: str = "gelu"  # of the MLM head: RoBERTa's is gelu, BERT's that of the layers
    mlm_head: bool = True  # False: an encoder without output head (hidden states only)
    pooler: bool = False  # BERT's tanh layer on the first token, kept for the round trip

    def problems(self) -> list[str]:
        found = _transformer_problems(self)
        _require_choice(found, "head_activation", self.head_activation, ACTIVATIONS)
        if self.token_types < 1:
            found.append(f"token_types must be at least 1, got {self.token_types}")
        if self.position_offset < 0:
            found.append(f"position_offset must be at least 0, got {self.position_offset}")
        if not 0 <= self.pad_token_id < self.vocab_size:
            found.append(
                f"pad_token_id must be within the vocabulary of {self.vocab_size}, "
                f"got {self.pad_token_id}"
            )
        return found


@dataclasses.dataclass(unsafe_hash=True)
class LinearAttentionConfig:
    """The network the theory analyses (Levine et al. 2022, eq. 1-3; Wies et al. 2021, eq. 1-5)."""

    vocab_size: int = 257
    context_length: int = 64
    num_layers: int = 3
    embed_dim: int = 32
    num_heads: int = 2
    head_dim: int | None = None  # d_a; None: embed_dim / num_heads
    causal: bool = False
    residual: bool = False  # Levine et al. 2020, A.4
    embedding: str = "vocabulary"  # or convolution (Wies et al. 2021, eq. 2)
    input_dim: int = 1  # convolution: size of a raw input vector
    kernel_size: int = 1  # convolution: raw input vectors to a position (M / N)
    position: str = "none"  # none, learned, sinusoidal, linear: what can be added to an embedding
    embedding_rank: int | None = None  # r
    position_rank: int | None = None
    tie_head: bool = True  # logits from the vocabulary matrix; a convolution has none to tie to
    dtype: str = "float32"
    scan_layers: bool = False
    remat: str = "none"

    def problems(self) -> list[str]:
        found = _network_problems(self)
        _require_choice(found, "embedding", self.embedding, EMBEDDINGS)
        _require_positive(found, self, "input_dim", "kernel_size")
        if self.position in ("alibi", "rotary"):
            found.append(
                f"position '{self.position}' changes the attention scores of the analysed network; "
                "choose none, learned, sinusoidal or linear"
            )
        if self.embedding == "convolution" and self.tie_head:
            found.append(
                "a convolution embedding has no vocabulary matrix to tie the head to; "
                "set tie_head=False"
            )
        return found


ModelConfig = GPTConfig | RobertaConfig | LinearAttentionConfig


@dataclasses.dataclass
class MeshConfig:
    """Devices per mesh axis; one axis may be -1: all devices that the others leave."""

    data: int = -1  # copies of the parameters, each with its part of the batch
    fsdp: int = 1  # parameters and batch cut over these
    tensor: int = 1  # heads, feed-forward and vocabulary cut over these

    def problems(self) -> list[str]:
        sizes = dataclasses.asdict(self)
        found = [
            f"{axis} must be a number of devices or -1, got {size}"
            for axis, size in sizes.items()
            if size < 1 and size != -1
        ]
        if list(sizes.values()).count(-1) > 1:
            found.append(f"only one axis may be -1, got {sizes}")
        return found


@dataclasses.dataclass
class DataConfig:
    """Which records make up a batch. A source is a folder or a glob of TFRecord files."""

    sources: tuple[str, ...] = ()
    # (first step, weight of each source), from step 0 on. Regular examples until step 200,000, then
    # half and half in every batch: ((0, (1, 0)), (200_000, (1, 1))). Empty: equal weights.
    phases: tuple[tuple[int, tuple[float, ...]], ...] = ()
    pack: bool = False  # put several short records into one row; each keeps its own groups
    workers: int = 0  # processes that read ahead; 0: threads of the training process
    prefetch: int = 4  # batches read ahead (by each worker)

    def problems(self) -> list[str]:
        return _data_problems(self)


@dataclasses.dataclass
class OptimizerConfig:
    """AdamW and its learning rate. The defaults are those of kNN-Pretraining (appendix D)."""

    learning_rate: float = 6e-4  # the peak
    schedule: str = "cosine"  # after the warm-up: constant, linear or cosine down to `final_share`
    final_share: float = 0.0  # of the peak, at the last step
    warmup: float = 2000  # linear from 0; in steps, or in epochs where training.epochs is set
    b1: float = 0.9
    b2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1  # of matrices and embeddings; never of biases and norms
    clip_norm: float = 1.0  # largest norm of the whole gradient; 0: no clipping

    def problems(self) -> list[str]:
        return _optimizer_problems(self)


@dataclasses.dataclass
class TrainingConfig:
    """What the model learns, for how long, and what is kept."""

    objective: str = "next_token"  # or masked_token
    steps: int = 0  # either this many steps
    epochs: float = 0.0  # or this many passes over the only source
    accumulate: int = 1  # parts of a batch that run one after the other; the result is the same
    dropout: bool = True  # the rates are the model's
    ema_decay: float = 0.0  # moving average of the weights, kept beside them; 0: none
    mask_token_id: int = 50264  # masked_token: RoBERTa's <mask>
    special_token_ids: tuple[int, ...] = (0, 1, 2, 3, 50264)  # masked_token: these are never chosen
    mask_share: float = 0.15  # of the tokens are chosen; of those 80% masked, 10% random, 10% kept
    start_from: str = ""  # a Hugging Face folder, or the workdir of another run
    start_with: str = "weights"  # of another run: weights only, or everything (optimiser and step)
    checkpoint_every: int = 1000  # steps; the last step is always kept
    keep_last: int = 3  # checkpoints
    keep_every: int = 0  # steps: a checkpoint at a multiple of this is kept for good; 0: none
    log_every: int = 10  # steps between two lines of metrics.jsonl

    def problems(self) -> list[str]:
        return _training_problems(self)


@dataclasses.dataclass
class ExperimentConfig:
    """All of one experiment."""

    seed: int = 0
    batch_size: int = 512  # rows of the global batch (Levine et al. 2022, appendix D)
    sequence_length: int = 256  # tokens of a row (the same)
    model: ModelConfig = dataclasses.field(default_factory=GPTConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)

    def problems(self) -> list[str]:
        found = []
        _require_positive(found, self, "batch_size", "sequence_length")
        if self.seed < 0:
            found.append(f"seed must be at least 0, got {self.seed}")
        if self.sequence_length > self.model.context_length:
            found.append(
                f"sequence_length {self.sequence_length} is longer than "
                f"model.context_length {self.model.context_length}; change one of them"
            )
        return found


def head_dim(config: ModelConfig) -> int:
    """The size of one head."""
    return config.head_dim or config.embed_dim // config.num_heads


def mlp_dim(config: TransformerConfig) -> int:
    """The width inside the feed-forward layer."""
    return config.mlp_dim or 4 * config.embed_dim


def _network_problems(config: ModelConfig) -> list[str]:
    found: list[str] = []
    _require_positive(
        found, config, "vocab_size", "context_length", "num_layers", "embed_dim", "num_heads",
        "head_dim", "embedding_rank", "position_rank",
    )  # fmt: skip
    _require_choice(found, "position", config.position, POSITIONS)
    _require_choice(found, "dtype", config.dtype, DTYPES)
    _require_choice(found, "remat", config.remat, REMAT_POLICIES)
    if config.head_dim is None and config.num_heads > 0 and config.embed_dim % config.num_heads:
        found.append(
            f"embed_dim {config.embed_dim} is not a multiple of num_heads {config.num_heads}; "
            "set head_dim, or change one of the two"
        )
    if config.position_rank is not None and config.position != "learned":
        found.append(
            f"position_rank is for learned positions, but position is '{config.position}'; "
            "set position='learned' or leave position_rank out"
        )
    return found


def _transformer_problems(config: TransformerConfig) -> list[str]:
    found = _network_problems(config)
    _require_positive(found, config, "mlp_dim")
    _require_choice(found, "activation", config.activation, ACTIVATIONS)
    if not 0 < config.norm_epsilon < 1:
        found.append(f"norm_epsilon must be between 0 and 1, got {config.norm_epsilon}")
    for name in ("embedding_dropout", "attention_dropout", "residual_dropout"):
        if not 0 <= getattr(config, name) < 1:
            found.append(f"{name} must be at least 0 and below 1, got {getattr(config, name)}")
    if config.position == "rotary" and config.num_heads > 0 and head_dim(config) % 2:
        found.append(f"rotary positions need an even head_dim, got {head_dim(config)}")
    return found


def _data_problems(config: DataConfig) -> list[str]:
    found: list[str] = []
    _require_positive(found, config, "prefetch")
    if config.workers < 0:
        found.append(f"workers must be at least 0, got {config.workers}")
    firsts = [first for first, _ in config.phases]
    if firsts and (firsts[0] != 0 or any(a >= b for a, b in itertools.pairwise(firsts))):
        found.append(f"the first steps of phases must rise from 0, got {firsts}")
    for first, weights in config.phases:
        if len(weights) != len(config.sources):
            found.append(
                f"the phase from step {first} has {len(weights)} weights for "
                f"{len(config.sources)} sources"
            )
        elif not all(0 <= weight < float("inf") for weight in weights) or sum(weights) <= 0:
            found.append(
                f"the weights from step {first} must be at least 0, and one above, got {weights}"
            )
    return found


def _optimizer_problems(config: OptimizerConfig) -> list[str]:
    found: list[str] = []
    _require_choice(found, "schedule", config.schedule, SCHEDULES)
    _require_share(found, config, "b1", "b2", "epsilon", below=True)
    _require_share(found, config, "final_share")
    for name in ("learning_rate", "warmup", "weight_decay", "clip_norm"):
        value = getattr(config, name)
        if not 0 <= value < float("inf"):
            found.append(f"{name} must be a number of at least 0, got {value}")
    return found


def _training_problems(config: TrainingConfig) -> list[str]:
    found: list[str] = []
    _require_choice(found, "objective", config.objective, OBJECTIVES)
    _require_choice(found, "start_with", config.start_with, STARTS)
    _require_positive(found, config, "accumulate", "checkpoint_every", "keep_last", "log_every")
    _require_share(found, config, "ema_decay", "mask_share", below=True)
    for name in ("steps", "epochs", "keep_every"):
        if not 0 <= getattr(config, name) < float("inf"):
            found.append(f"{name} must be at least 0, got {getattr(config, name)}")
    if config.checkpoint_every > 0 and config.keep_every % config.checkpoint_every:
        found.append(
            f"keep_every {config.keep_every} is not a multiple of checkpoint_every "
            f"{config.checkpoint_every}, so no checkpoint would be kept for good"
        )
    if config.steps and config.epochs:
        found.append(f"set steps or epochs, got {config.steps} steps and {config.epochs} epochs")
    return found


def _require_share(found: list[str], config: object, *names: str, below: bool = False) -> None:
    for name in names:
        value = getattr(config, name)
        if not 0 <= value <= 1 or (below and value == 1):
            found.append(f"{name} must be from 0 to 1{' but below' * below}, got {value}")


def _require_positive(found: list[str], config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value < 1:
            found.append(f"{name} must be at least 1, got {value}")


def _require_choice(found: list[str], name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        found.append(f"{name} must be one of {', '.join(choices)}, got '{value}'")
