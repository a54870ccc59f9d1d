"""The attention core: a key-value cache fits, positional encodings are what they are called."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.models.attention import (
    SHORTEST_CUT,
    alibi_slopes,
    attend,
    dropout,
    locate,
    rotate,
    sinusoidal,
)  # fmt: skip

pytestmark = pytest.mark.delicate

GROUP = jnp.array([[1, 1, 1, 2, 2, 2, 2, 2, 2, 0, 3], [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]])


def qkv(seed=0, length=11):
    return jax.random.normal(jax.random.key(seed), (3, 2, 3, length, 5))


def plain_attention(q, k, v, group, causal, slopes=None):
    """Attention of one query after the other, with loops."""
    out = np.zeros(q.shape)
    for b, h, t in np.ndindex(q.shape[:3]):
        keys = [s for s in range(q.shape[2]) if (s <= t or not causal) and (
            group is None or (group[b, s] == group[b, t] != 0) or s == t)]  # fmt: skip
        scores = np.array([q[b, h, t] @ k[b, h, s] / np.sqrt(q.shape[3]) for s in keys])
        if slopes is not None:
            scores -= slopes[h] * np.abs(t - np.array(keys))
        weights = np.exp(scores - scores.max())
        out[b, h, t] = sum(w * v[b, h, s] for w, s in zip(weights / weights.sum(), keys))
    return out


@pytest.mark.parametrize("group", [None, GROUP], ids=["rows", "groups"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_attention_equals_one_query_after_the_other(causal, group):
    q, k, v = qkv()
    place = locate(11, group)
    expected = plain_attention(*np.asarray(qkv(), np.float64), group, causal)
    np.testing.assert_allclose(attend(q, k, v, place, place, causal=causal), expected, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_alibi_takes_the_distance_off_the_scores(causal):
    q, k, v = qkv()
    place, slopes = locate(11, None), alibi_slopes(3)
    expected = plain_attention(*np.asarray(qkv(), np.float64), None, causal, np.asarray(slopes))
    got = attend(q, k, v, place, place, causal=causal, slopes_H=slopes)
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("slopes", [None, alibi_slopes(3)], ids=["plain", "alibi"])
def test_long_rows_are_cut_into_blocks_that_equal_the_whole(slopes):
    length = SHORTEST_CUT + 3
    group = np.sort(np.random.default_rng(0).integers(0, 4, (2, length)))
    q, k, v = qkv(length=length)
    place = locate(length, jnp.asarray(group))
    exact = (*np.asarray(qkv(length=length), np.float64), group, True)
    expected = plain_attention(*exact, None if slopes is None else np.asarray(slopes))
    forward = lambda: attend(q, k, v, place, place, causal=True, slopes_H=slopes)  # noqa: E731
    np.testing.assert_allclose(forward(), expected, atol=1e-5)
    # The first quarter of the queries looks at a quarter of the keys.
    assert f",{length // 4},{length // 4}]" in str(jax.make_jaxpr(forward)())


@pytest.mark.parametrize("slopes", [None, alibi_slopes(3)], ids=["plain", "alibi"])
def test_one_query_against_cached_keys_equals_the_whole_row(slopes):
    q, k, v = qkv()
    place = locate(11, GROUP)
    whole = attend(q, k, v, place, place, causal=True, slopes_H=slopes)
    for t in (0, 4, 10):
        cached = attend(
            q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1],
            place.part(t, t + 1), place.part(0, t + 1), causal=True, slopes_H=slopes,
        )  # fmt: skip
        np.testing.assert_allclose(cached[:, :, 0], whole[:, :, t], atol=1e-6)


def test_later_keys_in_a_cache_that_is_not_full_are_not_seen():
    q, k, v = qkv()
    place = locate(11, None)
    whole = attend(q, k, v, place, place, causal=True)
    one = attend(q[:, :, 4:5], k, v, place.part(4, 5), place, causal=True)
    np.testing.assert_allclose(one[:, :, 0], whole[:, :, 4], atol=1e-6)


def test_sinusoidal_entries():
    got = sinusoidal(jnp.arange(6)[None], 7)[0]
    for position in range(6):
        for entry in range(7):
            wave = np.sin if entry % 2 == 0 else np.cos
            angle = position / 10_000 ** ((entry - entry % 2) / 7)
            np.testing.assert_allclose(got[position, entry], wave(angle), atol=1e-5)


def test_rotary_scores_depend_on_the_distance_alone():
    q, k, _ = qkv(length=1)[..., :4]
    scores = [
        jnp.sum(rotate(q, jnp.array([[a]] * 2)) * rotate(k, jnp.array([[b]] * 2)))
        for a, b in ((3, 1), (9, 7), (2, 2))
    ]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-4)
    assert abs(scores[0] - scores[2]) > 1e-3


def test_dropout_keeps_the_mean_and_needs_a_key():
    x = jnp.ones((400, 500))
    dropped = dropout(x, 0.3, jax.random.key(0))
    np.testing.assert_allclose(dropped.mean(), 1.0, atol=0.01)
    np.testing.assert_allclose((dropped == 0).mean(), 0.3, atol=0.01)
    assert dropout(x, 0.3, None) is x
