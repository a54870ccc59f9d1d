"""The TPU compiler's verdict without a TPU: the numbers agree, and what is too big is named."""
# ruff: noqa: E501 - HLO has long lines

import importlib.util
import json
import os
from pathlib import Path
import subprocess
import sys

import pytest

from icl_jax.config import ConfigError, ExperimentConfig, MeshConfig
from icl_jax.tpu import compile as tool
from icl_jax.tpu import program as tpu_program
from icl_jax.training.metrics import flops_per_token

ROOT = Path(__file__).parents[2]
SMALL = [  # compiles in a few seconds
    "--config.model.num_layers=2", "--config.model.scan_layers=true",
    "--config.batch_size=2", "--config.sequence_length=32", "--config.optimizer.clip_norm=0",
]  # fmt: skip

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no libtpu")


def run(*args, config="tiny", stack=None):
    """As a user runs it: with the compiler's own settings, not those of the tests."""
    module = "icl_jax.tpu.compile"
    command = [sys.executable, "-m", module, f"--config=configs/{config}.py", *args]
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    if stack is not None:
        command = ["bash", "-c", f'ulimit -s {stack} && exec "$@"', "bash", *command]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)


def numbers_of(*args):
    finished = run(*SMALL, *args)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1]), finished.stdout


@needs_libtpu
@pytest.mark.slow
def test_two_chips_share_the_state_and_talk_to_each_other():
    numbers, shown = numbers_of(
        "--topology=v5e:1x2", "--config.mesh.data=1", "--config.mesh.fsdp=2"
    )
    assert numbers["mesh"] == {"data": 1, "fsdp": 2, "tensor": 1}
    assert numbers["parameters"] == 478_720  # 2 blocks of 198,272, 640 x 128 rows, the last norm
    # Parameters and both moments in float32, half on each chip; the new ones lie in their place.
    memory = numbers["memory"]
    assert 1 <= memory["arguments"] / (478_720 * 12 / 2) < 1.5  # tiles are padded
    assert -memory["outputs_in_place_of_arguments"] == pytest.approx(memory["arguments"], rel=0.02)
    assert memory["total"] < memory["available"] == pytest.approx(15.75 * 2**30)
    assert numbers["sent"]["all-gather"] > 0
    assert numbers["sent"]["all-reduce"] + numbers["sent"]["reduce-scatter"] > 0
    assert numbers["seconds"]["largest"] <= numbers["seconds"]["sum"]
    assert 0 < numbers["utilisation"]["sum"] <= numbers["utilisation"]["largest"] < 1
    assert "478,720 parameters" in shown and "of 15.75 GB" in shown


@needs_libtpu
@pytest.mark.parametrize(
    "smaller",
    [
        ["--topology=v5e:1x1", "--config.model.num_layers=2", "--config.batch_size=2"],
        pytest.param(["--topology=v5e:4x4"], marks=pytest.mark.slow),  # as docs/training.md has it
    ],
)
def test_the_medium_step_compiles_with_its_dropout_on_a_usual_stack(smaller):
    finished = run(*smaller, config="gpt_medium_regular", stack=8192)
    assert finished.returncode == 0, (finished.returncode, finished.stderr[-2000:])
    numbers = json.loads(finished.stdout.splitlines()[-1])
    assert numbers["fits"] and numbers["seconds"]["cycles"] > 0


@needs_libtpu
@pytest.mark.slow
def test_one_chip_sends_nothing_and_loops_count_as_often_as_they_run():
    numbers, _ = numbers_of("--topology=v5e:1x1")
    assert set(numbers["sent"].values()) == {0.0}
    assert numbers["unknown_loops"] == 0
    # The model counts all pairs of attention, the program those of causal blocks: 10 of 16.
    config = ExperimentConfig(batch_size=2, sequence_length=32)
    config.model.num_layers, config.model.embed_dim, config.model.num_heads = 2, 128, 4
    config.model.vocab_size = 512
    assert numbers["model_flops"] == flops_per_token(config) * 2 * 32
    pairs = 6 * 2 * 2 * 32 * 128 * 2 * 32
    expected = numbers["model_flops"] - pairs * 6 / 16
    assert numbers["compiled_flops"] == pytest.approx(expected, rel=0.01)
    assert numbers["flops_with_loops_once"] < numbers["compiled_flops"]


