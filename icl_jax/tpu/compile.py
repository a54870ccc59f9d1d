"""Compiles a training step for TPUs, without any: its memory, traffic and time.

python -m icl_jax.tpu.compile --config=configs/NAME.py[:ARM]
    --topology=v5e:4x4 [--config.FIELD=value ...] [--hlo=FILE]
Environment: LIBTPU_INIT_ARGS, flags of the TPU compiler to try.
"""

from collections.abc import Callable
import importlib.util
import json
import os
from pathlib import Path
import re
import time

from absl import flags
import jax
from jax.experimental import topologies
import jax.numpy as jnp
from jax.sharding import Mesh, SingleDeviceSharding

from icl_jax.cli import ConfigFile, Flag, command, stop
from icl_jax.config import ConfigError, ExperimentConfig
from icl_jax.config.tree import validate
from icl_jax.models import abstract
from icl_jax.sharding import make_mesh
from icl_jax.tpu.chips import Chip, chip_of_kind, num_chips, tpus
from icl_jax.tpu.program import COLLECTIVES, Cost, program_cost
from icl_jax.training.checks import batch_problems
from icl_jax.training.metrics import flops_per_token
from icl_jax.training.optimizer import learning_rate, make_optimizer
from icl_jax.training.train_state import compile_train_step

GB = 2**30


class DoesNotFitError(Exception):
    """The step needs more bytes than the compiler has on a chip."""

    def __init__(self, needed: float, available: float):
        super().__init__(f"needs {needed / GB:.2f} GB, has {available / GB:.2f} GB")
        self.needed, self.available = needed, available


def measure(config: ExperimentConfig, topology: str, hlo_path: str | None = None) -> dict:
    """Compiles the training step for `topology`; all numbers of the table, per chip and step."""
    validate(config)
    mesh = make_mesh(config.mesh, topology_devices(topology))
    if found := batch_problems(config, mesh):
        raise ConfigError("; ".join(found))
    schedule = learning_rate(config.optimizer, config.training.steps or 1000)
    optimizer = make_optimizer(config.optimizer, schedule)
    tokens = config.batch_size * config.sequence_length
    return {
        "parameters": sum(x.size for x in jax.tree.leaves(abstract(config.model)[1])),
        "tokens": tokens,
        **measure_program(
            lambda: compile_train_step(config, optimizer, schedule, mesh),
            mesh,
            topology,
            flops_per_token(config) * tokens,
            hlo_path,
        ),
    }


def measure_program(
    compile_step: Callable[[], jax.stages.Compiled],
    mesh: Mesh,  # of the chips of `topology`
    topology: str,
    model_flops: float,  # of the model alone, on all chips together
    hlo_path: str | None = None,
) -> dict:
    """Compiles any step; its memory, work and times, per chip."""
    device = mesh.devices.flat[0]
    available = memory_limit(device)
    start = time.perf_counter()
    try:
        compiled = compile_step()
    except jax.errors.JaxRuntimeError as error:
        raise _does_not_fit(error) or error from None
    seconds = time.perf_counter() - start
    if hlo_path:
        Path(hlo_path).write_text(compiled.as_text())
    chip = chip_of_kind(device.device_kind)
    cost = program_cost(compiled.as_text(), mesh.size, chip.kernel_cycles)
    return {
        "topology": topology,
        "device_kind": device.device_kind,
        "mesh": dict(mesh.shape),
        "compile_seconds": seconds,
        "memory": _memory(compiled.memory_analysis(), available),
        "flops_with_loops_once": compiled.cost_analysis()["flops"],
        **estimate(model_flops / mesh.size, mesh, cost, chip),
    }


