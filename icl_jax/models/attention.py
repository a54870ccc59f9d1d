"""Softmax attention inside groups, and the positions that restart with each group.

Shape suffixes: B batch, H heads, T queries, S keys, K head_dim.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from icl_jax.models.dropout import dropout
from icl_jax.models.inputs import parameter_dtype

# What is read of a layer's softmax weights (batch, heads, queries, keys): any pytree of arrays.
Reader = Callable[[jax.Array], Any]

# Softmax weights of masked keys are exp(MASKED - max) = 0 to the last bit.
MASKED = -1e30
CAUSAL_BLOCKS = 4  # query blocks of causal attention: only 10 of 16 score blocks are computed
SHORTEST_CUT = 64  # tokens of a row from which that pays: 16 are faster whole, by a fifth of a step


class Place(NamedTuple):
    """Where queries or keys are. A key-value cache stores the places of its keys with them."""

    index_T: jax.Array  # place in the row: causal attention looks back along it
    position_BT: jax.Array  # place in the group: what encodings see; (1, T) if all rows are alike
    group_BT: jax.Array | None  # group of each token, each padding its own; None: one per row

    def part(self, start: int, stop: int) -> "Place":
        group = None if self.group_BT is None else self.group_BT[:, start:stop]
        return Place(self.index_T[start:stop], self.position_BT[:, start:stop], group)

    def window(self, start: int | jax.Array, length: int) -> "Place":
        """`part` from a place that may be known on the device only."""
        cut = lambda x: jax.lax.dynamic_slice_in_dim(x, start, length, axis=-1)  # noqa: E731
        return jax.tree.map(cut, self)


class Cache(NamedTuple):
    """Keys and values of one layer, a slot for each token of a row; or those of all layers."""

    k_BHSK: jax.Array  # stacked over layers: (L, B, H, S, K)
    v_BHSK: jax.Array
    layer: jax.Array | None = None  # of those stacked, the one that is read and written

    def write(self, k_BHTK: jax.Array, v_BHTK: jax.Array, start: int | jax.Array) -> "Cache":
        """With the keys and values of T tokens in the slots from `start` on."""
        place = (0, 0, start, 0) if self.layer is None else (self.layer, 0, 0, start, 0)
        place = tuple(jnp.asarray(n, jnp.int32) for n in place)  # alike under enable_x64 too
        write = lambda kept, new: jax.lax.dynamic_update_slice(  # noqa: E731
            kept, jnp.expand_dims(new, range(kept.ndim - 4)), place
        )
        return self._replace(k_BHSK=write(self.k_BHSK, k_BHTK), v_BHSK=write(self.v_BHSK, v_BHTK))

    def read(self) -> tuple[jax.Array, jax.Array]:
        """The keys and the values."""
        if self.layer is None:
            return self.k_BHSK, self.v_BHSK
        return self.k_BHSK[self.layer], self.v_BHSK[self.layer]


def locate(
    length: int,
    group_BT: jax.Array | None,
    uncounted_BT: jax.Array | None = None,
    *,
    offset: int | jax.Array | None = None,
) -> Place:
    """The places of a row of tokens; `group_BT` has a positive id per group, 0 for padding.

    Uncounted tokens take no position in their group: theirs is -1. The positions of a group count
    from `offset`, 0 unless given.
    """
    place = _locate(length, group_BT, uncounted_BT)
    return place if offset is None else place._replace(position_BT=place.position_BT + offset)


def _locate(length: int, group_BT: jax.Array | None, uncounted_BT: jax.Array | None) -> Place:
    index_T = jnp.arange(length)
    if group_BT is not None:
        # A padding token is a group of its own, so it neither sees nor is seen by any other token.
        group_BT = jnp.where(group_BT <= 0, -1 - index_T[None], group_BT)
    if group_BT is None and uncounted_BT is None:
        return Place(index_T, index_T[None], None)
    earlier_BTT = (index_T[None, :] < index_T[:, None])[None]
    if group_BT is not None:
        earlier_BTT = earlier_BTT & (group_BT[:, :, None] == group_BT[:, None, :])
    if uncounted_BT is None:
        return Place(index_T, jnp.sum(earlier_BTT, axis=-1), group_BT)
    position_BT = jnp.sum(earlier_BTT & ~uncounted_BT[:, None, :], axis=-1)
    return Place(index_T, jnp.where(uncounted_BT, -1, position_BT), group_BT)


def visible(query: Place, key: Place, causal: bool) -> jax.Array | None:
    """Which keys a query may see, as (B or 1, T, S); None: all of them."""
    mask_BTS = None
    if query.group_BT is not None:
        mask_BTS = query.group_BT[:, :, None] == key.group_BT[:, None, :]
    if causal:
        back_BTS = (key.index_T[None, :] <= query.index_T[:, None])[None]
        mask_BTS = back_BTS if mask_BTS is None else mask_BTS & back_BTS
    return mask_BTS


def attend(
    q_BHTK: jax.Array,
    k_BHSK: jax.Array,
    v_BHSK: jax.Array,
    query: Place,
    key: Place,
    *,
    causal: bool,
    slopes_H: jax.Array | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """Softmax attention of queries to the visible keys; ALiBi if slopes are given."""
    options = (causal, slopes_H, dropout_rate)
    length = q_BHTK.shape[2]
    if not causal or length != k_BHSK.shape[2] or length < SHORTEST_CUT:
        return _attend_block(q_BHTK, k_BHSK, v_BHSK, query, key, *options, dropout_key)
    # Queries and keys are the same tokens of each row: a block of queries needs no later keys.
    blocks = []
    for n in range(CAUSAL_BLOCKS):
        start, stop = n * length // CAUSAL_BLOCKS, (n + 1) * length // CAUSAL_BLOCKS
        block_key = None if dropout_key is None else jax.random.fold_in(dropout_key, n)
        parts = q_BHTK[:, :, start:stop], k_BHSK[:, :, :stop], v_BHSK[:, :, :stop]
        places = query.part(start, stop), key.part(0, stop)
        blocks.append(_attend_block(*parts, *places, *options, block_key))
    return jnp.concatenate(blocks, axis=2)


def _attend_block(
    q_BHTK, k_BHSK, v_BHSK, query, key, causal, slopes_H, dropout_rate, dropout_key
) -> jax.Array:
    weights_BHTS = weigh(q_BHTK, k_BHSK, query, key, causal, slopes_H)
    return mix(weights_BHTS, v_BHSK, dropout_rate, dropout_key)


def mix(weights_BHTS, v_BHSK, dropout_rate: float, dropout_key: jax.Array | None) -> jax.Array:
    """The values mixed by the weights, of which dropout leaves out some."""
    axes = ("batch", "heads", None, None)
    weights_BHTS = dropout(weights_BHTS, dropout_rate, dropout_key, axes)
    return jnp.einsum("bhts,bhsk->bhtk", weights_BHTS.astype(v_BHSK.dtype), v_BHSK)


def weigh(
    q_BHTK: jax.Array,
    k_BHSK: jax.Array,
    query: Place,
    key: Place,
    causal: bool,
    slopes_H: jax.Array | None,
) -> jax.Array:
    """The softmax weights of queries over the visible keys (batch, heads, T, S).

    They are float32, or float64 in a float64 network.
    """
    scale, kept = q_BHTK.shape[-1] ** -0.5, parameter_dtype(q_BHTK.dtype.name)
    scores_BHTS = jnp.einsum("bhtk,bhsk->bhts", q_BHTK * scale, k_BHSK, preferred_element_type=kept)
    if slopes_H is not None:
        distance_BTS = jnp.abs(query.position_BT[:, :, None] - key.position_BT[:, None, :])
        slopes_1H11 = slopes_H[None, :, None, None].astype(kept)
        scores_BHTS -= slopes_1H11 * distance_BTS[:, None].astype(kept)
    mask_BTS = visible(query, key, causal)
    if mask_BTS is not None:
        scores_BHTS = jnp.where(mask_BTS[:, None], scores_BHTS, MASKED)
    return jax.nn.softmax(scores_BHTS, axis=-1)


def the_weights(weights_BHTS: jax.Array) -> jax.Array:
    """The reader that takes all."""
    return weights_BHTS


def alibi_slopes(num_heads: int) -> jax.Array:
    """The slope of each head (Press et al. 2022): geometric, interleaved past a power of 2."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (n + 1) / power) for n in range(power)]
    slopes += [2.0 ** (-4.0 * (2 * n + 1) / power) for n in range(num_heads - power)]
    return jnp.array(slopes, jnp.float32)


def sinusoidal(position_BT: jax.Array, dim: int) -> jax.Array:
    """Sines at even, cosines at odd entries; wavelengths 2 to 20,000 pi (Vaswani et al. 2017)."""
    angle_BTF = _angles(position_BT, dim)
    waves = jnp.stack([jnp.sin(angle_BTF), jnp.cos(angle_BTF)], axis=-1)
    return waves.reshape(*position_BT.shape, -1)[..., :dim]


def rotate(x_BHTK: jax.Array, position_BT: jax.Array) -> jax.Array:
    """Rotary positions (Su et al. 2021), halves paired: entry i turns with entry i + K/2."""
    angle_BTF = _angles(position_BT, x_BHTK.shape[-1])[:, None]
    sine, cosine = jnp.sin(angle_BTF), jnp.cos(angle_BTF)
    first, second = jnp.split(x_BHTK.astype(jnp.float32), 2, axis=-1)
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(turned, axis=-1).astype(x_BHTK.dtype)


def _angles(position_BT: jax.Array, dim: int) -> jax.Array:
    frequency_F = 10_000.0 ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
    return position_BT[..., None].astype(jnp.float32) * frequency_F