@needs_libtpu
@pytest.mark.slow
def test_a_step_that_cannot_fit_says_what_it_needs_and_what_to_try():
    big = ["--config.model.vocab_size=4000000", "--config.model.embed_dim=1024"]
    stopped = run(*SMALL, "--topology=v5e:1x1", *big)
    assert stopped.returncode == 1
    assert stopped.stderr.startswith("error: does not fit: needs ")
    assert "has 15.75 GB; try --config.model.remat=full, " in stopped.stderr
    assert stopped.stderr.count("\n") == 1
    last = json.loads(stopped.stdout.splitlines()[-1])
    assert not last["fits"] and last["needed"] > last["available"]


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("v9:2x2", "a NAME among v4, v5e, v5p, v6e, got 'v9:2x2'"),
        ("v5e", "expected --topology=NAME:SIZES"),
        ("v4:4x4", "a slice of v4 has 3 dimensions, got 'v4:4x4'"),
    ],
)
def test_a_wrong_topology_is_named(topology, message):
    with pytest.raises(ConfigError, match=message):
        tool.topology_devices(topology)


def test_a_missing_compiler_is_asked_for(monkeypatch):
    monkeypatch.setattr(tool.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[tpu\]'"):
        tool.topology_devices("v5e:2x2")


@needs_libtpu
@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (MeshConfig(data=4), "batch_size 6 is not divisible by mesh.data 4"),
        (MeshConfig(data=3), "needs 3 devices, but there are 4"),
    ],
)
def test_a_mesh_that_does_not_divide_chips_or_batch_is_refused(mesh, message):
    with pytest.raises(ConfigError, match=message):
        tool.measure(ExperimentConfig(batch_size=6, mesh=mesh), "v5e:2x2")


def test_a_wrong_flag_stops_in_one_line_also_with_an_arm_of_a_config():
    stopped = run("--config=configs/roberta_base_knn_tapt.py:task_only", "--topology=v9:2x2")
    assert stopped.returncode == 2
    assert stopped.stderr.startswith("error: expected --topology=NAME:SIZES")
    assert stopped.stderr.count("\n") == 1


