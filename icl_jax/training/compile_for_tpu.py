"""What a training step would cost on TPUs that are not there: the real compiler, and arithmetic.

python -m icl_jax.training.compile_for_tpu --config=configs/NAME.py --topology=v5e:4x4
    [--config.FIELD=value ...] [--hlo=FILE]
Environment: LIBTPU_INIT_ARGS, flags of the TPU compiler to try.
"""

from collections.abc import Iterator
import importlib.util
import json
import math
import os
from pathlib import Path
import re
import sys
import textwrap
import time
import typing
from typing import NamedTuple

from absl import app, flags
import jax
from jax.experimental import topologies
import jax.numpy as jnp
from jax.sharding import Mesh, SingleDeviceSharding
from ml_collections import config_flags
import numpy as np

from icl_jax.config import ConfigError, ExperimentConfig
from icl_jax.config_tree import validate
from icl_jax.models import abstract
from icl_jax.sharding import make_mesh
from icl_jax.training.hardware import CHIPS, Chip
from icl_jax.training.metrics import flops_per_token
from icl_jax.training.optimizer import learning_rate, make_optimizer
from icl_jax.training.train_state import compile_train_step

GB = 2**30


class Generation(NamedTuple):
    """Chips of one make: how libtpu is asked for them, and how their network is built."""

    dimensions: int
    ring: int  # along an axis of a multiple of this many chips the network closes to a ring
    options: dict[str, str]  # of the topology


# On Cloud TPU the two cores of a v4 or v5p chip are one device.
GENERATIONS = {
    "v4": Generation(3, 4, {"chip_config_name": "megacore"}),
    "v5e": Generation(2, 16, {}),
    "v5p": Generation(3, 4, {"chip_config_name": "megacore"}),
    "v6e": Generation(2, 16, {}),
}


class DoesNotFitError(Exception):
    """The step needs more bytes than the compiler has on a chip."""

    def __init__(self, needed: float, available: float):
        super().__init__(f"needs {needed / GB:.2f} GB, has {available / GB:.2f} GB")
        self.needed, self.available = needed, available


def measure(config: ExperimentConfig, topology: str, hlo_path: str | None = None) -> dict:
    """Compiles the training step for `topology`; all numbers of the table, per chip and step."""
    validate(config)
    devices = topology_devices(topology)
    mesh = make_mesh(config.mesh, devices)
    _check_batch(config, mesh)
    available = memory_limit(devices[0])
    schedule = learning_rate(config.optimizer, config.training.steps or 1000)
    start = time.perf_counter()
    try:
        optimizer = make_optimizer(config.optimizer, schedule)
        compiled = compile_train_step(config, optimizer, schedule, mesh)
    except jax.errors.JaxRuntimeError as error:
        raise _does_not_fit(error) or error from None
    seconds = time.perf_counter() - start
    if hlo_path:
        Path(hlo_path).write_text(compiled.as_text())
    generation, chip = GENERATIONS[topology.partition(":")[0]], CHIPS[devices[0].device_kind]
    return {
        "topology": topology,
        "device_kind": devices[0].device_kind,
        "mesh": dict(mesh.shape),
        "parameters": sum(x.size for x in jax.tree.leaves(abstract(config.model)[1])),
        "tokens": config.batch_size * config.sequence_length,
        "compile_seconds": seconds,
        "memory": _memory(compiled.memory_analysis(), available),
        "flops_with_loops_once": compiled.cost_analysis()["flops"],
        **estimate(config, mesh, program_cost(compiled.as_text(), mesh.size), chip, generation),
    }


def topology_devices(topology: str) -> list[jax.Device]:
    """The chips of a topology such as v5e:4x4."""
    generation, _, sizes = topology.partition(":")
    known = GENERATIONS.get(generation)
    if known is None or not re.fullmatch(r"\d+(x\d+)*", sizes):
        raise ConfigError(
            f"expected --topology=NAME:SIZES such as v5e:4x4 or v4:2x2x2, with a NAME among "
            f"{', '.join(GENERATIONS)}, got '{topology}'"
        )
    if sizes.count("x") + 1 != known.dimensions:
        raise ConfigError(
            f"{generation} chips lie in {known.dimensions} dimensions, got '{topology}'; "
            f"give {known.dimensions} sizes"
        )
    if importlib.util.find_spec("libtpu") is None:
        raise ConfigError("the TPU compiler, libtpu, is not installed; pip install '.[tpu]'")
    # Look for no TPU, and let other processes compile too. The type only has to be a known one.
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-16", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }  # fmt: skip
    jax.config.update("jax_platforms", "cpu")
    try:
        return topologies.get_topology_desc(topology, platform="tpu", **known.options).devices
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(f"--topology={topology}: {str(error).splitlines()[0]}") from error


