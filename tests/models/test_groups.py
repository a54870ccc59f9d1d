"""Tokens see their own group, across any separator, and nothing else: exactly nothing.

Proven by perturbation: change one token, and look at which outputs move.
"""

import dataclasses

from flax import nnx
import jax
import numpy as np
import pytest

from icl_jax.config import (
    GPTConfig,
    LinearAttentionConfig,
    LSTMConfig,
    MeshConfig,
    RobertaConfig,
)
from icl_jax.models.attention import locate
from icl_jax.models.kinds import KINDS
from icl_jax.sharding import make_mesh, state_shardings
from tests.models.small import make_model

# Groups of several sizes, a group in two pieces, and padding inside, between and behind.
GROUPS = np.array(
    [
        [1, 1, 1, 1, 1, 2, 2, 2, 0, 3, 3, 3, 3, 3, 3, 3, 3, 0, 0],
        [0, 0, 4, 4, 4, 4, 4, 4, 4, 1, 1, 1, 2, 2, 4, 4, 4, 7, 0],
        [1] * 19,
    ]
)

SMALL = {"vocab_size": 31, "context_length": 23, "num_layers": 2, "embed_dim": 12, "num_heads": 3}
VARIANTS = {
    "gpt": GPTConfig(**SMALL),
    "gpt scanned, rematerialised": GPTConfig(**SMALL, scan_layers=True, remat="full"),
    "gpt bfloat16": GPTConfig(**SMALL, dtype="bfloat16"),
    "gpt alibi": GPTConfig(**SMALL, position="alibi"),
    "gpt rotary": GPTConfig(**SMALL, position="rotary"),
    "gpt sinusoidal": GPTConfig(**SMALL, position="sinusoidal"),
    "gpt linear positions": GPTConfig(**SMALL, position="linear"),
    "gpt no positions": GPTConfig(**SMALL, position="none"),
    "gpt no norms": GPTConfig(**SMALL, norm="none", mlp_layers=2),
    "roberta": RobertaConfig(**SMALL),
    "roberta scanned": RobertaConfig(**SMALL, scan_layers=True),
    "roberta bfloat16": RobertaConfig(**SMALL, dtype="bfloat16"),
    "roberta sinusoidal": RobertaConfig(**SMALL, position="sinusoidal", remat="dots"),
    "roberta alibi": RobertaConfig(**SMALL, position="alibi"),
    "roberta rotary": RobertaConfig(**SMALL, position="rotary"),
    "bert": RobertaConfig(**SMALL, position_offset=0, pad_token_id=0, token_types=2),
    "analysed": LinearAttentionConfig(**SMALL),
    "analysed scanned, bfloat16": LinearAttentionConfig(
        **SMALL, scan_layers=True, dtype="bfloat16"
    ),
    "analysed causal": LinearAttentionConfig(**SMALL, causal=True),
    "analysed with residual": LinearAttentionConfig(**SMALL, residual=True, position="learned"),
    "lstm": LSTMConfig(vocab_size=31, num_layers=2, embed_dim=5, hidden_dim=7),
}


def is_causal(config):
    return isinstance(config, GPTConfig | LSTMConfig) or getattr(config, "causal", False)


def as_seen(config, group):
    """The groups as the model sees them: to an LSTM, the pieces of one are two."""
    if not isinstance(config, LSTMConfig):
        return group
    starts = np.diff(group, axis=1, prepend=-1) != 0
    return np.where(group, np.cumsum(starts, axis=1), 0)


def expected_to_move(group, row, place, causal):
    """Where outputs may and must move when the token at (row, place) changes."""
    moves = np.zeros(group.shape, bool)
    if group[row, place] != 0:
        moves[row] = group[row] == group[row, place]
        if causal:
            moves[row, :place] = False
    moves[row, place] = True
    return moves


def another(token, config):
    """Another token; never RoBERTa's padding token, which takes no position."""
    return token + 1 if token + 1 < config.vocab_size else 2


CASES = [(name, 19) for name in VARIANTS]
CASES += [(name, 3) for name in ("gpt", "gpt alibi", "roberta")]  # too short for causal blocks


@pytest.mark.parametrize(("name", "length"), CASES)
def test_a_changed_token_moves_its_group_and_exactly_nothing_else(name, length):
    config, group = VARIANTS[name], GROUPS[:, :length]
    model = make_model(config)

    def forward(tokens):
        hidden = model.hidden(tokens, group)
        return hidden, model.logits(hidden)

    tokens = np.random.default_rng(0).integers(2, config.vocab_size, group.shape)
    before = forward(tokens)
    for row in range(len(group)):
        for place in range(0, length, 1 if length < 9 else 3):
            changed = tokens.copy()
            changed[row, place] = another(changed[row, place], config)
            seen = as_seen(config, group)
            moves = expected_to_move(seen, row, place, is_causal(config))
            for old, new in zip(before, forward(changed), strict=True):
                moved = np.asarray(old != new).any(axis=-1)
                np.testing.assert_array_equal(moved, moves, err_msg=f"token {row}, {place}")


