"""Reads an encoder folder: its network, tokenizer, pooling and the layers after.

It may be a sentence-transformers folder of any age (modules.json), or a plain model folder, whose
vector is the mean over the tokens of the last layer, including special tokens that the tokenizer
adds.
"""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import safetensors.numpy
from tokenizers import Tokenizer, normalizers

from icl_jax.config import ConfigError, EncoderConfig
from icl_jax.files import mirror
from icl_jax.files.remote import check_files_in
from icl_jax.models import huggingface
from icl_jax.models.huggingface import FolderError, read_json
from icl_jax.retrieval.encoders.sentence_recipe import (
    ACTIVATIONS,
    POOLINGS,
    DenseLayer,
    SentenceRecipe,
)

_OLD_POOLINGS = {  # in the order in which they are joined
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclasses.dataclass
class EncoderFolder:
    """A recipe and the folder of its network."""

    network: Path
    kind: str
    recipe: SentenceRecipe

    def identity(self) -> dict:
        """Identifies the encoder: another one that gives other vectors has another identity."""
        digest = self.recipe.digest()
        for file in sorted([self.network / "config.json", *self.network.glob("*.safetensors")]):
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        names = ("pooling", "after", "prompt", "max_tokens")
        said = {name: value for name, value in self.recipe.identity().items() if name in names}
        return {"kind": self.kind, "checksum": digest.hexdigest(), **said}


def read_encoder_folder(config: EncoderConfig) -> EncoderFolder:
    """Reads all that is small; stops on anything that cannot be run."""
    folder = mirror.fetched(config.folder)
    check_files_in(folder)
    if not (folder / "modules.json").exists():
        return _read_network(folder, "model folder", config, {})
    modules = _read_modules(folder)
    network = huggingface.network_of(folder)
    settings = {}
    for name in sorted(network.glob("sentence_*_config.json")):  # old ones: sentence_roberta_...
        settings = read_json(name)
    encoder = _read_network(network, "sentence-transformers", config, settings)
    recipe = encoder.recipe
    recipe.poolings = _read_pooling(folder / modules[1][1] / "config.json")
    recipe.after = tuple(_read_layer(kind, folder / path) for kind, path in modules[2:])
    recipe.prompt = _read_prompt(folder, modules[1][1])
    return encoder


def _read_modules(folder: Path) -> list[tuple[str, str]]:
    """(kind, subfolder) of each module, in the order that we can run."""
    entries = read_json(folder / "modules.json", list)
    modules = [(str(e.get("type")).rsplit(".", 1)[-1], e.get("path", "")) for e in entries]
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Dense", "Normalize"}:
        raise ConfigError(
            f"encoder.folder {folder} has the modules {', '.join(kinds)}; supported are "
            "Transformer, Pooling, and then any of Dense and Normalize"
        )
    return modules


def _read_network(folder: Path, kind: str, config: EncoderConfig, settings: dict) -> EncoderFolder:
    model = huggingface.read_config(folder)  # weights are there and no pickle
    file = folder / "tokenizer.json"
    if not file.exists():
        raise FolderError(
            f"{folder} has no tokenizer.json; copy the tokenizer's files there (of a model trained "
            "here, icl_jax.training.export writes them), or where there are only vocabulary files "
            "write one with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained("
            "FOLDER)"
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more special
        raise FolderError(f"{file} is not a readable tokenizer ({error})") from None
    if settings.get("do_lower_case"):
        lower = [normalizers.Lowercase(), *filter(None, [tokenizer.normalizer])]
        tokenizer.normalizer = normalizers.Sequence(lower)
    max_tokens = _max_tokens(folder, config, settings, model.context_length)
    added = tokenizer.num_special_tokens_to_add(is_pair=False)
    if max_tokens <= added:
        raise ConfigError(
            f"encoder.max_tokens must leave room for text beside the {added} special tokens that "
            f"the tokenizer of {folder} adds, got {max_tokens}"
        )
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return EncoderFolder(folder, kind, SentenceRecipe(tokenizer, max_tokens))


def _max_tokens(folder: Path, config: EncoderConfig, settings: dict, limit: int) -> int:
    """The user's choice, else what the folder says, else the positions of the network."""
    if config.max_tokens > limit:
        raise ConfigError(
            f"encoder.max_tokens is {config.max_tokens}, but the network in {folder} has only "
            f"{limit} positions; choose at most as many, or 0 for what the folder says"
        )
    said = settings.get("max_seq_length")
    file = folder / "tokenizer_config.json"
    if said is None and file.exists():
        said = read_json(file).get("model_max_length")
    return config.max_tokens or min(int(said or limit), limit)


def _read_pooling(file: Path) -> tuple[str, ...]:
    fields = read_json(file)
    named = fields.get("pooling_mode")
    if named is None:
        named = [mode for field, mode in _OLD_POOLINGS.items() if fields.get(field)] or "mean"
    modes = (named,) if isinstance(named, str) else tuple(named)
    unknown = [mode for mode in modes if mode not in POOLINGS]
    if unknown:
        raise ConfigError(f"{file}: pooling '{unknown[0]}'; supported are {', '.join(POOLINGS)}")
    return modes


def _read_layer(kind: str, folder: Path) -> DenseLayer | str:
    if kind == "Normalize":
        return "normalize"
    check_files_in(folder)
    fields = read_json(folder / "config.json")
    activation = fields.get("activation_function", "Tanh").rsplit(".", 1)[-1]
    if activation not in ACTIVATIONS or fields.get("use_residual"):
        residual = " with a residual" if fields.get("use_residual") else ""
        raise ConfigError(
            f"{folder}: Dense module with {activation}{residual}; supported are "
            f"{', '.join(ACTIVATIONS)}, no residual"
        )
    file = folder / "model.safetensors"
    if not file.exists():
        raise FolderError(
            f"{folder} has no model.safetensors; pickled weights (pytorch_model.bin) can run any "
            "code and are refused: load and save the folder once with sentence-transformers"
        )
    tensors = safetensors.numpy.load_file(file)
    kernel = tensors["linear.weight"].T.astype(np.float32)
    bias = tensors.get("linear.bias")
    return DenseLayer(kernel, None if bias is None else bias.astype(np.float32), activation)


def _read_prompt(folder: Path, pooling: str) -> str:
    """The text that the folder puts before every sentence by default."""
    file = folder / "config_sentence_transformers.json"
    fields = read_json(file) if file.exists() else {}
    prompt = (fields.get("prompts") or {}).get(fields.get("default_prompt_name"), "")
    if prompt and not read_json(folder / pooling / "config.json").get("include_prompt", True):
        raise ConfigError(f"{file}: a prompt that is excluded from pooling is not supported")
    return prompt
