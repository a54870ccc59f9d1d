"""The one table of accelerators: everything that the package knows of a chip is in its entry.

A new TPU generation is one more entry. The peak rate in a run's log, the topologies of
`tpu.compile`, and the slices, cells and tables of `studies.pods` all come from here.
"""

from collections.abc import Mapping
import math
from typing import NamedTuple

# Splash attention: (cycles of a step, cycles of each score in it), from the schedules that libtpu
# wrote for v5e, blocks of 512 and of 1,024 tokens, heads of 64 (docs/tpu_sharding.md).
KERNEL_CYCLES = {"fwd": (757, 5.70e-3), "dq": (504, 5.83e-3), "dkv": (838, 7.57e-3)}

# Slices as clouds sell them: number in the name -> shape. A v4 or v5p is counted by its cores, two
# to a chip; a v5e or v6e by its chips.
_CUBES = {8: "2x2x1", 16: "2x2x2", 32: "2x2x4", 64: "2x4x4", 128: "4x4x4", 256: "4x4x8"}
_SQUARES = {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}


class Chip(NamedTuple):
    """One device as JAX counts them: on Cloud TPU the two cores of a v4 or v5p are one device."""

    device_kind: str  # what JAX calls it
    flops: float  # dense bfloat16, per second
    memory_bytes: float = 0.0  # HBM
    memory_bandwidth: float = 0.0  # bytes per second
    link_bandwidth: float = 0.0  # bytes per second, all links of a chip together, one direction
    clock: float = 0.0  # cycles per second
    # For TPUs only: the network, and how libtpu describes it.
    dimensions: int = 0  # of the network
    ring: int = 0  # an axis whose length is a multiple of this closes to a ring
    host: tuple[int, ...] = (2, 2, 1)  # chips of one host along each axis; fewer in a small slice
    options: Mapping[str, str] = {}  # of libtpu's topology
    slices: Mapping[int, str] = {}
    kernel_cycles: Mapping[str, tuple[float, float]] = KERNEL_CYCLES


# TPU: cloud.google.com/tpu/docs (system architecture), GPU: NVIDIA data sheets.
# Clock: flops / (2 per multiply-add of the matrix units: v4, v5p 8 x 128^2, v5e 4 x 128^2, v6e
# 4 x 256^2), the units that the cycles of libtpu's own estimates imply.
CHIPS: dict[str, Chip] = {  # TPUs by age
    "v4": Chip(
        "TPU v4", 275e12, 32 * 2**30, 1.2e12, 6 * 45e9, 1.05e9,
        dimensions=3, ring=4, options={"chip_config_name": "megacore"}, slices=_CUBES,
    ),
    "v5e": Chip(
        "TPU v5 lite", 197e12, 16 * 2**30, 8.19e11, 4 * 45e9, 1.5e9,
        dimensions=2, ring=16, slices=_SQUARES,
    ),
    "v5p": Chip(
        "TPU v5", 459e12, 95 * 2**30, 2.765e12, 6 * 90e9, 1.75e9,
        dimensions=3, ring=4, options={"chip_config_name": "megacore"}, slices=_CUBES,
    ),
    "v6e": Chip(
        "TPU v6 lite", 918e12, 32 * 2**30, 1.638e12, 4 * 90e9, 1.75e9,
        dimensions=2, ring=16, slices=_SQUARES,
    ),
    "A100-40GB": Chip("NVIDIA A100-SXM4-40GB", 312e12),
    "A100-80GB": Chip("NVIDIA A100-SXM4-80GB", 312e12),
    "H100": Chip("NVIDIA H100 80GB HBM3", 989e12),
}  # fmt: skip


def tpus() -> dict[str, Chip]:
    """The TPU generations, which libtpu can compile for."""
    return {name: chip for name, chip in CHIPS.items() if chip.dimensions}


def chip_of_kind(device_kind: str) -> Chip | None:
    """The chip that JAX calls `device_kind`; None: not in the table."""
    return next((chip for chip in CHIPS.values() if chip.device_kind == device_kind), None)


def slices() -> dict[str, str]:
    """Every slice that is sold, with its topology: v5e-16 -> v5e:4x4."""
    return {
        f"{name}-{count}": f"{name}:{shape}"
        for name, chip in tpus().items()
        for count, shape in chip.slices.items()
    }


def one_chip() -> dict[str, str]:
    """The topology of a single chip of each generation: v5e -> v5e:1x1."""
    return {name: f"{name}:{'x'.join('1' * chip.dimensions)}" for name, chip in tpus().items()}


def generation_of(name: str) -> str:
    """The generation, v5e, of a slice such as v5e-16 or a topology such as v5e:4x4."""
    return name.replace(":", "-").partition("-")[0]


def num_chips(topology: str) -> int:
    """The number of chips of a topology such as v5e:4x4."""
    return math.prod(map(int, topology.partition(":")[2].split("x")))


def slice_of(generation: str, chips: int) -> str:
    """The slice of a generation that has this many chips."""
    return next(
        name
        for name, topology in slices().items()
        if generation_of(name) == generation and num_chips(topology) == chips
    )
