"""RoBERTa and BERT as Hugging Face stores them: one architecture of ours, two of their types."""

from collections.abc import Iterator
from typing import ClassVar

from icl_jax.config import RobertaConfig, mlp_dim
from icl_jax.models.formats.format import Format, Tensor, dense, norm


class RobertaFormat(Format):
    """`RobertaModel` and `RobertaForMaskedLM`."""

    model_type, prefix, head = "roberta", "roberta.", "lm_head."
    activation = "hidden_act", "gelu"
    required: ClassVar = {
        "is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute",
    }  # fmt: skip
    unused: ClassVar = {
        "embeddings.position_ids": "0, 1, 2, ..., a constant",
        "embeddings.token_type_ids": "all 0, a constant",
        "cls.seq_relationship.weight": "next-sentence head, not used",
        "cls.seq_relationship.bias": "next-sentence head, not used",
    }
    class_name, default_pad = "Roberta", 1
    head_dense, head_norm = "dense", "layer_norm"

    def mismatch(self, config: RobertaConfig) -> str:
        if config.position_offset == self.offset(config.pad_token_id):
            return ""
        return (
            f"position_offset of a Hugging Face model must be 0 (BERT) or pad_token_id + 1 = "
            f"{config.pad_token_id + 1} (RoBERTa), got {config.position_offset}"
        )

    def offset(self, pad_token_id: int) -> int:
        """The position row of a group's first token."""
        return pad_token_id + 1

    def head_activation(self, activation: str) -> str:
        """That of the MLM head, of a model whose layers have `activation`."""
        return "gelu"

    def read_fields(self, fields: dict, tensor_names: set[str], common: dict) -> RobertaConfig:
        pad = fields.get("pad_token_id")
        pad = pad if pad is not None else self.default_pad
        offset = self.offset(pad)
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
            head_activation=self.head_activation(common["activation"]),
            mlm_head=any(name.startswith(self.head) for name in tensor_names),
            pooler=any("pooler.dense." in name for name in tensor_names),
            **common,
        )

    def write_fields(self, config: RobertaConfig) -> dict:
        if config.embedding_dropout != config.residual_dropout:
            raise ValueError(
                f"Hugging Face's {self.model_type} has one hidden_dropout_prob, got "
                f"embedding_dropout {config.embedding_dropout} and residual_dropout "
                f"{config.residual_dropout}"
            )
        head_activation = self.head_activation(config.activation)
        if config.mlm_head and config.head_activation != head_activation:
            raise ValueError(
                f"the MLM head of Hugging Face's {self.model_type} has activation "
                f"{head_activation}, got head_activation {config.head_activation}"
            )
        return {
            "architectures": [self.class_name + ("ForMaskedLM" if config.mlm_head else "Model")],
            "model_type": self.model_type,
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

    def tensors(self, config: RobertaConfig) -> Iterator[Tensor]:
        vocab, width, inner = config.vocab_size, config.embed_dim, mlp_dim(config)
        positions = config.context_length + config.position_offset
        for ours, name, rows in (
            ("token_embedding.rows", "word_embeddings", vocab),
            ("positions.table.rows", "position_embeddings", positions),
            ("token_types.rows", "token_type_embeddings", config.token_types),
        ):
            yield Tensor(ours, f"embeddings.{name}.weight", (rows, width))
        yield from norm("embedding_norm", "embeddings.LayerNorm", width)
        layer = "encoder.layer.{layer}."
        for name in ("query", "key", "value"):
            theirs = f"{layer}attention.self.{name}"
            yield from dense(f"blocks.attention.{name}", theirs, width, width)
        yield from dense("blocks.attention.out", layer + "attention.output.dense", width, width)
        yield from norm("blocks.attention_norm", layer + "attention.output.LayerNorm", width)
        yield from dense("blocks.mlp.up", layer + "intermediate.dense", width, inner)
        yield from dense("blocks.mlp.down", layer + "output.dense", inner, width)
        yield from norm("blocks.mlp_norm", layer + "output.LayerNorm", width)
        if config.pooler:
            yield from dense("pooler", "pooler.dense", width, width)
        if config.mlm_head:
            yield from self._head_tensors(config, vocab, width)

    def _head_tensors(self, config: RobertaConfig, vocab: int, width: int) -> Iterator[Tensor]:
        yield from dense("mlm_head.dense", self.head + self.head_dense, width, width)
        yield from norm("mlm_head.norm", self.head + self.head_norm, width)
        # Of an untied head, transformers adds the decoder's own bias and leaves the other unused.
        bias = "bias" if config.tie_head else "decoder.bias"
        yield Tensor("mlm_head.bias", self.head + bias, (vocab,))
        if not config.tie_head:
            yield Tensor("mlm_head.table.rows", self.head + "decoder.weight", (vocab, width))

    def second_names(self, config: RobertaConfig) -> dict[str, str]:
        if not config.tie_head:
            return {self.head + "bias": self.head + "decoder.bias"}
        return {
            self.head + "decoder.weight": "embeddings.word_embeddings.weight",
            self.head + "decoder.bias": self.head + "bias",
        }

    def written_twice(self, config: RobertaConfig) -> dict[str, str]:
        # The unused bias of an untied head.
        return self.second_names(config) if config.mlm_head and not config.tie_head else {}

    def stored_name(self, name: str, config: RobertaConfig) -> str:
        return super().stored_name(name, config) if config.mlm_head else name


class BertFormat(RobertaFormat):
    """`BertModel` and `BertForMaskedLM`."""

    model_type, prefix, head = "bert", "bert.", "cls.predictions."
    class_name, default_pad = "Bert", 0
    head_dense, head_norm = "transform.dense", "transform.LayerNorm"

    def offset(self, pad_token_id: int) -> int:
        return 0

    def head_activation(self, activation: str) -> str:
        return activation
