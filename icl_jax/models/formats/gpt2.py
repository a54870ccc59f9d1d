"""GPT-2 as Hugging Face stores it."""

from collections.abc import Iterator
from typing import ClassVar

from icl_jax.config import GPTConfig, mlp_dim
from icl_jax.models.formats.format import Format, Tensor, dense, norm


class GPT2Format(Format):
    """`GPT2Model` and `GPT2LMHeadModel`."""

    model_type, prefix, head = "gpt2", "transformer.", "lm_head."
    activation = "activation_function", "gelu_new"
    required: ClassVar = {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    }
    unused: ClassVar = {
        ".attn.bias": "causal mask, a constant",
        ".attn.masked_bias": "causal mask, a constant",
    }

    def read_fields(self, fields: dict, tensor_names: set[str], common: dict) -> GPTConfig:
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

    def write_fields(self, config: GPTConfig) -> dict:
        end_of_text = 50256 if config.vocab_size == 50257 else None  # of the published vocabulary
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

    def tensors(self, config: GPTConfig) -> Iterator[Tensor]:
        vocab, width, inner = config.vocab_size, config.embed_dim, mlp_dim(config)
        yield Tensor("token_embedding.rows", "wte.weight", (vocab, width))
        yield Tensor("positions.table.rows", "wpe.weight", (config.context_length, width))
        layer = "h.{layer}."
        yield from norm("blocks.attention_norm", layer + "ln_1", width)
        for part, name in enumerate(("query", "key", "value")):
            ours, theirs = f"blocks.attention.{name}.", layer + "attn.c_attn."
            yield Tensor(ours + "kernel", theirs + "weight", (width, width), part=part)
            yield Tensor(ours + "bias", theirs + "bias", (width,), part=part)
        yield from dense("blocks.attention.out", layer + "attn.c_proj", width, width, False)
        yield from norm("blocks.mlp_norm", layer + "ln_2", width)
        yield from dense("blocks.mlp.up", layer + "mlp.c_fc", width, inner, False)
        yield from dense("blocks.mlp.down", layer + "mlp.c_proj", inner, width, False)
        yield from norm("final_norm", "ln_f", width)
        if not config.tie_head:
            yield Tensor("head.rows", "lm_head.weight", (vocab, width))

    def second_names(self, config: GPTConfig) -> dict[str, str]:
        return {"lm_head.weight": "wte.weight"} if config.tie_head else {}
