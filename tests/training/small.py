"""Experiments small enough to train in a test."""

import dataclasses

from etils import epath
import jax
import numpy as np

from icl_jax.config import (
    DataConfig,
    ExperimentConfig,
    GPTConfig,
    MeshConfig,
    OptimizerConfig,
    RobertaConfig,
    TrainingConfig,
)
from icl_jax.data.tfrecord import encode_example, write_records
from icl_jax.sharding import make_mesh

SIZES = {
    "vocab_size": 61, "context_length": 16, "num_layers": 1, "embed_dim": 16, "num_heads": 2,
}  # fmt: skip
GPT = GPTConfig(**SIZES)
ROBERTA = RobertaConfig(**SIZES)


def experiment(folder=None, *, model=GPT, mesh=(2, 2, 2), data=None, optimizer=None, **training):
    """8 x 16 tokens for 6 steps on the records of `folder`, or on a synthetic source."""
    source = "synthetic:30" if folder is None else str(folder)
    masked = isinstance(model, RobertaConfig)
    training = {
        "objective": "masked_token" if masked else "next_token",
        "mask_token_id": 4,
        "special_token_ids": (0, 1, 2, 3, 4),
        "steps": 6,
        "checkpoint_every": 2,
        "log_every": 1,
    } | training
    return ExperimentConfig(
        batch_size=8,
        sequence_length=16,
        model=dataclasses.replace(model),
        mesh=MeshConfig(*mesh),
        data=DataConfig(**{"sources": (source,)} | (data or {})),
        optimizer=OptimizerConfig(**{"learning_rate": 1e-2, "warmup": 3} | (optimizer or {})),
        training=TrainingConfig(**training),
    )


def write_source(folder, rows, **features):
    """One shard with a record per row of token ids; `features` hold one value list per row."""
    folder = epath.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    examples = (
        encode_example({"tokens": row} | {name: values[n] for name, values in features.items()})
        for n, row in enumerate(rows)
    )
    write_records(folder / "part.tfrecord-00000-of-00001", examples)
    return folder


def random_batch(rows=8, length=16, seed=0):
    """Rows of two groups and some padding."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(5, 61, (rows, length)).astype(np.int32)
    group = np.repeat([[1] * 7 + [2] * (length - 10) + [0] * 3], rows, axis=0).astype(np.int32)
    group[::3] = 1
    return {"tokens": tokens, "group": group}


def one_device():
    return make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