def topology_devices(topology: str) -> list[jax.Device]:
    """The chips of a topology such as v5e:4x4."""
    generation, _, sizes = topology.partition(":")
    known = tpus().get(generation)
    if known is None or not re.fullmatch(r"\d+(x\d+)*", sizes):
        raise ConfigError(
            f"expected --topology=NAME:SIZES such as v5e:4x4 or v4:2x2x2, with a NAME among "
            f"{', '.join(tpus())}, got '{topology}'"
        )
    if sizes.count("x") + 1 != known.dimensions:
        raise ConfigError(
            f"a slice of {generation} has {known.dimensions} dimensions, got '{topology}'; "
            f"give {known.dimensions} sizes"
        )
    if importlib.util.find_spec("libtpu") is None:
        raise ConfigError("the TPU compiler, libtpu, is not installed; pip install '.[tpu]'")
    # Do not look for a TPU, and let other processes compile too. Any known type will do.
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-16", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }  # fmt: skip
    jax.config.update("jax_platforms", "cpu")
    # A host has as many chips as the table says, or all of a smaller slice.
    slice_sizes = [*map(int, sizes.split("x")), *[1] * (len(known.host) - known.dimensions)]
    host = [min(pair) for pair in zip(known.host, slice_sizes)]
    options = {"chips_per_host_bounds": host, **known.options}
    try:
        return topologies.get_topology_desc(topology, platform="tpu", **options).devices
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(f"--topology={topology}: {str(error).splitlines()[0]}") from error


def memory_limit(device: jax.Device) -> float:
    """Bytes that the compiler may use on a chip: its error says so when asked for far too many."""
    huge = jax.ShapeDtypeStruct((2**40,), jnp.float32, sharding=SingleDeviceSharding(device))
    try:
        jax.jit(lambda x: x + 1).lower(huge).compile()
    except jax.errors.JaxRuntimeError as error:
        if found := _does_not_fit(error):
            return found.available
        raise
    raise AssertionError("the compiler found room for 4 TiB on a chip")


def _does_not_fit(error: Exception) -> DoesNotFitError | None:
    number = r"([\d.]+)([KMGT]?)"
    forms = (rf"\({number}\) exceeds available HBM \({number}\)", rf"Used {number} of {number} hbm")
    found = next(filter(None, (re.search(form, str(error)) for form in forms)), None)
    if found is None:
        return None
    unit = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    return DoesNotFitError(float(found[1]) * unit[found[2]], float(found[3]) * unit[found[4]])


def _memory(stats, available: float) -> dict[str, float]:
    held = {
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes,
        "outputs_in_place_of_arguments": -stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "program": stats.generated_code_size_in_bytes,
    }
    return {**held, "total": sum(held.values()), "available": available}


def estimate(model_flops: float, mesh: Mesh, cost: Cost, chip: Chip) -> dict:
    """Seconds of a step by each bound, and the share of the chip's flops that the model uses."""
    places = [device.coords for device in mesh.devices.flat]
    link = chip.link_bandwidth / (2 * chip.dimensions)
    network = sum(
        x.sent / (link * _links([places[n] for n in x.group], places, chip.ring))
        for x in cost.collectives
    )
    compute, memory = cost.flops / chip.flops, cost.memory_bytes / chip.memory_bandwidth
    scheduled = cost.cycles / chip.clock
    seconds = {
        "products": compute,
        "memory": memory,
        "collectives": network,
        "largest": max(compute, memory, network),
        "sum": compute + memory + network,
        "cycles": scheduled,
        "cycles_or_collectives": max(scheduled, network),
        "cycles_and_collectives": scheduled + network,
    }
    sent = dict.fromkeys(COLLECTIVES, 0.0)
    for x in cost.collectives:
        sent[x.kind] += x.sent
    largest = sorted(cost.collectives, key=lambda x: -x.sent)[:8]
    return {
        "model_flops": model_flops,
        "compiled_flops": cost.flops,
        "memory_traffic": cost.memory_bytes,
        "sent": sent,
        "seconds": seconds,
        "utilisation": {
            name: model_flops / (time * chip.flops) for name, time in list(seconds.items())[3:]
        },
        "unknown_loops": cost.unknown_loops,
        "largest_collectives": [x._asdict() for x in largest if x.sent],
    }


def _links(group: list, everyone: list, ring: int) -> int:
    """How many links of a chip a group can use at once in one direction."""
    links = 0
    for ours, all_of_axis in zip(zip(*group), zip(*everyone)):
        length, spanned = max(all_of_axis) + 1, len(set(ours))
        if spanned > 1:
            links += 2 if spanned == length and length % ring == 0 else 1
    return max(links, 1)


