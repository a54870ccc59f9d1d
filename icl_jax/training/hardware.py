"""What the accelerators can do at best, by makers' figures or measured, and what a run took."""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp

from icl_jax.files.step_folder import peak_of_this_process


class Chip(NamedTuple):
    """One device as JAX counts them; dense bfloat16 arithmetic."""

    flops: float  # per second
    memory_bytes: float = 0.0  # HBM
    memory_bandwidth: float = 0.0  # bytes per second
    link_bandwidth: float = 0.0  # bytes per second, all links of a chip together, one direction
    clock: float = 0.0  # cycles per second


# By `device_kind`. TPU: cloud.google.com/tpu/docs (system architecture), GPU: NVIDIA data sheets.
# Clock: flops / (2 per multiply-add of the matrix units: v4, v5p 8 x 128^2, v5e 4 x 128^2, v6e
# 4 x 256^2), the units that the cycles of libtpu's own estimates imply.
CHIPS: dict[str, Chip] = {
    "TPU v4": Chip(275e12, 32 * 2**30, 1.2e12, 6 * 45e9, 1.05e9),
    "TPU v5 lite": Chip(197e12, 16 * 2**30, 8.19e11, 4 * 45e9, 1.5e9),
    "TPU v5": Chip(459e12, 95 * 2**30, 2.765e12, 6 * 90e9, 1.75e9),
    "TPU v6 lite": Chip(918e12, 32 * 2**30, 1.638e12, 4 * 90e9, 1.75e9),
    "NVIDIA A100-SXM4-40GB": Chip(312e12),
    "NVIDIA A100-SXM4-80GB": Chip(312e12),
    "NVIDIA H100 80GB HBM3": Chip(989e12),
}


def peak_flops(devices: list[jax.Device], dtype: str) -> float | None:
    """Flops per second of all devices together; None: unknown kind. Measured on a CPU."""
    if devices[0].platform == "cpu":
        # Emulated devices share the cores of their host.
        return measured_gemm_flops(dtype) * len({device.process_index for device in devices})
    chip = CHIPS.get(devices[0].device_kind)
    return chip.flops * len(devices) if chip else None


@functools.lru_cache
def measured_gemm_flops(dtype: str = "float32", size: int = 1536, rounds: int = 5) -> float:
    """Flops per second of the best of a few square matrix products on one device."""
    x = jax.device_put(jnp.ones((size, size), dtype), jax.local_devices()[0])
    product = jax.jit(lambda x: x @ x)
    jax.block_until_ready(product(x))
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(product(x))
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


def peak_memory() -> str:
    """The most that was taken until now: of one device, or on a CPU of this process."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return f"{stats['peak_bytes_in_use'] / 1e9:.2f} GB a device"
    return f"{peak_of_this_process()[1] / 1e9:.2f} GB"
