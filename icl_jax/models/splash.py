"""Splash attention, a TPU kernel that keeps no scores in main memory.

Shape suffixes: B batch, H heads, T tokens, both queries and keys, K head_dim.
"""

import functools

import jax
import jax.numpy as jnp

from icl_jax.config import ConfigError
from icl_jax.config.model import SPLASH_HEAD_UNIT
from icl_jax.models.attention import Place
from icl_jax.sharding import platform, spec

SHORTEST = 1024  # tokens from which the kernel is faster (docs/tpu_sharding.md)
UNIT = 128  # the tokens of a block are a multiple of this
LARGEST_BLOCK = 1024  # larger blocks do not fit into the memory beside the matrix units


def choose_splash(kind: str, length: int, head_dim: int, *, alibi: bool, dropout: bool) -> bool:
    """Whether to use the kernel; `kind` is the config's `attention`."""
    if kind == "splash" and dropout:
        raise ConfigError(
            "attention='splash' has no attention dropout, but attention_dropout is above 0 and a "
            "dropout key is given; set attention_dropout=0 or attention='auto'"
        )
    if kind == "splash" and platform() not in ("tpu", "cpu"):
        raise ConfigError(
            f"attention='splash' is a kernel of the TPU, but this runs on '{platform()}'; "
            "set attention='auto'"
        )
    if kind != "auto":
        return kind == "splash"
    able = not (alibi or dropout or head_dim % SPLASH_HEAD_UNIT)
    return able and platform() == "tpu" and length >= SHORTEST


def splash_attend(
    q_BHTK: jax.Array, k_BHTK: jax.Array, v_BHTK: jax.Array, place: Place, *, causal: bool
) -> jax.Array:
    """As `attend`, for tokens that attend to each other; slow on a CPU, where it is interpreted."""
    mix = functools.partial(_mix, causal=causal, interpret=platform() == "cpu")
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        # The compiler cannot shard a kernel: each device runs it on its own rows and heads.
        heads = spec(("batch", "heads", None, None), q_BHTK.shape, mesh)
        rows = spec(("batch", None), (q_BHTK.shape[0], q_BHTK.shape[2]), mesh)
        mix = jax.shard_map(
            mix, in_specs=(heads, heads, heads, rows), out_specs=heads, check_vma=False
        )
    return mix(q_BHTK, k_BHTK, v_BHTK, place.group_BT)


def _mix(q_BHTK, k_BHTK, v_BHTK, group_BT, *, causal: bool, interpret: bool) -> jax.Array:
    # Imported here because nothing else needs them and they take a second.
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        CausalMask,
        FullMask,
        MultiHeadMask,
        SegmentIds,
        make_splash_mha_single_device,
    )

    heads, length, head_dim = q_BHTK.shape[1:]
    padding = -length % UNIT
    if padding and group_BT is None and not causal:
        group_BT = jnp.ones((q_BHTK.shape[0], length), jnp.int32)
    if padding:
        after = (0, padding)
        q_BHTK, k_BHTK, v_BHTK = (
            jnp.pad(x, ((0, 0), (0, 0), after, (0, 0))) for x in (q_BHTK, k_BHTK, v_BHTK)
        )
        if group_BT is not None:
            group_BT = jnp.pad(group_BT, ((0, 0), after))  # `locate` leaves the id 0 to no one
    shape = (length + padding,) * 2
    mask = CausalMask(shape) if causal else FullMask(shape)
    kernel = make_splash_mha_single_device(
        MultiHeadMask([mask] * heads), block_sizes=_blocks(length + padding), interpret=interpret
    )
    segments = None if group_BT is None else SegmentIds(group_BT, group_BT)
    mixed_BHTK = jax.vmap(kernel)(q_BHTK * head_dim**-0.5, k_BHTK, v_BHTK, segments)
    return mixed_BHTK[:, :, :length]


def _blocks(length: int):
    from jax.experimental.pallas.ops.tpu.splash_attention import BlockSizes, QKVLayout

    largest = min(LARGEST_BLOCK, length)
    size = max(n for n in range(UNIT, largest + 1, UNIT) if length % n == 0)
    sizes = dict.fromkeys(
        ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq"), size
    )
    # Heads of 64 would fill half a tile; tokens along the tile fill all of it. The rest of the step
    # uses the same layout, so this takes half the bytes and no copies.
    layouts = dict.fromkeys(("q_layout", "k_layout", "v_layout"), QKVLayout.SEQ_MINOR)
    return BlockSizes(**sizes, **layouts)
