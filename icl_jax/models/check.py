"""The stage `check`: does this model work on these devices? Run it before a long job.

It creates the model on its mesh, tests that its hidden states keep their contracts, and times them.
"""

import dataclasses
import json
import time

from etils import epath
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import (
    ConfigError,
    ExperimentConfig,
    LinearAttentionConfig,
    MeshConfig,
    StageError,
)
from icl_jax.config.tree import validate
from icl_jax.models import create
from icl_jax.models.summary import parameter_table
from icl_jax.sharding import make_mesh, use_mesh_of

ROWS = 8  # per part of the batch: enough for the tests, and fits where a training batch does not
ROUNDS = 5
TOLERANCE = 1e-4  # of the largest hidden state, float32; bfloat16 rounds to 3 digits


def check(config: ExperimentConfig, workdir: epath.Path) -> dict:
    """Prints the parameter table and the results; writes `check.json`; raises on a failure."""
    validate(config)
    mesh = make_mesh(config.mesh)
    tokens, group = _random_rows(config, rows=ROWS * mesh.shape["data"] * mesh.shape["fsdp"])
    kind = jax.devices()[0].device_kind
    shape = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    print(f"{mesh.size} device(s) of kind {kind}, mesh {shape}\n")
    print(parameter_table(config.model, mesh), "\n")
    model = create(config.model, config.seed, mesh)
    results = {
        "device_kind": kind,
        "mesh": dict(mesh.shape),
        "rows_x_tokens": list(group.shape),
        **_check_groups(model, tokens, group),
        "sharded_vs_one_device": _compare_with_one_device(config, mesh, tokens, group),
        **_time(model, tokens, group),
    }
    for name, value in results.items():
        print(f"{name:36s} {value}")
    workdir.mkdir(parents=True, exist_ok=True)
    content = {"config": dataclasses.asdict(config), "results": results}
    partial = workdir / "check.json.partial"
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(workdir / "check.json")
    print(f"\nall checks passed; written to {workdir / 'check.json'}")
    return results


def _random_rows(config: ExperimentConfig, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (or raw inputs) and groups: half a row, most of the rest, and some padding."""
    length, model, rng = config.sequence_length, config.model, np.random.default_rng(config.seed)
    if length < 2:
        raise ConfigError(f"two groups need a sequence_length of at least 2, got {length}")
    index, shape = np.arange(length), (min(rows, config.batch_size), length)
    group = np.where(index < length // 2, 1, np.where(index < max(2, length * 7 // 8), 2, 0))
    group = np.broadcast_to(group, shape).astype(np.int32)
    if isinstance(model, LinearAttentionConfig) and model.embedding == "convolution":
        raw = rng.normal(size=(shape[0], length * model.kernel_size, model.input_dim))
        return raw.astype(np.float32), group
    return rng.integers(0, model.vocab_size, shape, dtype=np.int32), group


def _check_groups(model, tokens, group) -> dict:
    """Changing the first half must change the first group, and nothing else to the last bit."""
    changed, half = tokens.copy(), tokens.shape[1] // 2
    if np.issubdtype(tokens.dtype, np.integer):
        changed[:, :half] = (changed[:, :half] + 1) % model.config.vocab_size
    else:
        changed[:, :half] += 1
    before, after = model.hidden(tokens, group), model.hidden(changed, group)
    if not bool(jnp.isfinite(before).all()):
        raise StageError("the hidden states are not finite")
    moved_T = np.asarray(jnp.max(jnp.abs(after - before), axis=(0, 2)), np.float32)
    inside, outside = moved_T[group[0] == 1].max(), moved_T[group[0] != 1].max()
    if inside == 0 or outside != 0:
        raise StageError(
            f"a change in a group must affect that group only: {inside} inside, {outside} outside"
        )
    return {"moved_inside_changed_group": float(inside), "moved_outside": float(outside)}


def _compare_with_one_device(config: ExperimentConfig, mesh, tokens, group) -> float:
    """The largest difference between the hidden states, relative to the largest state."""
    shallow = dataclasses.replace(config.model, num_layers=min(2, config.model.num_layers))
    one = make_mesh(MeshConfig(1, 1, 1), jax.local_devices()[:1])
    ours, theirs = (
        np.asarray(create(shallow, config.seed, where).hidden(tokens, group), np.float32)
        for where in (mesh, one)
    )
    difference = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    limit = TOLERANCE if config.model.dtype == "float32" else 100 * TOLERANCE
    if not difference <= limit:
        raise StageError(f"sharded and one-device states differ by {difference}, limit {limit}")
    return difference


def _time(model, tokens, group) -> dict:
    """Median seconds over a few rounds, not counting the first, which compiles."""
    graphdef, params = nnx.split(model)

    def loss(params):
        return jnp.mean(jnp.square(nnx.merge(graphdef, params).hidden(tokens, group)))

    gradient = jax.jit(jax.value_and_grad(loss))

    def seconds(run) -> float:
        jax.block_until_ready(run())
        rounds = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            jax.block_until_ready(run())
            rounds.append(time.perf_counter() - start)
        return float(np.median(rounds))

    forward = seconds(lambda: model.hidden(tokens, group))
    with use_mesh_of(model):
        both = seconds(lambda: gradient(params))
    return {
        "forward_seconds": round(forward, 5),
        "forward_and_backward_seconds": round(both, 5),
        "forward_and_backward_tokens_per_s": round(group.size / both),
    }
