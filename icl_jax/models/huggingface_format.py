"""How Hugging Face writes a model down: fields of config.json, names and layouts of tensors."""

from collections.abc import Iterator
import dataclasses

from icl_jax.config import GPTConfig, RobertaConfig, head_dim, mlp_dim

MODEL_TYPES = ("gpt2", "roberta", "bert")
PREFIXES = {"gpt2": "transformer.", "roberta": "roberta.", "bert": "bert."}
HEADS = {"gpt2": "lm_head.", "roberta": "lm_head.", "bert": "cls.predictions."}

# Tensors that some folders hold and the model does not need, with the reason to leave them out.
LEFT_OUT = {
    ".attn.bias": "causal mask, a constant",
    ".attn.masked_bias": "causal mask, a constant",
    "embeddings.position_ids": "0, 1, 2, ..., a constant",
    "embeddings.token_type_ids": "all 0, a constant",
    "cls.seq_relationship.weight": "next-sentence head, not used",
    "cls.seq_relationship.bias": "next-sentence head, not used",
}

_ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "relu": "relu",
    "silu": "silu", "swish": "silu",
}  # fmt: skip

# Settings that would change the function: field -> the value that we implement.
_REQUIRED = {
    "gpt2": {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    "roberta": {
        "is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute",
    },
}  # fmt: skip
_REQUIRED["bert"] = _REQUIRED["roberta"]

# What only our models can be, so that no folder can hold it: field -> the value of theirs.
_OURS_ONLY = {"position": "learned", "embedding_rank": None, "position_rank": None}


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One of our parameters and where it lies in a folder: `part` of three in a fused tensor."""

    ours: str  # path in the model, "blocks.attention.query.kernel"; without the layer's number
    theirs: str  # name without the prefix, "{layer}" where the layer's number goes
    shape: tuple[int, ...]  # as they lay it out; of this part alone
    transposed: bool = False
    part: int | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor in the folder."""
        return self.shape if self.part is None else (*self.shape[:-1], 3 * self.shape[-1])


def read_config(fields: dict, tensor_names: set[str]) -> GPTConfig | RobertaConfig:
    """Our config for the fields of a config.json; the tensors tell which heads are there."""
    kind = fields["model_type"]
    for name, value in _REQUIRED[kind].items():
        if fields.get(name, value) != value:
            raise ValueError(f"{kind} with {name}={fields[name]} is not supported, only {value}")
    field, default = (
        ("activation_function", "gelu_new") if kind == "gpt2" else ("hidden_act", "gelu")
    )
    activation = fields.get(field, default)
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"activation '{activation}' is not supported; expected one of {', '.join(_ACTIVATIONS)}"
        )
    tied = fields.get("tie_word_embeddings", True)
    read = _read_gpt if kind == "gpt2" else _read_encoder
    try:
        return read(fields, tensor_names, activation=_ACTIVATIONS[activation], tie_head=tied)
    except KeyError as missing:
        raise ValueError(f"config.json of a {kind} model must have the field {missing}") from None


def _read_gpt(fields: dict, tensor_names: set[str], **common) -> GPTConfig:
    # A GPT2Model is stored without any head; of a GPT2LMHeadModel an untied one must be there.
    architectures = fields.get("architectures") or []
    if "lm_head.weight" not in tensor_names and "GPT2LMHeadModel" not in architectures:
        common["tie_head"] = True
    return GPTConfig(
        vocab_size=fields["vocab_size"],
        context_length=fields["n_positions"],
        num_layers=fields["n_layer"],
        embed_dim=fields["n_embd"],
        num_heads=fields["n_head"],
        mlp_dim=fields.get("n_inner"),
        norm_epsilon=fields.get("layer_norm_epsilon", 1e-5),
        embedding_dropout=fields.get("embd_pdrop", 0.1),
        attention_dropout=fields.get("attn_pdrop", 0.1),
        residual_dropout=fields.get("resid_pdrop", 0.1),
        **common,
    )


