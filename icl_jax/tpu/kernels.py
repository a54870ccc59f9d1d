"""What the splash attention kernels of a compiled program cost; the compiler does not say.

A kernel iterates over blocks of queries and keys. It keeps a block of one side (`fwd`, `dq`:
queries; `dkv`: keys) while it reads, one by one, the blocks of the other side that meet it.
"""

from collections.abc import Mapping
import math
import re
from typing import NamedTuple

PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4}  # matrix products for each pair of blocks


class Kernel(NamedTuple):
    """One call of a kernel, read from its name, its operands and its metadata."""

    phase: str
    rows: int
    heads: int
    head_dim: int
    block: dict[str, int]  # tokens of a block, of queries "q" and of keys "k"
    count: dict[str, int]  # blocks of a row
    pairs: int  # blocks that meet, in a row and head
    roles: list[str]  # of the operands

    @property
    def steps(self) -> int:
        return self.rows * self.heads * self.pairs

    @property
    def scores(self) -> int:
        return self.block["q"] * self.block["k"]


def read_kernel(line: str, shapes: list[str]) -> Kernel | None:
    """The kernel that an instruction calls with operands of these shapes; None: it calls none."""
    called = re.search(r'op_name="[^"]*/splash_mha_(fwd|dq|dkv)(_segmented)?\w*/pallas_call"', line)
    if called is None or '"tpu_custom_call"' not in line:
        return None
    phase, segmented = called.groups()
    suffix = "" if phase == "fwd" else f"_{phase}"
    note = lambda name: int(re.search(rf'{name}\\?": (\d+)', line)[1])  # noqa: E731
    block = {"q": note(f"block_q{suffix}"), "k": note(f"block_kv{suffix}")}
    first = next(n for n, shape in enumerate(shapes) if shape.startswith(("bf16", "f32")))
    sizes = [int(size) for size in re.search(r"\[([\d,]+)\]", shapes[first])[1].split(",")]
    *rows, heads, length, head_dim = sizes  # no rows: a single one
    if note("q_layout") != 1:
        length, head_dim = head_dim, length
    count = {side: length // size for side, size in block.items()}
    roles = ["mask"] * first + ["q", "k", "v"]
    roles += ["q_group", "k_group"] if segmented else []
    roles += [] if phase == "fwd" else ["log_sum", "d_out", "d_sum"]
    pairs = count["q"] * count["k"]
    if len(shapes) > len(roles):  # only a causal kernel gets the places of its queries
        roles.append("index")
        pairs = sum(-(-end // block["k"]) for end in range(block["q"], length + 1, block["q"]))
    return Kernel(phase, math.prod(rows), heads, head_dim, block, count, pairs, roles)


def kernel_flops(kernel: Kernel) -> float:
    """Flops of its matrix products, including the masked scores of a block."""
    return 2.0 * PRODUCTS[kernel.phase] * kernel.steps * kernel.scores * kernel.head_dim


def kernel_cycles(kernel: Kernel, chip_cycles: Mapping[str, tuple[float, float]]) -> float:
    """Cycles of all its steps, assuming that memory keeps up."""
    step, score = chip_cycles[kernel.phase]
    return kernel.steps * (step + score * kernel.scores)


def kernel_reads(kernel: Kernel, sizes: list[float]) -> float:
    """Bytes that it reads from operands of these sizes in HBM; a block that stays counts once."""
    total, kept = 0.0, "k" if kernel.phase == "dkv" else "q"
    for role, size in zip(kernel.roles, sizes, strict=True):
        side = "k" if role in ("k", "v", "k_group") else "q"
        times = 1.0 if side == kept or role == "mask" else kernel.pairs / kernel.count[side]
        # What all heads share is read again for each head, unless it is a single block that stays;
        # blocks of keys are the outermost loop of dkv.
        outermost = kernel.phase == "dkv" and side == "k"
        if role in ("q_group", "k_group", "index") and kernel.count[side] > 1 and not outermost:
            times *= kernel.heads * (kernel.rows if role == "index" else 1)
        total += size * times
    return total