def _check_batch(config: ExperimentConfig, mesh: Mesh) -> None:
    data, fsdp, parts = mesh.shape["data"], mesh.shape["fsdp"], config.training.accumulate
    if config.batch_size % (data * fsdp * parts):
        raise ConfigError(
            f"batch_size {config.batch_size} is not divisible by mesh.data {data} x mesh.fsdp "
            f"{fsdp} x training.accumulate {parts}; change one of them"
        )


def memory_limit(device: jax.Device) -> float:
    """Bytes that the compiler may use on a chip: it tells when asked for far too many."""
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


class Collective(NamedTuple):
    """One collective of the program, with all the times that it runs in a step."""

    kind: str
    sent: float  # bytes, by one chip in all
    times: int
    group: tuple[int, ...]  # places in the mesh of the chips that take part together
    shape: str
    place: str  # where in the model it comes from


class Cost(NamedTuple):
    """What one chip does in one step."""

    flops: float  # of matrix products
    memory_bytes: float  # read from HBM and written to it
    cycles: float  # as the compiler expects, collectives apart
    collectives: list[Collective]
    unknown_loops: int  # that end by their data: counted once


def estimate(
    config: ExperimentConfig, mesh: Mesh, cost: Cost, chip: Chip, generation: Generation
) -> dict:
    """Seconds of a step, and the share of the chip's flops that the model gets, by each bound."""
    model_flops = flops_per_token(config) * config.batch_size * config.sequence_length / mesh.size
    places = [device.coords for device in mesh.devices.flat]
    link = chip.link_bandwidth / (2 * generation.dimensions)
    network = sum(
        x.sent / (link * _links([places[n] for n in x.group], places, generation.ring))
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
    """Links of a chip that a group can use at once in one direction."""
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
program, a loop's body as often as it runs ({unknown_loops} loops of unknown length: once); the
compiler's own total, flops with loops once, counts every body once. Sent: ring algorithm, over one
link for each dimension of the network that the group spans, two where the dimension is a ring.
Times of products, memory and links are at the makers' peak rates; vector work is in the cycles
only. Cycles are the compiler's guess for each operation but collectives."""


def advice(config: ExperimentConfig, chips: int) -> str:
    """What this config could change to need less memory."""
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


def main(argv: list[str]) -> None:
    """Prints the table and, as the last line, all its numbers as JSON."""
    jax.config.update("jax_enable_compilation_cache", False)  # needs a device to read it back
    config, topology = flags.FLAGS.config, flags.FLAGS.topology
    if len(argv) > 1:
        _stop(f"unexpected argument '{argv[1]}'; flags begin with --")
    if not isinstance(config, ExperimentConfig):
        _stop("expected --config=FILE, a file whose get_config() returns an ExperimentConfig")
    try:
        numbers = measure(config, topology, flags.FLAGS.hlo)
    except ConfigError as error:
        _stop(str(error))
    except DoesNotFitError as error:
        print(json.dumps({"fits": False, "needed": error.needed, "available": error.available}))
        chips = math.prod(map(int, topology.partition(":")[2].split("x")))
        _stop(f"does not fit: {error}; try {advice(config, chips)}", code=1)
    print(table(numbers))
    print(json.dumps({"fits": True, **numbers}))


def _parse(argv: list[str]) -> list[str]:
    """Flags from the command line; a wrong one stops the run in one line."""
    for arg in argv:
        name, _, file = arg.partition("=")
        if name == "--config" and not Path(file).is_file():
            _stop(f"config file '{file}' does not exist")
    try:
        return flags.FLAGS(argv)
    except (flags.Error, KeyError, TypeError, ValueError) as error:
        _stop(str(error.args[0]).splitlines()[0])


def _stop(message: str, code: int = 2) -> typing.NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


# Below: reading the compiled program.

COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
NO_TRAFFIC = (
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "call",
    "conditional", "partition-id", "replica-id", "after-all",
)  # fmt: skip


class Instruction(NamedTuple):
    """`name = shape opcode(operands), attributes`."""

    name: str
    shape: str  # "bf16[8,128]{1,0:T(8,128)S(1)}", or several in parentheses
    opcode: str
    operands: list[str]
    line: str

    def attribute(self, name: str) -> str:
        found = re.search(rf"[ ,{{]{name}=(\{{.*?\}}|[^ ,]+)", self.line)
        return found[1].lstrip("%") if found else ""


Computation = dict[str, Instruction]
Program = dict[str, Computation]  # "" is the entry


def parse_program(text: str) -> Program:
    """The computations of an HLO text."""
    program, current = {}, {}
    head = re.compile(r"(ENTRY )?%?([^ (]+) .*\{$")
    body = re.compile(r" +(?:ROOT )?%?(\S+) = (.*?) ([a-z][a-z\d-]*)\(([^)]*)\)")
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        if found := body.match(line):
            name, shape, opcode, inside = found.groups()
            operands = [part.split()[-1].lstrip("%") for part in inside.split(",") if part.strip()]
            current[name] = Instruction(name, shape, opcode, operands, line)
        elif found := head.match(line):
            current = program["" if found[1] else found[2]] = {}
    return program


def walk(
    program: Program, name: str = "", times: int = 1, fused: bool = False
) -> Iterator[tuple[Instruction, Computation, str, int, bool]]:
    """Each instruction that runs, its computation and its name, how often, and if in a fusion."""
    for instruction in program[name].values():
        yield instruction, program[name], name, times, fused
        if instruction.opcode == "while":
            rounds = trip_count(program, program[name], instruction)
            rounds = 1 if rounds is None else rounds
            yield from walk(program, instruction.attribute("body"), times * rounds, fused)
        elif called := instruction.attribute("calls"):
            yield from walk(program, called, times, instruction.opcode == "fusion" or fused)
        elif instruction.opcode == "call":
            yield from walk(program, instruction.attribute("to_apply"), times, fused)


def trip_count(program: Program, around: Computation, loop: Instruction) -> int | None:
    """How often a loop `i = first; while (i < last) i += step` runs; None: its data decide."""
    if found := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.line):
        return int(found[1])
    condition = program[loop.attribute("condition")]
    body = program[loop.attribute("body")]
    test = _root(condition)
    counter = condition.get(test.operands[0]) if "direction=LT" in test.line else None
    if counter is None or counter.opcode != "get-tuple-element":
        return None
    index = int(counter.attribute("index"))
    following = body[_root(body).operands[index]]
    if following.opcode != "add":
        return None
    first = _constant(around, around[loop.operands[0]].operands[index])
    last, step = _constant(condition, test.operands[1]), _constant(body, following.operands[-1])
    return None if None in (last, step) else -(-(last - (first or 0)) // step)


def _constant(computation: Computation, name: str) -> int | None:
    instruction = computation[name]
    while instruction.opcode in ("copy", "bitcast", "convert"):
        instruction = computation[instruction.operands[0]]
    return int(instruction.operands[0]) if instruction.opcode == "constant" else None


def _root(computation: Computation) -> Instruction:
    return next(x for x in computation.values() if x.line.lstrip().startswith("ROOT"))


def program_cost(text: str, chips: int) -> Cost:
    """Adds up a compiled program."""
    program = parse_program(text)
    flops = memory_bytes = cycles = 0.0
    unknown = 0
    for instruction, computation, _, times, fused in walk(program):
        flops += times * product_flops(computation, instruction)
        if fused:
            continue
        memory_bytes += times * memory_traffic(program, computation, instruction)
        found = re.search(r'"estimated_cycles":"(\d+)"', instruction.line)
        cycles += times * int(found[1]) if found else 0
        loop = instruction.opcode == "while"
        unknown += loop and trip_count(program, computation, instruction) is None
    return Cost(flops, memory_bytes, cycles, collectives(program, chips), unknown)


def collectives(program: Program, chips: int) -> list[Collective]:
    """Every collective of the program; what is started and ended apart counts once."""
    found: dict[tuple[str, str], Collective] = {}
    for instruction, computation, name, times, _ in walk(program):
        kind = instruction.opcode.removesuffix("-start")
        if kind not in COLLECTIVES:
            continue
        group = replica_group(instruction.line, chips)
        size = sum(shape_bytes(computation[x].shape) for x in instruction.operands)
        if name.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"  # the TPU compiler fuses it of an all-reduce and a slice
        share = (len(group) - 1) / len(group)
        factor = {"all-gather": len(group) * share, "all-reduce": 2 * share}
        factor["collective-permute"] = 1.0
        sent = size * factor.get(kind, share) * times
        place = re.search(r'op_name="(.*?)"', instruction.line)
        shape = textwrap.shorten(re.sub(r"\{.*?\}", "", instruction.shape), 80)
        entry = Collective(kind, sent, times, group, shape, place[1] if place else "")
        # A chain of fusions repeats an asynchronous collective, also in loops that it outlasts.
        chained = "async_collective_fusion_config" in instruction.line
        key = ("" if chained else name, instruction.attribute("channel_id") or instruction.name)
        found[key] = min(entry, found.get(key, entry), key=lambda x: x.times)
    return list(found.values())


def replica_group(line: str, chips: int) -> tuple[int, ...]:
    """The places of the chips that take part with the first one; of a permutation, of all."""
    if found := re.search(r"source_target_pairs=\{(.*?)\}\}", line):
        return tuple(sorted({int(x) for x in re.findall(r"\d+", found[1])}))
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return tuple(int(x) for x in found[1].split(","))
    places = np.arange(chips)
    if found := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line):
        shape, base, order = (tuple(map(int, x.split(","))) if x else None for x in found.groups())
        places = places.reshape(base).transpose(order).reshape(-1, shape[-1])[0]
    elif found := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", line):
        sizes = {axis: int(size) for axis, size in re.findall(r"('\w+')=(\d+)", found[1])}
        index = tuple(slice(None) if axis in found[2] else 0 for axis in sizes)
        places = places.reshape(*sizes.values())[index]
    return tuple(places.ravel().tolist())