def _read_encoder(fields: dict, tensor_names: set[str], **common) -> RobertaConfig:
    kind = fields["model_type"]
    pad = fields.get("pad_token_id")
    pad = pad if pad is not None else {"roberta": 1, "bert": 0}[kind]
    offset = pad + 1 if kind == "roberta" else 0
    return RobertaConfig(
        vocab_size=fields["vocab_size"],
        context_length=fields["max_position_embeddings"] - offset,
        num_layers=fields["num_hidden_layers"],
        embed_dim=fields["hidden_size"],
        num_heads=fields["num_attention_heads"],
        mlp_dim=fields["intermediate_size"],
        norm_epsilon=fields.get("layer_norm_eps", 1e-12),
        embedding_dropout=fields.get("hidden_dropout_prob", 0.1),
        attention_dropout=fields.get("attention_probs_dropout_prob", 0.1),
        residual_dropout=fields.get("hidden_dropout_prob", 0.1),
        token_types=fields.get("type_vocab_size", 2),
        pad_token_id=pad,
        position_offset=offset,
        head_activation="gelu" if kind == "roberta" else common["activation"],
        mlm_head=any(name.startswith(HEADS[kind]) for name in tensor_names),
        pooler=any("pooler.dense." in name for name in tensor_names),
        **common,
    )


def write_config(config: GPTConfig | RobertaConfig) -> dict:
    """The config.json fields of our config; stops on what they cannot express."""
    kind = model_type(config)
    ours_only = [
        f"{name}={getattr(config, name)} (theirs: {value})"
        for name, value in _OURS_ONLY.items()
        if getattr(config, name) != value
    ]
    if config.num_heads * head_dim(config) != config.embed_dim:
        ours_only.append(
            f"num_heads x head_dim = {config.num_heads} x {head_dim(config)} "
            f"(theirs: embed_dim {config.embed_dim})"
        )
    if ours_only:
        raise ValueError(f"Hugging Face's format cannot hold {'; '.join(ours_only)}")
    return _write_gpt(config) if kind == "gpt2" else _write_encoder(config, kind)


def _write_gpt(config: GPTConfig) -> dict:
    end_of_text = (
        50256 if config.vocab_size == 50257 else None
    )  # known for the published vocabulary
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.context_length,
        "n_layer": config.num_layers,
        "n_embd": config.embed_dim,
        "n_head": config.num_heads,
        "n_inner": config.mlp_dim,
        "activation_function": config.activation,
        "layer_norm_epsilon": config.norm_epsilon,
        "embd_pdrop": config.embedding_dropout,
        "attn_pdrop": config.attention_dropout,
        "resid_pdrop": config.residual_dropout,
        "tie_word_embeddings": config.tie_head,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "dtype": "float32",
    }


def _write_encoder(config: RobertaConfig, kind: str) -> dict:
    if config.embedding_dropout != config.residual_dropout:
        raise ValueError(
            f"Hugging Face's {kind} has one hidden_dropout_prob, got embedding_dropout "
            f"{config.embedding_dropout} and residual_dropout {config.residual_dropout}"
        )
    head_activation = "gelu" if kind == "roberta" else config.activation
    if config.mlm_head and config.head_activation != head_activation:
        raise ValueError(
            f"the MLM head of Hugging Face's {kind} has activation {head_activation}, "
            f"got head_activation {config.head_activation}"
        )
    name = {"roberta": "Roberta", "bert": "Bert"}[kind]
    return {
        "architectures": [name + ("ForMaskedLM" if config.mlm_head else "Model")],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length + config.position_offset,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.embed_dim,
        "num_attention_heads": config.num_heads,
        "intermediate_size": mlp_dim(config),
        "hidden_act": config.activation,
        "layer_norm_eps": config.norm_epsilon,
        "hidden_dropout_prob": config.residual_dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "type_vocab_size": config.token_types,
        "pad_token_id": config.pad_token_id,
        "tie_word_embeddings": config.tie_head,
        "dtype": "float32",
    }


def model_type(config: GPTConfig | RobertaConfig) -> str:
    """gpt2, roberta or bert."""
    if isinstance(config, GPTConfig):
        return "gpt2"
    if not isinstance(config, RobertaConfig):
        raise ValueError(f"Hugging Face has no model for a {type(config).__name__}")
    if config.position_offset == config.pad_token_id + 1:
        return "roberta"
    if config.position_offset == 0:
        return "bert"
    raise ValueError(
        f"position_offset of a Hugging Face model must be 0 (BERT) or pad_token_id + 1 = "
        f"{config.pad_token_id + 1} (RoBERTa), got {config.position_offset}"
    )


def tensors(config: GPTConfig | RobertaConfig) -> Iterator[Tensor]:
    """Every tensor of a folder, in the order in which it is written."""
    return _gpt_tensors(config) if isinstance(config, GPTConfig) else _encoder_tensors(config)


