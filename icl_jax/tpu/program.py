"""Reads a program compiled for a TPU: what one chip computes, moves in memory and sends."""

from collections.abc import Iterator, Mapping
import math
import re
import textwrap
from typing import NamedTuple

import numpy as np

from icl_jax.tpu.chips import KERNEL_CYCLES
from icl_jax.tpu.kernels import (
    Kernel,
    kernel_cycles,
    kernel_flops,
    kernel_reads,
    read_kernel,
)

COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
NO_TRAFFIC = (
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "call",
    "conditional", "partition-id", "replica-id", "after-all",
)  # fmt: skip


class Collective(NamedTuple):
    """One collective of the program; totals over all its runs in a step."""

    kind: str
    sent: float  # bytes, in total by one chip
    times: int
    group: tuple[int, ...]  # places in the mesh of the chips that take part
    shape: str
    place: str  # where in the model it comes from


class Cost(NamedTuple):
    """What one chip does in one step."""

    flops: float  # of matrix products
    memory_bytes: float  # read from HBM and written to it
    cycles: float  # the compiler's estimate, without collectives; for kernels our own
    collectives: list[Collective]
    unknown_loops: int  # loops that end by their data: counted once


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
    text = re.sub(r"kernel_metadata=\{\n(.*)\n\}", r"kernel_metadata={\1}", text)  # else 3 lines
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
    """Each instruction that runs, its computation, that one's name, how often, whether fused."""
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
    """How often a loop `i = first; while (i < last) i += step` runs; None: it ends by its data."""
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


def program_cost(
    text: str, chips: int, chip_cycles: Mapping[str, tuple[float, float]] = KERNEL_CYCLES
) -> Cost:
    """Adds up a compiled program; `chip_cycles` are those of attention kernels on its chip."""
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
        if kernel := called_kernel(computation, instruction):
            flops += times * kernel_flops(kernel)
            cycles += times * kernel_cycles(kernel, chip_cycles)
        loop = instruction.opcode == "while"
        unknown += loop and trip_count(program, computation, instruction) is None
    return Cost(flops, memory_bytes, cycles, collectives(program, chips), unknown)


def called_kernel(computation: Computation, instruction: Instruction) -> Kernel | None:
    """The attention kernel that an instruction calls."""
    if instruction.opcode != "custom-call":
        return None
    return read_kernel(instruction.line, [computation[x].shape for x in instruction.operands])


def collectives(program: Program, chips: int) -> list[Collective]:
    """Every collective of the program; one with separate start and end counts once."""
    found: dict[tuple[str, str], Collective] = {}
    for instruction, computation, name, times, _ in walk(program):
        kind = instruction.opcode.removesuffix("-start")
        if kind not in COLLECTIVES:
            continue
        group = replica_group(instruction.line, chips)
        size = sum(shape_bytes(computation[x].shape) for x in instruction.operands)
        if name.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"  # the TPU compiler fuses an all-reduce and a slice
        share = (len(group) - 1) / len(group)
        factor = {"all-gather": len(group) * share, "all-reduce": 2 * share}
        factor["collective-permute"] = 1.0
        sent = size * factor.get(kind, share) * times
        place = re.search(r'op_name="(.*?)"', instruction.line)
        shape = textwrap.shorten(re.sub(r"\{.*?\}", "", instruction.shape), 80)
        entry = Collective(kind, sent, times, group, shape, place[1] if place else "")
        # A chain of fusions repeats an asynchronous collective, even in loops inside the chain.
        chained = "async_collective_fusion_config" in instruction.line
        # Inside shard_map, several collectives may share a channel.
        channel = instruction.attribute("channel_id") or instruction.name
        key = ("", channel) if chained else (name, instruction.name)
        found[key] = min(entry, found.get(key, entry), key=lambda x: x.times)
    return list(found.values())


def replica_group(line: str, chips: int) -> tuple[int, ...]:
    """The places of the chips in the first one's group; for a permutation, of all chips."""
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
    """Bytes of all arrays of a shape; `memory`: only of those in HBM, padded to tiles."""
    total = 0.0
    for dtype, sizes, layout in re.findall(r"([a-z]+\d*\w*)\[([\d,]*)\](?:\{(.*?)\})?", shape):
        if memory and "S(" in layout:  # in on-chip memory
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
    """Bytes that an unfused instruction reads from and writes to HBM."""
    opcode = instruction.opcode
    if opcode in NO_TRAFFIC or opcode.endswith("-done"):
        return 0.0
    arrays = re.findall(r"[a-z]+\d*\w*\[[\d,]*\](?:\{.*?\})?", instruction.shape)
    if opcode.endswith("-start"):  # returns (to, from) for a copy, (from, to) for a collective
        target = arrays[0 if opcode in ("copy-start", "slice-start") else min(1, len(arrays) - 1)]
        source = shape_bytes(scope[instruction.operands[0]].shape, memory=True)
        return min(source, shape_bytes(target)) + shape_bytes(target, memory=True)
    root = instruction
    if opcode == "fusion":
        scope = program[instruction.attribute("calls")]
        root = _root(scope)
        read = sum(_read_of(program, scope, n) for n in range(len(instruction.operands)))
    elif kernel := called_kernel(scope, instruction):
        sizes = [shape_bytes(scope[x].shape, memory=True) for x in instruction.operands]
        return kernel_reads(kernel, sizes) + shape_bytes(instruction.shape, memory=True)
    else:
        read = sum(_read_by(program, scope, instruction, x) for x in set(instruction.operands))
    parts = [scope[x] for x in root.operands] if root.opcode == "tuple" else [root]
    return read + sum(_written(scope, part, array) for part, array in zip(parts, arrays))


def _read_of(program: Program, fused: Computation, n: int) -> float:
    """Bytes that a fusion reads from its n-th operand."""
    operand = next(x for x in fused.values() if x.opcode == "parameter" and x.operands == [str(n)])
    users = [x for x in fused.values() if operand.name in x.operands]
    read = sum(_read_by(program, fused, user, operand.name) for user in users)
    return min(read, shape_bytes(operand.shape, memory=True))


def _read_by(program: Program, scope: Computation, user: Instruction, name: str) -> float:
    """Bytes that `user` reads from the array `name`: if it takes a slice, the slice."""
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
    """Bytes that one output writes: if an array is updated in place, the update."""
    whole = shape_bytes(array, memory=True)
    while part.opcode == "bitcast":
        part = scope[part.operands[0]]
    if part.opcode == "parameter" or "async_collective_fusion_config" in part.line:
        return 0.0
    if part.opcode == "dynamic-update-slice":
        return min(whole, shape_bytes(scope[part.operands[1]].shape))
    return whole