def shape_bytes(shape: str, *, memory: bool = False) -> float:
    """Bytes of all arrays of a shape; `memory`: of those in HBM only, as the tiles pad them."""
    total = 0.0
    for dtype, sizes, layout in re.findall(r"([a-z]+\d*\w*)\[([\d,]*)\](?:\{(.*?)\})?", shape):
        if memory and "S(" in layout:  # in the chip's own, faster memory
            continue
        dims = [int(size) for size in sizes.split(",") if size]
        tile = re.search(r"^([\d,]+):T\(([\d,]+)\)", layout)
        if memory and tile:
            minor_first = map(int, tile[1].split(","))
            for axis, unit in zip(minor_first, map(int, reversed(tile[2].split(",")))):
                dims[axis] = -(-dims[axis] // unit) * unit
        bits = re.search(r"\d+", dtype.replace("pred", "8"))
        total += math.prod(dims) * int(bits[0] if bits else 0) / 8
    return total


def product_flops(computation: Computation, instruction: Instruction) -> float:
    """Flops of a matrix product, which the TPU compiler writes as a convolution."""
    if instruction.opcode not in ("dot", "convolution"):
        return 0.0
    arrays = [*(computation[x] for x in instruction.operands), instruction]
    sizes = [re.search(r"\[([\d,]*)\]", x.shape)[1] for x in arrays]
    left, right, out = ([int(n) for n in re.findall(r"\d+", x)] for x in sizes)
    if instruction.opcode == "dot":
        summed = re.findall(r"\d+", instruction.attribute("lhs_contracting_dims"))
        return 2.0 * math.prod(out) * math.prod(left[int(axis)] for axis in summed)
    labels = re.split("_|->", instruction.attribute("dim_labels"))
    left, right, out = (dict(zip(*pair)) for pair in zip(labels, (left, right, out)))
    flops = 2.0 * out["b"] * out["f"] * right["i"]
    window = dict(part.split("=") for part in instruction.attribute("window").strip("{}").split())
    for n, axis in enumerate(sorted(out.keys() - {"b", "f"})):
        options = {name: values.split("x")[n] for name, values in window.items()}
        flops *= _window_pairs(options, left[axis], right[axis], out[axis])
    return flops


def _window_pairs(options: dict[str, str], left: int, right: int, out: int) -> int:
    """How many pairs of an output and a kernel place meet an input, not padding or a hole."""
    hole, stride, spread = (int(options.get(x, 1)) for x in ("lhs_dilate", "stride", "rhs_dilate"))
    place = np.arange(out)[:, None] * stride - int(options.get("pad", "0_0").partition("_")[0])
    place = place + np.arange(right)[None] * spread
    return int(np.sum((place % hole == 0) & (place >= 0) & (place <= (left - 1) * hole)))


def memory_traffic(program: Program, scope: Computation, instruction: Instruction) -> float:
    """Bytes that an instruction outside of fusions reads from HBM and writes to it."""
    opcode = instruction.opcode
    if opcode in NO_TRAFFIC or opcode.endswith("-done"):
        return 0.0
    arrays = re.findall(r"[a-z]+\d*\w*\[[\d,]*\](?:\{.*?\})?", instruction.shape)
    if opcode.endswith("-start"):  # gives (to, from) for a copy, (from, to) for a collective
        target = arrays[0 if opcode in ("copy-start", "slice-start") else min(1, len(arrays) - 1)]
        source = shape_bytes(scope[instruction.operands[0]].shape, memory=True)
        return min(source, shape_bytes(target)) + shape_bytes(target, memory=True)
    root = instruction
    if opcode == "fusion":
        scope = program[instruction.attribute("calls")]
        root = _root(scope)
        read = sum(_read_of(program, scope, n) for n in range(len(instruction.operands)))
    else:
        read = sum(_read_by(program, scope, instruction, x) for x in set(instruction.operands))
    parts = [scope[x] for x in root.operands] if root.opcode == "tuple" else [root]
    return read + sum(_written(scope, part, array) for part, array in zip(parts, arrays))


def _read_of(program: Program, fused: Computation, n: int) -> float:
    """Bytes that a fusion reads of its n-th operand."""
    operand = next(x for x in fused.values() if x.opcode == "parameter" and x.operands == [str(n)])
    users = [x for x in fused.values() if operand.name in x.operands]
    read = sum(_read_by(program, fused, user, operand.name) for user in users)
    return min(read, shape_bytes(operand.shape, memory=True))


def _read_by(program: Program, scope: Computation, user: Instruction, name: str) -> float:
    """Bytes that `user` reads of the array `name`: of one that it cuts, the cut."""
    whole, place = shape_bytes(scope[name].shape, memory=True), user.operands.index(name)
    if whole == 0 or user.opcode == "tuple":
        return 0.0
    if user.opcode == "bitcast":
        after = [x for x in scope.values() if user.name in x.operands]
        return min(whole, sum(_read_by(program, scope, x, user.name) for x in after))
    if user.opcode == "fusion":
        return _read_of(program, program[user.attribute("calls")], place)
    if place == 0 and user.opcode in ("dynamic-slice", "slice", "gather"):
        return min(whole, shape_bytes(user.shape))
    return 0.0 if place == 0 and user.opcode == "dynamic-update-slice" else whole


def _written(scope: Computation, part: Instruction, array: str) -> float:
    """Bytes that one output takes: of an array that is changed in place, the change."""
    whole = shape_bytes(array, memory=True)
    while part.opcode == "bitcast":
        part = scope[part.operands[0]]
    if part.opcode == "parameter" or "async_collective_fusion_config" in part.line:
        return 0.0
    if part.opcode == "dynamic-update-slice":
        return min(whole, shape_bytes(scope[part.operands[1]].shape))
    return whole


if __name__ == "__main__":
    # Only here, for icl_jax.main has a flag of the same name.
    config_flags.DEFINE_config_file("config", None, "A file of configs/.")
    flags.DEFINE_string("topology", "v5e:4x4", f"NAME:SIZES; NAME: {', '.join(GENERATIONS)}.")
    flags.DEFINE_string("hlo", None, "A file to write the compiled program to.")
    app.run(main, flags_parser=_parse)