# A loop of 3 rounds around: a gather that is started and awaited apart, one more in a chain of two
# fusions (the second of them in an inner loop of 2 rounds), and a scattered sum.
PROGRAM = """\
HloModule jit_step, is_scheduled=true

%start (p.1: bf16[4,128]) -> bf16[16,128] {
  %p.1 = bf16[4,128]{1,0} parameter(0)
  ROOT %all-gather.9 = bf16[16,128]{1,0} all-gather(%p.1), channel_id=7, replica_groups=[2,4]<=[8], dimensions={0}, backend_config={"async_collective_fusion_config":{}}
}

%all-reduce-scatter.2 (p.2: f32[16,128]) -> f32[4,128] {
  %p.2 = f32[16,128]{1,0} parameter(0)
  %all-reduce.1 = f32[16,128]{1,0} all-reduce(%p.2), channel_id=3, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  ROOT %dynamic-slice.1 = f32[4,128]{1,0} dynamic-slice(%all-reduce.1, %p.2), dynamic_slice_sizes={4,128}
}

%inner_condition (s.1: (s32[], bf16[4,128])) -> pred[] {
  %s.1 = (s32[], bf16[4,128]{1,0}) parameter(0)
  %n.1 = s32[] constant(4)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  ROOT %less.1 = pred[] compare(%i.1, %n.1), direction=LT
}

%inner_body (s.2: (s32[], bf16[4,128])) -> (s32[], bf16[4,128]) {
  %s.2 = (s32[], bf16[4,128]{1,0}) parameter(0)
  %two = s32[] constant(2)
  %i.2 = s32[] get-tuple-element(%s.2), index=0
  %x.2 = bf16[4,128]{1,0} get-tuple-element(%s.2), index=1
  %chain.2 = bf16[16,128]{1,0} fusion(%x.2), kind=kCustom, calls=%start
  %next.2 = s32[] add(%i.2, %two)
  ROOT %out.2 = (s32[], /*index=1*/bf16[4,128]{1,0}) tuple(%next.2, %x.2)
}

%condition (s.3: (s32[], bf16[4,128], f32[16,128])) -> pred[] {
  %s.3 = (s32[], bf16[4,128]{1,0}, f32[16,128]{1,0}) parameter(0)
  %n.3 = s32[] constant(3)
  %i.3 = s32[] get-tuple-element(%s.3), index=0
  ROOT %less.3 = pred[] compare(%i.3, %n.3), direction=LT
}

%body (s.4: (s32[], bf16[4,128], f32[16,128])) -> (s32[], bf16[4,128], f32[16,128]) {
  %s.4 = (s32[], bf16[4,128]{1,0}, f32[16,128]{1,0}) parameter(0)
  %one = s32[] constant(1)
  %zero.4 = s32[] constant(0)
  %i.4 = s32[] get-tuple-element(%s.4), index=0
  %x.4 = bf16[4,128]{1,0} get-tuple-element(%s.4), index=1
  %y.4 = f32[16,128]{1,0} get-tuple-element(%s.4), index=2
  %gather = (bf16[4,128]{1,0}, bf16[8,128]{1,0}) all-gather-start(%x.4), channel_id=1, replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_1'}, dimensions={0}
  %gathered = bf16[8,128]{1,0} all-gather-done(%gather)
  %chain.1 = bf16[16,128]{1,0} fusion(%x.4), kind=kCustom, calls=%start
  %scattered = f32[4,128]{1,0} fusion(%y.4), kind=kCustom, calls=%all-reduce-scatter.2
  %inner = (s32[], bf16[4,128]{1,0}) tuple(%zero.4, %x.4)
  %while.2 = (s32[], bf16[4,128]{1,0}) while(%inner), condition=%inner_condition, body=%inner_body
  %next.4 = s32[] add(%i.4, %one)
  ROOT %out.4 = (s32[], bf16[4,128]{1,0}, f32[16,128]{1,0}) tuple(%next.4, %x.4, %y.4)
}

ENTRY %main (a: bf16[4,128], b: f32[16,128]) -> f32[16,128] {
  %a = bf16[4,128]{1,0} parameter(0)
  %b = f32[16,128]{1,0} parameter(1)
  %zero = s32[] constant(0)
  %state = (s32[], bf16[4,128]{1,0}, f32[16,128]{1,0}) tuple(%zero, %a, %b)
  %while.1 = (s32[], bf16[4,128]{1,0}, f32[16,128]{1,0}) while(%state), condition=%condition, body=%body
  %sum = f32[16,128]{1,0} all-reduce(%b), channel_id=4, replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  ROOT %moved = f32[16,128]{1,0} collective-permute(%sum), channel_id=5, source_target_pairs={{0,1},{1,0}}
}
"""


def test_collectives_count_once_per_round_with_the_bytes_that_a_ring_sends():
    cost = tpu_program.program_cost(PROGRAM, chips=8)
    found = {(x.kind, x.times, x.group): x.sent for x in cost.collectives}
    shard, whole = 4 * 128 * 2, 16 * 128 * 4
    assert found == {
        ("all-gather", 3, (0, 1)): 3 * 1 * shard,
        ("all-gather", 3, (0, 1, 2, 3)): 3 * 3 * shard,
        ("reduce-scatter", 3, (0, 1, 2, 3)): 3 * whole * 3 / 4,
        ("all-reduce", 1, tuple(range(8))): 2 * whole * 7 / 8,
        ("collective-permute", 1, (0, 1)): whole,
    }
    assert cost.unknown_loops == 0


