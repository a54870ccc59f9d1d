"""Every config dataclass, and the checks that stop a wrong one before any work is done.

A file of `configs/` defines `get_config() -> ExperimentConfig`; `--config.FIELD=value` overrides.
The dataclasses stay unfrozen because the flags assign to their fields.
"""

import dataclasses
import types
import typing

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")
POSITIONS = ("learned", "sinusoidal", "linear", "none", "alibi", "rotary")
REMAT_POLICIES = ("none", "dots", "full")
DTYPES = ("float32", "bfloat16")
EMBEDDINGS = ("vocabulary", "convolution")


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
class ExperimentConfig:
    """All of one experiment."""

    seed: int = 0
    batch_size: int = 512  # rows of the global batch (Levine et al. 2022, appendix D)
    sequence_length: int = 256  # tokens of a row (the same)
    model: ModelConfig = dataclasses.field(default_factory=GPTConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)

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


def validate(config: object) -> None:
    """Raises one ConfigError that lists everything wrong with `config` and what is nested in it."""
    if not dataclasses.is_dataclass(config):
        raise ConfigError(f"expected a config of icl_jax.config, got {config!r}")
    found = _type_problems(config, "")
    if not found:  # the other checks compute with the values
        found = _nested_problems(config, "")
    if found:
        raise ConfigError("; ".join(found))


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


def _require_positive(found: list[str], config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value < 1:
            found.append(f"{name} must be at least 1, got {value}")


def _require_choice(found: list[str], name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        found.append(f"{name} must be one of {', '.join(choices)}, got '{value}'")


def _type_problems(config: object, prefix: str) -> list[str]:
    found = []
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        name, value, expected = prefix + field.name, getattr(config, field.name), hints[field.name]
        if not _is_of_type(value, expected):
            found.append(f"{name} must be {_type_name(expected)}, got {value!r}")
        elif dataclasses.is_dataclass(value):
            found += _type_problems(value, name + ".")
    return found


def _is_of_type(value: object, expected: object) -> bool:
    if typing.get_origin(expected) in (typing.Union, types.UnionType):
        return any(_is_of_type(value, option) for option in typing.get_args(expected))
    if expected is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, typing.get_origin(expected) or expected)


def _type_name(expected: object) -> str:
    options = typing.get_args(expected) or (expected,)
    return " or ".join("None" if o is types.NoneType else o.__name__ for o in options)


def _nested_problems(config: object, prefix: str) -> list[str]:
    found = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found += _nested_problems(value, f"{prefix}{field.name}.")
    if found:  # what spans several fields makes sense only once each part does
        return found
    return [prefix + problem for problem in config.problems()]
