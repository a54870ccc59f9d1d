"""An attention kernel in a compiled program costs what its blocks cost."""
# ruff: noqa: E501 - HLO has long lines

import itertools

import pytest

from icl_jax.tpu import kernels as tpu_kernels
from icl_jax.tpu import program as tpu_program
from icl_jax.tpu.chips import KERNEL_CYCLES
from tests.tpu.test_compile import needs_libtpu, numbers_of

ROWS, HEADS, LENGTH, DIM, BLOCK = 2, 4, 2048, 64, 1024

# As libtpu writes it: the notes of a kernel's maker take lines of their own, also where they are
# handed on to what reads its results.
PROGRAM = r"""
ENTRY %main () -> f32[] {
  %mask = s8[1,2,2]{2,1,0} parameter(0)
  %q = bf16[2,4,64,2048]{3,2,1,0:T(8,128)(2,1)} parameter(1)
  %near = bf16[2,4,64,2048]{3,2,1,0:T(8,128)(2,1)S(1)} parameter(2)
  %group = s32[2,2048,128]{2,1,0:T(8,128)} parameter(3)
  %key_group = s32[2,8,2048]{2,1,0:T(8,128)} parameter(4)
  %index = s32[2048,128]{1,0:T(8,128)} parameter(5)
  %kernel.1 = (f32[2,1024,64]{2,1,0:T(8,128)S(1)}, bf16[2,4,2048,64]{3,2,1,0:T(8,128)(2,1)}) custom-call(%mask, %mask, %q, %q, %near, /*index=5*/%group, %key_group, %index), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\"block_q\": 1024, \"block_kv\": 1024, \"block_q_dq\": 128, \"q_layout\": 2}"
}}, metadata={op_name="jit(f)/splash_mha_fwd_segmented_residuals/pallas_call" stack_frame_id=7}, backend_config={"custom_call_config":{"body":"TUzv"}}
  %out = bf16[2,4,2048,64]{3,2,1,0:T(8,128)(2,1)} get-tuple-element(%kernel.1), index=1
  %copy.1 = bf16[2,4,2048,64]{2,3,1,0:T(8,128)(2,1)} copy(%out), frontend_attributes={kernel_metadata={
"xprof_metadata":"{\"block_q\": 1024, \"q_layout\": 2}"
}}, metadata={op_name="jit(f)/splash_mha_fwd_segmented_residuals/pallas_call"}, backend_config={"window_config":{"estimated_cycles":"5000"}}
  ROOT %r = f32[] constant(0)
}"""


def test_a_kernel_is_counted_by_its_blocks_and_what_is_around_it_as_ever():
    program = tpu_program.parse_program(PROGRAM)
    entry = program[""]
    kernel = tpu_program.called_kernel(entry, entry["kernel.1"])
    assert (kernel.phase, kernel.rows, kernel.heads, kernel.head_dim) == ("fwd", ROWS, HEADS, DIM)
    assert kernel.pairs == 3  # of four pairs of blocks, a causal kernel leaves out one
    assert tpu_program.called_kernel(entry, entry["copy.1"]) is None
    alone = tpu_program.parse_program(PROGRAM.replace("bf16[2,4,", "bf16[4,"))[""]
    assert tpu_program.called_kernel(alone, alone["kernel.1"]) == kernel._replace(rows=1)
    cost = tpu_program.program_cost(PROGRAM, chips=1)
    steps = ROWS * HEADS * 3
    assert cost.flops == steps * 2 * (2 * BLOCK * BLOCK * DIM)
    start, score = KERNEL_CYCLES["fwd"]
    assert cost.cycles == steps * (start + score * BLOCK * BLOCK) + 5000
    array = ROWS * HEADS * LENGTH * DIM * 2
    groups, key_groups, index = ROWS * LENGTH * 512, ROWS * LENGTH * 32, LENGTH * 512
    read = 2 * 4 + array + 1.5 * array  # masks, queries, keys; the values are not in HBM
    read += HEADS * groups + HEADS * 1.5 * key_groups + ROWS * HEADS * index
    padded = 2 * array  # heads of 64 in tiles of 128
    assert tpu_program.memory_traffic(program, entry, entry["kernel.1"]) == read + padded
    assert cost.memory_bytes == read + 2 * padded + array


def blocks_fetched(kernel, role, causal):
    """How often a kernel that goes step by step needs another block of an operand."""
    q, k = range(kernel.count["q"]), range(kernel.count["k"])
    meets = [pair for pair in itertools.product(q, k) if pair[1] <= pair[0] or not causal]
    rows, heads, last, fetched = range(kernel.rows), range(kernel.heads), None, 0
    if kernel.phase == "dkv":
        order = sorted(itertools.product(rows, heads, meets), key=lambda x: (x[0], x[2][1], x[1]))
    else:
        order = itertools.product(rows, heads, meets)
    for row, head, (n, m) in order:
        place = (row, head, m) if role in ("k", "v") else (row, head, n)
        place = {"q_group": (row, n), "k_group": (row, m), "index": (n,)}.get(role, place)
        fetched += place != last
        last = place
    return fetched


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("phase", ["fwd", "dq", "dkv"])
def test_reads_are_those_of_going_through_the_blocks_step_by_step(phase, causal, count):
    pairs = count * (count + 1) // 2 if causal else count * count
    roles = ["q", "k", "v", "q_group", "k_group"]
    roles += (["d_out"] if phase != "fwd" else []) + (["index"] if causal else [])
    sides = {"q": count, "k": count}
    kernel = tpu_kernels.Kernel(phase, ROWS, HEADS, DIM, {}, sides, pairs, roles)
    for n, role in enumerate(roles):
        shares = {"q_group": ROWS, "k_group": ROWS, "index": 1}.get(role, ROWS * HEADS)
        sizes = [0.0] * len(roles)
        sizes[n] = shares * count  # 1 byte a block
        got, exact = tpu_kernels.kernel_reads(kernel, sizes), blocks_fetched(kernel, role, causal)
        # A block that ends one walk and begins the next is not fetched twice; we count it twice.
        assert exact <= got <= (1 if count == 1 else 1.5) * exact, role


@needs_libtpu
@pytest.mark.slow
def test_the_kernels_of_a_compiled_step_are_found_and_counted(tmp_path):
    options = [
        "--topology=v5e:1x1", "--config.model.head_dim=64", "--config.training.dropout=false",
        "--config.sequence_length=128", "--config.model.context_length=128",
    ]  # fmt: skip
    plain, _ = numbers_of(*options, "--config.model.attention=plain")
    file = tmp_path / "step.hlo"
    splash, _ = numbers_of(*options, "--config.model.attention=splash", f"--hlo={file}")
    program = tpu_program.parse_program(file.read_text())
    found = [
        kernel
        for instruction, computation, *_ in tpu_program.walk(program)
        if (kernel := tpu_program.called_kernel(computation, instruction))
    ]
    assert {kernel.phase for kernel in found} == {"fwd", "dq", "dkv"}
    assert {kernel.head_dim for kernel in found} == {64}
    # All pairs and not 10 of 16, and three products more in the backward pass.
    assert splash["compiled_flops"] > plain["compiled_flops"]
