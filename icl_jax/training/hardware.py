"""Peak rates of the devices of this process, published or measured, and its peak memory."""

import functools
import time

import jax
import jax.numpy as jnp

from icl_jax.files.step_folder import peak_of_this_process
from icl_jax.tpu.chips import chip_of_kind


def peak_flops(devices: list[jax.Device], dtype: str) -> float | None:
    """Flops per second of all devices together; None: unknown kind. On a CPU it is measured."""
    if devices[0].platform == "cpu":
        # Emulated devices share the cores of their host.
        return measured_gemm_flops(dtype) * len({device.process_index for device in devices})
    chip = chip_of_kind(devices[0].device_kind)
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
    """The most memory used so far, on one device or, on a CPU, by this process."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return f"{stats['peak_bytes_in_use'] / 1e9:.2f} GB a device"
    return f"{peak_of_this_process()[1] / 1e9:.2f} GB"