def test_a_loop_that_ends_by_its_data_is_reported_and_counted_once():
    cost = tpu_program.program_cost(PROGRAM.replace("%n.3 = s32[] constant(3)", ""
                             "%n.3 = s32[] get-tuple-element(%s.3), index=0"), chips=8)  # fmt: skip
    assert cost.unknown_loops == 1
    assert {x.times for x in cost.collectives} == {1}


@pytest.mark.parametrize(
    ("attributes", "group"),
    [
        ("replica_groups={{0,4},{1,5}}", (0, 4)),
        ("replica_groups=[4,2]<=[8]", (0, 1)),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", (0, 4)),
        ("replica_groups=mesh['a'=2,'b'=4] {'b'}", (0, 1, 2, 3)),
        ("replica_groups=mesh['a'=2,'b'=2,'c'=2] {'a','c'}", (0, 1, 4, 5)),
    ],
)
def test_every_way_to_write_a_group_is_read(attributes, group):
    assert (
        tpu_program.replica_group(f"%x = f32[] all-reduce(%y), {attributes}, to_apply=%z", 8)
        == group
    )


def test_flops_of_products_leave_out_padding_and_holes():
    lines = """
ENTRY %main () -> f32[] {
  %a = bf16[2,4,32,16]{3,2,1,0} parameter(0)
  %b = bf16[2,4,64,16]{3,2,1,0} parameter(1)
  %c = bf16[32,16]{1,0} parameter(2)
  %batched = f32[2,4,32,64]{3,2,1,0} convolution(%a, %b), window={size=2x4 stride=1x3 lhs_dilate=2x4}, dim_labels=01bf_01oi->01bf
  %plain = f32[32,32]{1,0} dot(%c, %c), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT %r = f32[] constant(0)
}"""
    # A product of 2 x 4 pairs of matrices, written as a convolution with holes in its input.
    program = tpu_program.parse_program(lines)
    flops = {name: tpu_program.product_flops(program[""], x) for name, x in program[""].items()}
    assert flops["batched"] == 2 * (2 * 4) * 32 * 64 * 16
    assert flops["plain"] == 2 * 32 * 32 * 16
    assert flops["a"] == 0


def test_memory_traffic_counts_cuts_and_changes_in_place_not_the_whole_array():
    lines = """
%cut (p.1: f32[24,8,128], p.2: s32[]) -> f32[1,8,128] {
  %p.1 = f32[24,8,128]{2,1,0:T(8,128)} parameter(0)
  %p.2 = s32[]{:S(6)} parameter(1)
  ROOT %slice = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%p.1, %p.2), dynamic_slice_sizes={1,8,128}
}
ENTRY %main () -> f32[] {
  %all = f32[24,8,128]{2,1,0:T(8,128)} parameter(0)
  %n = s32[]{:S(6)} constant(0)
  %layer = f32[1,8,128]{2,1,0:T(8,128)} fusion(%all, %n), kind=kLoop, calls=%cut
  %near = f32[1,8,128]{2,1,0:T(8,128)S(1)} copy(%layer)
  %new = f32[24,8,128]{2,1,0:T(8,128)} dynamic-update-slice(%all, %near, %n)
  %thin = f32[8,1]{1,0:T(8,128)} copy(%near)
  ROOT %r = f32[] constant(0)
}"""
    program = tpu_program.parse_program(lines)
    bytes_of = {
        name: tpu_program.memory_traffic(program, program[""], x) for name, x in program[""].items()
    }
    layer = 8 * 128 * 4
    assert bytes_of["layer"] == 2 * layer  # read and written
    assert bytes_of["near"] == layer  # read; S(1) is not HBM
    assert bytes_of["new"] == layer
    assert bytes_of["thin"] == layer  # a tile is padded to 8 x 128


def test_links_are_those_of_the_dimensions_that_a_group_spans():
    square = [(x, y, 0) for x in range(4) for y in range(4)]
    assert tool._links(square, square, ring=16) == 2
    assert tool._links(square[:4], square, ring=16) == 1
    assert tool._links(square, square, ring=4) == 4  # both dimensions close to rings
    assert tool._links(square[:1], square, ring=4) == 1
