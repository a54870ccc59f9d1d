"""Does this model work on these devices? The stage to run before a long job.

It creates the model on its mesh, tries the contracts of the forward pass, and times it.
"""

import dataclasses
import json
import time

from etils import epath
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import ExperimentConfig, LinearAttentionConfig, MeshConfig
from icl_jax.models import create
from icl_jax.models.summary import parameter_table
from icl_jax.sharding import make_mesh

ROUNDS = 5
TOLERANCE = 1e-4  # of the largest logit, float32; bfloat16 rounds to 3 digits


class CheckError(RuntimeError):
    """The model does not do on these devices what it must."""


def check(config: ExperimentConfig, workdir: epath.Path) -> dict:
    """Prints the parameter table and what was found; writes `check.json`; raises on a failure."""
    mesh = make_mesh(config.mesh)
    kind = jax.devices()[0].device_kind
    shape = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    print(f"{mesh.size} device(s) of kind {kind}, mesh {shape}\n")
    print(parameter_table(config.model, mesh), "\n")
    tokens, group = _random_rows(config)
    with jax.set_mesh(mesh):
        model = create(config.model, config.seed, mesh)
        results = {
            "device_kind": kind,
            "mesh": dict(mesh.shape),
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


def _random_rows(config: ExperimentConfig) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two groups and some padding."""
    shape = (config.batch_size, config.sequence_length)
    model, rng = config.model, np.random.default_rng(config.seed)
    index = np.arange(shape[1])
    group = np.where(index < shape[1] // 2, 1, np.where(index < shape[1] * 7 // 8, 2, 0))
    group = np.broadcast_to(group, shape).astype(np.int32)
    if isinstance(model, LinearAttentionConfig) and model.embedding == "convolution":
        raw = rng.normal(size=(shape[0], shape[1] * model.kernel_size, model.input_dim))
        return raw.astype(np.float32), group
    return rng.integers(0, model.vocab_size, shape, dtype=np.int32), group


@jax.jit
def _forward(model, tokens, group):
    return model(tokens, group)


@jax.jit
def _forward_and_backward(model, tokens, group):
    graphdef, params = nnx.split(model)

    def loss(params):
        return jnp.mean(jnp.square(nnx.merge(graphdef, params)(tokens, group)))

    return jax.value_and_grad(loss)(params)


def _check_groups(model, tokens, group) -> dict:
    """A changed first half must move the first group and, exactly, nothing else."""
    changed = tokens.copy()
    changed[:, : tokens.shape[1] // 2] = changed[::-1, : tokens.shape[1] // 2][:, ::-1]
    before, after = _forward(model, tokens, group), _forward(model, changed, group)
    moved = np.asarray(jnp.max(jnp.abs(after - before), axis=(0, 2)))
    if not np.isfinite(np.asarray(before)).all():
        raise CheckError("logits are not finite")
    inside, outside = moved[group[0] == 1].max(), moved[group[0] != 1].max(initial=0.0)
    if inside == 0 or outside != 0:
        raise CheckError(
            f"a change in a group must move that group only: {inside} inside, {outside} outside"
        )
    return {"moved_inside_changed_group": float(inside), "moved_outside": float(outside)}


def _compare_with_one_device(config: ExperimentConfig, mesh, tokens, group) -> float:
    """The largest difference of logits relative to the largest; two layers fit on any device."""
    shallow = dataclasses.replace(config.model, num_layers=min(2, config.model.num_layers))
    ours = np.asarray(_forward(create(shallow, config.seed, mesh), tokens, group))
    one = make_mesh(MeshConfig(1, 1, 1), jax.local_devices()[:1])
    with jax.set_mesh(one):
        theirs = np.asarray(_forward(create(shallow, config.seed, one), tokens, group))
    difference = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    limit = TOLERANCE if config.model.dtype == "float32" else 100 * TOLERANCE
    if not difference <= limit:
        raise CheckError(
            f"sharded and one-device logits differ by {difference}, expected <= {limit}"
        )
    return difference


def _time(model, tokens, group) -> dict:
    """Median seconds over a few rounds, the first (compiling) one apart."""

    def seconds(run) -> float:
        jax.block_until_ready(run())
        rounds = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            jax.block_until_ready(run())
            rounds.append(time.perf_counter() - start)
        return float(np.median(rounds))

    forward = seconds(lambda: _forward(model, tokens, group))
    both = seconds(lambda: _forward_and_backward(model, tokens, group))
    return {
        "forward_seconds": round(forward, 5),
        "forward_and_backward_seconds": round(both, 5),
        "forward_and_backward_tokens_per_s": round(group.size / both),
    }
