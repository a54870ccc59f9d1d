"""Prints the parameters of a model without making them: shapes, sharding, sizes.

python -m icl_jax.models.summary --preset=gpt2-medium --fsdp=8 --tensor=2
"""

from collections.abc import Sequence
import math

from absl import flags
from flax import nnx
from jax.sharding import AbstractMesh
import numpy as np

from icl_jax.cli import Flag, command, whole
from icl_jax.config import ConfigError, MeshConfig, ModelConfig
from icl_jax.config.tree import validate
from icl_jax.models import abstract
from icl_jax.models.kinds import PRESETS, preset
from icl_jax.sharding import MESH_AXES, spec, variable_axes


def parameter_table(config: ModelConfig, mesh) -> str:
    """One line per parameter, and the totals; `mesh` may be abstract, no device is touched.

    Unrolled layers share a line: `blocks.*.mlp.up.kernel`, "24 of 1024 x 4096".
    """
    alike: dict[tuple[str, ...], list[int]] = {}  # name, shape, sharding -> copies, count, bytes...
    for path, variable in nnx.to_flat_state(abstract(config)[1]):
        placed = spec(variable_axes(variable), variable.shape, mesh)
        axes = [axis for entry in placed if entry for axis in np.atleast_1d(entry)]
        count = math.prod(variable.shape)
        size = count * variable.dtype.itemsize
        local = size // math.prod(mesh.shape[axis] for axis in axes)
        name = ".".join("*" if isinstance(part, int) else part for part in path)
        line = (name, " x ".join(map(str, variable.shape)), _show(placed))
        sums = alike.setdefault(line, [0, 0, 0, 0])
        alike[line] = [a + b for a, b in zip(sums, (1, count, size, local))]
    rows = [("parameter", "shape", "sharding", "count", "bytes", "bytes/device")]
    for (name, shape, placed), (copies, *sums) in alike.items():
        shape = f"{copies} of {shape}" if "*" in name else shape
        rows.append((name, shape, placed, *(f"{value:,}" for value in sums)))
    totals = [sum(column) for column in zip(*alike.values())][1:]
    rows.append(("total", "", "", *(f"{value:,}" for value in totals)))
    return _format(rows)


def _show(placed) -> str:
    if not any(placed):
        return "whole on every device"
    return ", ".join("+".join(np.atleast_1d(entry)) if entry else "-" for entry in placed)


def _format(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    rule = "  ".join("-" * width for width in widths)
    lines = []
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:3], widths)]
        right = [cell.rjust(width) for cell, width in zip(row[3:], widths[3:])]
        lines.append("  ".join(left + right))
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


@command(
    Flag("preset=NAME", f"one of {', '.join(PRESETS)}", required=True),
    Flag("data=N", "devices along the mesh axis data", whole(), 1),
    Flag("fsdp=N", "devices along the mesh axis fsdp", whole(), 4),
    Flag("tensor=N", "devices along the mesh axis tensor", whole(), 2),
)
def main(given: flags.FlagValues) -> None:
    """Prints the table of a preset."""
    sizes = (given.data, given.fsdp, given.tensor)
    validate(MeshConfig(*sizes))
    if -1 in sizes:
        raise ConfigError("an abstract mesh needs a number of devices for every axis, got -1")
    config = preset(given.preset)
    print(f"{given.preset} on a mesh of data {sizes[0]} x fsdp {sizes[1]} x tensor {sizes[2]}\n")
    print(parameter_table(config, AbstractMesh(sizes, MESH_AXES)))


if __name__ == "__main__":
    main()
