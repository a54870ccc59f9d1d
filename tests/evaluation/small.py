"""Tiny models with their tokenizer, as folders, made without `transformers`."""

from pathlib import Path
from types import SimpleNamespace

from etils import epath
from flax import nnx
import jax
import jax.numpy as jnp

from icl_jax.config import (
    EvaluationConfig,
    ExperimentConfig,
    GPTConfig,
    MeshConfig,
    RobertaConfig,
)
from icl_jax.corpus import train_tokenizer
from icl_jax.models import huggingface
from icl_jax.sharding import make_mesh
from icl_jax.training import checkpoint
from icl_jax.training.model_at import ModelAt, model_at
from icl_jax.training.train_state import TrainState
from tests.models.small import make_model

TEXT = (
    "Who was born in Kersk? Ada lives by the river. The old mill stands at the bridge. Yes, no, "
    "maybe. Q: When did the ferry sink? A: In 1903, they say. One two three four five six seven. "
)
SIZES = {"vocab_size": 300, "context_length": 64, "num_layers": 2, "embed_dim": 16, "num_heads": 2}


def gpt_folder(folder: Path, **fields) -> Path:
    """A random GPT-2 with a trained BPE of 300 tokens, as the design and train stages leave it."""
    return _save(GPTConfig(**{**SIZES, **fields}), folder)


def roberta_folder(folder: Path, **fields) -> Path:
    """The same of a RoBERTa with an MLM head."""
    return _save(
        RobertaConfig(**{**SIZES, "pad_token_id": 2, "position_offset": 3, **fields}), folder
    )


def model_folders(root: Path) -> dict[str, Path]:
    """One of each kind."""
    return {"GPT": gpt_folder(root / "gpt"), "RoBERTa": roberta_folder(root / "roberta")}


def run_folder(workdir: Path, config: ExperimentConfig, step: int = 2) -> Path:
    """What a run of ours leaves after `step` steps, untrained: a checkpoint and a tokenizer."""
    model = make_model(config.model, seed=1)
    params = nnx.as_pure(nnx.state(model))
    mean = jax.tree.map(lambda x: x / 2, params) if config.training.ema_decay else None
    state = TrainState(jnp.int32(step), params, {"none": jnp.zeros(1)}, mean)
    with checkpoint.open_checkpoints(epath.Path(workdir), config.training) as checkpoints:
        checkpoint.save(checkpoints, config, state, SimpleNamespace(get_state=dict))
    _tokenizer().save(workdir / "design" / "tokenizer")
    return workdir


def _save(config, folder: Path) -> Path:
    huggingface.save(make_model(config), folder)
    _tokenizer().save(folder)
    return folder


def _tokenizer():
    return train_tokenizer.train([TEXT, TEXT.lower(), TEXT.upper()], SIZES["vocab_size"])


def subject_of(folder: Path) -> ModelAt:
    return model_at(str(folder))


def evaluation(**fields) -> EvaluationConfig:
    return EvaluationConfig(**{"resamples": 200, "batch_size": 4, **fields})


def mesh_of(data: int = 1, fsdp: int = 1, tensor: int = 1):
    count = data * fsdp * tensor
    return make_mesh(MeshConfig(data, fsdp, tensor), jax.devices()[:count])
