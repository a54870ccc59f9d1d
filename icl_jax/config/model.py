"""The networks: GPT, RoBERTa and BERT, LSTM, and the one that the theory analyses."""

import dataclasses
from typing import ClassVar

from icl_jax.config.checks import require_choice, require_positive, require_share

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")
POSITIONS = ("learned", "sinusoidal", "linear", "none", "alibi", "rotary")
REMAT_POLICIES = ("none", "dots", "full")
ATTENTIONS = ("auto", "plain", "splash")
NORMS = ("layer", "none")
SPLASH_HEAD_UNIT = 64  # heads of 64 and 128 were compiled
DTYPES = ("float32", "bfloat16")
# Under jax.enable_x64: of networks that theory analyses, and of those whose weights are set.
ANALYSED_DTYPES = (*DTYPES, "float64")
EMBEDDINGS = ("vocabulary", "convolution")


@dataclasses.dataclass(unsafe_hash=True)
class TransformerConfig:
    """What GPT and RoBERTa share. Hashable, because a model keeps a copy as static data."""

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
    tie_head: bool = True  # False: the output head has its own matrix
    init_stddev: float = 0.02  # of all weights at the start, but for those that say otherwise
    embedding_dropout: float = 0.1  # dropout acts only if a dropout key is given
    attention_dropout: float = 0.1
    residual_dropout: float = 0.1
    dtype: str = "float32"  # of matrix products; parameters, softmax, norms, logits stay float32
    scan_layers: bool = False  # True: one compiled block, parameters stacked over layers
    remat: str = "none"  # recompute in the backward pass: none, dots (keep matmuls), full
    # plain; splash: the TPU's kernel, without ALiBi or attention dropout; auto: splash where it is
    # possible and faster (on a TPU, rows of 1,024 tokens or more, attention_dropout 0).
    attention: str = "auto"

    dtypes: ClassVar[tuple[str, ...]] = DTYPES

    def problems(self) -> list[str]:
        found = _network_problems(self, self.dtypes)
        require_positive(found, self, "mlp_dim")
        require_choice(found, "activation", self.activation, ACTIVATIONS)
        if not 0 < self.norm_epsilon < 1:
            found.append(f"norm_epsilon must be between 0 and 1, got {self.norm_epsilon}")
        if not self.init_stddev > 0:
            found.append(f"init_stddev must be above 0, got {self.init_stddev}")
        for name in ("embedding_dropout", "attention_dropout", "residual_dropout"):
            if not 0 <= getattr(self, name) < 1:
                found.append(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")
        size = self.head_dim or self.embed_dim // max(self.num_heads, 1)
        if self.position == "rotary" and size % 2:
            found.append(f"rotary positions need an even head_dim, got {size}")
        require_choice(found, "attention", self.attention, ATTENTIONS)
        if self.attention == "splash" and (self.position == "alibi" or size % SPLASH_HEAD_UNIT):
            needed = f"no ALiBi and a head_dim of {SPLASH_HEAD_UNIT} or a multiple"
            got = f"position '{self.position}' and head_dim {size}"
            found.append(f"attention='splash' needs {needed}, got {got}; set attention='auto'")
        return found


@dataclasses.dataclass(unsafe_hash=True)
class GPTConfig(TransformerConfig):
    """A GPT-2 decoder: pre-norm, causal. The defaults are GPT-2 base."""

    norm: str = "layer"  # none: no normalisation anywhere, as in networks whose weights are set
    mlp_layers: int = 1  # hidden layers of the feed-forward layer, each mlp_dim wide
    gated: bool = False  # the feed-forward layer has a gate: its last hidden layer times x W + b

    dtypes: ClassVar[tuple[str, ...]] = ANALYSED_DTYPES

    def problems(self) -> list[str]:
        found = super().problems()
        require_choice(found, "norm", self.norm, NORMS)
        require_positive(found, self, "mlp_layers")
        return found


@dataclasses.dataclass(unsafe_hash=True)
class RobertaConfig(TransformerConfig):
    """A RoBERTa or BERT encoder: post-norm, bidirectional. The defaults are RoBERTa-base."""

    vocab_size: int = 50265
    context_length: int = 512
    activation: str = "gelu"
    token_types: int = 1  # rows of the token type embedding (RoBERTa 1, BERT 2)
    pad_token_id: int = 1  # its embedding starts at zero
    position_offset: int = 2  # position row of a group's first token; RoBERTa: pad_token_id + 1
    head_activation: str = "gelu"  # of the MLM head: gelu in RoBERTa, that of the layers in BERT
    mlm_head: bool = True  # False: an encoder without output head (hidden states only)
    pooler: bool = False  # BERT's tanh layer on the first token, kept so that export has it again

    def problems(self) -> list[str]:
        found = super().problems()
        require_choice(found, "head_activation", self.head_activation, ACTIVATIONS)
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
    kernel_size: int = 1  # convolution: raw input vectors per position (M / N)
    position: str = "none"  # none, or one added to the embedding: learned, sinusoidal, linear
    embedding_rank: int | None = None  # r
    position_rank: int | None = None
    tie_head: bool = True  # logits from the vocabulary matrix; must be False with a convolution
    dtype: str = "float32"  # or float64 under jax.enable_x64, as in `theory`
    scan_layers: bool = False
    remat: str = "none"

    def problems(self) -> list[str]:
        found = _network_problems(self, ANALYSED_DTYPES)
        require_choice(found, "embedding", self.embedding, EMBEDDINGS)
        require_positive(found, self, "input_dim", "kernel_size")
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


@dataclasses.dataclass(unsafe_hash=True)
class LSTMConfig:
    """A recurrent network, the peer of GPT in the sandboxes. Defaults: Liu 2024, 3.4.5."""

    vocab_size: int = 257
    num_layers: int = 1
    embed_dim: int = 64  # of the token embedding
    hidden_dim: int = 128
    residual_dropout: float = 0.0  # of the output of each layer; acts only if a key is given
    dtype: str = "float32"

    def problems(self) -> list[str]:
        found: list[str] = []
        require_positive(found, self, "vocab_size", "num_layers", "embed_dim", "hidden_dim")
        require_share(found, self, "residual_dropout", below=True)
        require_choice(found, "dtype", self.dtype, DTYPES)
        return found


ModelConfig = GPTConfig | RobertaConfig | LinearAttentionConfig | LSTMConfig


def _network_problems(config, dtypes: tuple[str, ...] = DTYPES) -> list[str]:
    found: list[str] = []
    require_positive(
        found, config, "vocab_size", "context_length", "num_layers", "embed_dim", "num_heads",
        "head_dim", "embedding_rank", "position_rank",
    )  # fmt: skip
    require_choice(found, "position", config.position, POSITIONS)
    require_choice(found, "dtype", config.dtype, dtypes)
    require_choice(found, "remat", config.remat, REMAT_POLICIES)
    if config.head_dim is None and config.num_heads > 0 and config.embed_dim % config.num_heads:
        found.append(
            f"embed_dim {config.embed_dim} is not a multiple of num_heads {config.num_heads}; "
            "set head_dim, or change one of the two"
        )
    if config.position_rank is not None and config.position != "learned":
        found.append(
            f"position_rank is for learned positions, but position is '{config.position}'; "
            "set position='learned' or remove position_rank"
        )
    return found


def head_dim(config: ModelConfig) -> int:
    """The size of one head."""
    return config.head_dim or config.embed_dim // config.num_heads


def mlp_dim(config: TransformerConfig) -> int:
    """The width inside the feed-forward layer."""
    return config.mlp_dim or 4 * config.embed_dim