def test_a_changed_raw_input_of_a_convolution_moves_its_group_only():
    config = LinearAttentionConfig(
        **SMALL, embedding="convolution", kernel_size=2, input_dim=3, tie_head=False
    )
    model = make_model(config)
    raw = np.random.default_rng(0).normal(size=(3, 38, 3)).astype(np.float32)
    before = model(raw, GROUPS)
    for place in (0, 11, 16, 37):
        changed = raw.copy()
        changed[1, place] += 1
        moved = np.asarray(before != model(changed, GROUPS)).any(axis=-1)
        np.testing.assert_array_equal(moved, expected_to_move(GROUPS, 1, place // 2, False))


@pytest.mark.parametrize("name", ["gpt", "roberta", "analysed"])
def test_groups_stay_apart_on_a_mesh(name):
    config = dataclasses.replace(VARIANTS[name], embed_dim=16, num_heads=4)
    graphdef, params = nnx.split(make_model(config))
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    model = nnx.merge(graphdef, jax.device_put(params, state_shardings(params, mesh)))
    group = GROUPS[[0, 1, 2, 0]]
    tokens = np.random.default_rng(0).integers(2, config.vocab_size, group.shape)
    before = model.hidden(tokens, group)
    assert before.sharding.shard_shape(before.shape)[0] == 1
    for row, place in [(0, 5), (1, 3), (1, 18), (3, 8)]:
        changed = tokens.copy()
        changed[row, place] = another(changed[row, place], config)
        moved = np.asarray(before != model.hidden(changed, group)).any(axis=-1)
        np.testing.assert_array_equal(moved, expected_to_move(group, row, place, is_causal(config)))


def test_padding_is_padding_where_ids_are_not_known():
    model = make_model(VARIANTS["gpt"])
    tokens, group = np.arange(2, 14).reshape(1, 12), np.repeat([[0, 1, -1]], [1, 5, 6], axis=1)
    changed = tokens.copy()
    changed[0, 0] += 1
    forward = jax.jit(lambda tokens, group: model(tokens, group))
    moved = np.asarray(forward(tokens, group) != forward(changed, group)).any(axis=-1)
    assert moved[0].tolist() == [True] + [False] * 11


def test_dropout_keeps_groups_apart():
    config = GPTConfig(**SMALL, attention_dropout=0.3)
    model, key = make_model(config), jax.random.key(7)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, GROUPS.shape)
    changed = tokens.copy()
    changed[0, 5] = (changed[0, 5] + 1) % config.vocab_size
    before = model.hidden(tokens, GROUPS, dropout_key=key)
    moved = np.asarray(before != model.hidden(changed, GROUPS, dropout_key=key)).any(axis=-1)
    assert moved[0, 5]
    assert not moved[~expected_to_move(GROUPS, 0, 5, True)].any()


PACKED = ["gpt", "gpt alibi", "gpt rotary", "roberta", "analysed"]


@pytest.mark.parametrize("name", [*PACKED, pytest.param("bert", marks=pytest.mark.slow)])
def test_sequences_packed_as_groups_equal_the_same_sequences_alone(name):
    config = VARIANTS[name]
    model = make_model(config)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, GROUPS.shape)
    packed, packed_hidden = model(tokens, GROUPS), model.hidden(tokens, GROUPS)
    for row, group in [(0, 3), (1, 4)]:
        members = GROUPS[row] == group
        alone = tokens[row][members][None]
        assert_close(packed[row][members], model(alone)[0])
        assert_close(packed_hidden[row][members], model.hidden(alone)[0])


def assert_close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())


def test_one_group_per_row_is_the_default():
    model = make_model(VARIANTS["gpt"])
    tokens = np.random.default_rng(0).integers(0, 31, (2, 7))
    np.testing.assert_array_equal(model(tokens), model(tokens, np.ones((2, 7), np.int32)))


def test_positions_restart_with_each_group():
    positions = locate(19, jax.numpy.asarray(GROUPS, jax.numpy.int32)).position_BT
    expected = np.array(
        [
            [0, 1, 2, 3, 4, 0, 1, 2, 0, 0, 1, 2, 3, 4, 5, 6, 7, 0, 0],
            [0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 0, 1, 7, 8, 9, 0, 0],
            range(19),
        ]
    )
    np.testing.assert_array_equal(positions, expected)


def test_rows_longer_than_the_positions_work_if_no_group_is():
    model = make_model(GPTConfig(**(SMALL | {"context_length": 10})))
    tokens = np.random.default_rng(0).integers(0, 31, (1, 19))
    group = np.repeat([1, 2], [10, 9])[None]
    assert np.isfinite(model(tokens, group)).all()
    with pytest.raises(ValueError, match="group 1 has 11 tokens, but the model has 10 positions"):
        model(tokens, np.repeat([1, 2], [11, 8])[None])
    # Where values are not known, as in a compiled step, the loss turns NaN instead of wrong.
    assert np.isnan(
        jax.jit(lambda *batch: model(*batch))(tokens, np.repeat([1, 2], [11, 8])[None])
    ).any()


def test_every_model_is_proven():
    assert {type(config) for config in VARIANTS.values()} == set(KINDS)