def table(numbers: dict) -> str:
    """The numbers as people read them."""
    memory, scaled = numbers["memory"], {}
    mesh = " x ".join(f"{axis} {size}" for axis, size in numbers["mesh"].items())
    for name, value in list(memory.items())[:-2]:
        scaled[f"memory: {name}"] = f"{value / GB:.3f} GB"
    scaled["memory: total"] = f"{memory['total'] / GB:.3f} of {memory['available'] / GB:.2f} GB"
    for name in ("model_flops", "compiled_flops", "flops_with_loops_once"):
        scaled[name] = f"{numbers[name] / 1e12:.3f} T"
    scaled["memory traffic"] = f"{numbers['memory_traffic'] / GB:.2f} GB"
    for name, value in numbers["sent"].items():
        scaled[f"sent: {name}"] = f"{value / GB:.3f} GB"
    for name, value in numbers["seconds"].items():
        use = numbers["utilisation"].get(name)
        share = "" if use is None else f"  utilisation {use:.1%}"
        scaled[f"time: {name}"] = f"{value * 1e3:.1f} ms{share}"
    width = max(map(len, scaled))
    return "\n".join([
        f"{numbers['parameters']:,} parameters, {numbers['tokens']:,} tokens a step on "
        f"{numbers['topology']} ({numbers['device_kind']}), mesh {mesh}; compiled in "
        f"{numbers['compile_seconds']:.0f} s. A chip and step:",
        *(f"{name.replace('_', ' '):<{width}}  {value}" for name, value in scaled.items()),
        *(
            f"  {x['sent'] / GB:.3f} GB sent: {x['times']} x {x['kind']} of {x['shape']} among "
            f"{len(x['group'])}, {x['place']}"
            for x in numbers["largest_collectives"]
        ),
        ASSUMPTIONS.format(**numbers),
    ])  # fmt: skip


ASSUMPTIONS = """\
Compiled flops (matrix products only), traffic, cycles and collectives are summed over the compiled
program, with a loop's body counted as often as it runs ({unknown_loops} loops of unknown length:
once); the compiler's own total, flops with loops once, counts every body once. Sent: ring
algorithm, over one link for each dimension of the network that the group spans, two if the
dimension is a ring. Times of products, memory and links assume the published peak rates; vector
work is in the cycles only. Cycles are the compiler's estimate for every operation except
collectives and attention kernels, for which it reports none: the flops and traffic of kernels are
counted by their blocks, and their cycles per score are those of its schedules for v5e."""


def advice(config: ExperimentConfig, chips: int) -> str:
    """What to change in this config so that it needs less memory."""
    parts, options = config.training.accumulate, []
    if config.model.remat != "full":
        options.append("--config.model.remat=full")
    if config.mesh.fsdp not in (-1, chips):
        options.append("--config.mesh.data=1 --config.mesh.fsdp=-1 --config.mesh.tensor=1")
    if config.model.dtype != "bfloat16":
        options.append("--config.model.dtype=bfloat16")
    if config.batch_size % (2 * parts * chips) == 0:
        options.append(f"--config.training.accumulate={2 * parts}")
    return ", ".join([*options, f"a batch_size below {config.batch_size}"]) + " or more chips"


@command(
    ConfigFile("a file of configs/; --config.FIELD=value overrides any field", required=True),
    Flag("topology=NAME:SIZES", f"the slice; NAME is one of {', '.join(tpus())}",
         default="v5e:4x4"),
    Flag("hlo=FILE", "a file to write the compiled program to"),
)  # fmt: skip
def main(given: flags.FlagValues) -> None:
    """Prints the table and, as the last line, all its numbers as JSON."""
    jax.config.update("jax_enable_compilation_cache", False)  # needs a device to read it back
    try:
        numbers = measure(given.config, given.topology, given.hlo)
    except DoesNotFitError as error:
        print(json.dumps({"fits": False, "needed": error.needed, "available": error.available}))
        tried = advice(given.config, num_chips(given.topology))
        stop(f"does not fit: {error}; try {tried}", code=1)
    print(table(numbers))
    print(json.dumps({"fits": True, **numbers}))


if __name__ == "__main__":
    main()