def _gpt_tensors(config: GPTConfig) -> Iterator[Tensor]:
    vocab, width, inner = config.vocab_size, config.embed_dim, mlp_dim(config)
    yield Tensor("token_embedding.rows", "wte.weight", (vocab, width))
    yield Tensor("positions.table.rows", "wpe.weight", (config.context_length, width))
    layer = "h.{layer}."
    yield from _norm("blocks.attention_norm", layer + "ln_1", width)
    for part, name in enumerate(("query", "key", "value")):
        ours, theirs = f"blocks.attention.{name}.", layer + "attn.c_attn."
        yield Tensor(ours + "kernel", theirs + "weight", (width, width), part=part)
        yield Tensor(ours + "bias", theirs + "bias", (width,), part=part)
    yield from _dense("blocks.attention.out", layer + "attn.c_proj", width, width, False)
    yield from _norm("blocks.mlp_norm", layer + "ln_2", width)
    yield from _dense("blocks.mlp.up", layer + "mlp.c_fc", width, inner, False)
    yield from _dense("blocks.mlp.down", layer + "mlp.c_proj", inner, width, False)
    yield from _norm("final_norm", "ln_f", width)
    if not config.tie_head:
        yield Tensor("head.rows", "lm_head.weight", (vocab, width))


def _encoder_tensors(config: RobertaConfig) -> Iterator[Tensor]:
    vocab, width, inner = config.vocab_size, config.embed_dim, mlp_dim(config)
    positions = config.context_length + config.position_offset
    yield Tensor("token_embedding.rows", "embeddings.word_embeddings.weight", (vocab, width))
    yield Tensor(
        "positions.table.rows", "embeddings.position_embeddings.weight", (positions, width)
    )
    types = (config.token_types, width)
    yield Tensor("token_types.rows", "embeddings.token_type_embeddings.weight", types)
    yield from _norm("embedding_norm", "embeddings.LayerNorm", width)
    layer = "encoder.layer.{layer}."
    for name in ("query", "key", "value"):
        theirs = f"{layer}attention.self.{name}"
        yield from _dense(f"blocks.attention.{name}", theirs, width, width)
    yield from _dense("blocks.attention.out", layer + "attention.output.dense", width, width)
    yield from _norm("blocks.attention_norm", layer + "attention.output.LayerNorm", width)
    yield from _dense("blocks.mlp.up", layer + "intermediate.dense", width, inner)
    yield from _dense("blocks.mlp.down", layer + "output.dense", inner, width)
    yield from _norm("blocks.mlp_norm", layer + "output.LayerNorm", width)
    if config.pooler:
        yield from _dense("pooler", "pooler.dense", width, width)
    if config.mlm_head:
        yield from _head_tensors(config, vocab, width)


def _head_tensors(config: RobertaConfig, vocab: int, width: int) -> Iterator[Tensor]:
    head = HEADS[model_type(config)]
    bert = head == HEADS["bert"]
    yield from _dense(
        "mlm_head.dense", head + ("transform.dense" if bert else "dense"), width, width
    )
    yield from _norm(
        "mlm_head.norm", head + ("transform.LayerNorm" if bert else "layer_norm"), width
    )
    # Of an untied head, transformers adds the decoder's own bias and leaves the other unused.
    bias = "bias" if config.tie_head else "decoder.bias"
    yield Tensor("mlm_head.bias", head + bias, (vocab,))
    if not config.tie_head:
        yield Tensor("mlm_head.table.rows", head + "decoder.weight", (vocab, width))


def second_names(config: GPTConfig | RobertaConfig) -> dict[str, str]:
    """Names under which a folder may hold a tensor again: second name -> first."""
    kind = model_type(config)
    head = HEADS[kind]
    if kind == "gpt2":
        return {"lm_head.weight": "wte.weight"} if config.tie_head else {}
    if not config.tie_head:
        return {head + "bias": head + "decoder.bias"}
    return {
        head + "decoder.weight": "embeddings.word_embeddings.weight",
        head + "decoder.bias": head + "bias",
    }


def _norm(ours: str, theirs: str, width: int) -> Iterator[Tensor]:
    yield Tensor(ours + ".scale", theirs + ".weight", (width,))
    yield Tensor(ours + ".bias", theirs + ".bias", (width,))


def _dense(ours: str, theirs: str, inputs: int, outputs: int, transposed=True) -> Iterator[Tensor]:
    shape = (
        (outputs, inputs) if transposed else (inputs, outputs)
    )  # torch Linear, or GPT-2's Conv1D
    yield Tensor(ours + ".kernel", theirs + ".weight", shape, transposed=transposed)
    yield Tensor(ours + ".bias", theirs + ".bias", (outputs,))
