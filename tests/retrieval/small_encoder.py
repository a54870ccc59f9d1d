"""Tiny encoder folders with random weights, made without `transformers`."""

import json
from pathlib import Path

from flax import nnx
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from tokenizers.normalizers import Lowercase

from icl_jax.config import GPTConfig, RobertaConfig
from icl_jax.models import GPT, Roberta, huggingface

WORDS = (
    "who",
    "was",
    "born",
    "in",
    "kersk",
    "lives",
    "by",
    "the",
    "river",
    "mill",
    "old",
    "bridge",
)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WIDTH = 8


def make_bert_folder(folder: Path) -> Path:
    """A BERT with tokenizer.json, 23 positions."""
    config = RobertaConfig(
        vocab_size=len(SPECIAL) + len(WORDS), context_length=23, num_layers=2, embed_dim=WIDTH,
        num_heads=2, norm_epsilon=1e-12, token_types=2, pad_token_id=0, position_offset=0,
        mlm_head=False,
    )  # fmt: skip
    model = Roberta(config, rngs=nnx.Rngs(0))
    model.token_embedding.rows[...] = (
        20 * model.token_embedding.rows[...]
    )  # else all words look alike
    huggingface.save(model, folder)
    save_tokenizer(folder)
    return folder


def make_gpt_folder(folder: Path) -> Path:
    """A GPT-2 as `training.export` leaves it: without tokenizer."""
    config = GPTConfig(
        vocab_size=len(SPECIAL) + len(WORDS), context_length=23, num_layers=1, embed_dim=WIDTH,
        num_heads=2,
    )  # fmt: skip
    huggingface.save(GPT(config, rngs=nnx.Rngs(0)), folder)
    return folder


def save_tokenizer(folder: Path, special: bool = True) -> None:
    """Words are tokens; [CLS] and [SEP] around them if `special`."""
    vocabulary = {word: n for n, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))


def make_sentence_folder(folder: Path, pooling: dict, **settings) -> Path:
    """A sentence-transformers folder in the old layout: BERT, pooling, normalisation."""
    make_bert_folder(folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return folder
