"""The network of proposition 3 against a loop over the strings, and where it ends."""

import itertools
import math

import jax
import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.sandboxes.flip_flop.exact import (
    SHARPNESS,
    all_strings,
    exact_network,
    greatest_length,
    measure,
)
from icl_jax.sandboxes.flip_flop.language import READ, to_text

IGNORED = (0.1, 0.8, 0.98)


def drawn(length, rows, ignored, seed=0):
    """Rows of FFL(p_i), a token at a time."""
    rng, found = np.random.default_rng(seed), []
    share = (1 - ignored) / 2
    for _ in range(rows):
        middle = rng.choice(3, length // 2 - 2, p=(share, share, ignored)).tolist()
        row, memory = [], 0
        for instruction in [0, *middle, 1]:
            bit = memory if instruction == 1 else int(rng.integers(3, 5))
            memory = bit if instruction == 0 else memory
            row += [instruction, bit]
        found.append(row)
    return np.array(found, np.int32)


def valid(text):
    """Whether a text is a flip-flop string, by its definition."""
    memory = None
    for instruction, bit in zip(text[::2], text[1::2], strict=True):
        if instruction not in "wri" or bit not in "01" or (memory is None and instruction != "w"):
            return False
        if instruction == "w":
            memory = bit
        if instruction == "r" and bit != memory:
            return False
    return text[-2] == "r"


def test_all_strings_are_those_of_the_definition():
    expected = {text for letters in itertools.product("wri01", repeat=6)
                if valid(text := "".join(letters))}  # fmt: skip
    found = to_text(all_strings(6))
    assert len(found) == len(expected) == 10 and set(found) == expected


@pytest.mark.parametrize("sharpness", [1.5, SHARPNESS])
@pytest.mark.parametrize("length", [4, 8, 10])
def test_all_strings_are_read_without_an_error(length, sharpness):
    found = measure(exact_network(length, sharpness=sharpness), all_strings(length))
    assert found["rows"] == 2 * 5 ** (length // 2 - 2) and found["errors"] == 0
    assert 0 < found["off"] <= math.exp(-sharpness)


def test_c_of_only_t_fails():
    for length in (8, 10):
        found = measure(exact_network(length, sharpness=1.0), all_strings(length))
        assert found["errors"] > 0 and found["off"] > math.exp(-1)


@pytest.mark.parametrize("ignored", IGNORED)
def test_a_thousand_random_strings_of_64_tokens_are_read_without_an_error(ignored):
    tokens_BT = drawn(64, 1000, ignored)
    for sharpness in (2.0, SHARPNESS):
        found = measure(exact_network(64, sharpness=sharpness), tokens_BT)
        assert (found["rows"], found["errors"]) == (1000, 0)
        assert found["reads"] == (tokens_BT == READ).sum() > 1000
        assert found["off"] <= math.exp(-sharpness)


@pytest.mark.parametrize("ignored", IGNORED)
def test_strings_of_512_tokens_are_read_without_an_error(ignored):
    found = measure(exact_network(512), drawn(512, 30, ignored))
    assert found["errors"] == 0 and found["off"] <= math.exp(-SHARPNESS)


@pytest.mark.slow
@pytest.mark.parametrize("ignored", IGNORED)
def test_a_thousand_strings_of_512_tokens_are_read_without_an_error(ignored):
    found = measure(exact_network(512), drawn(512, 1000, ignored))
    assert (found["rows"], found["errors"]) == (1000, 0)
    assert found["off"] <= math.exp(-SHARPNESS)


def test_the_bit_after_a_read_is_the_likeliest_of_all_tokens():
    network, tokens_BT = exact_network(10), all_strings(10)
    with jax.enable_x64(True):
        likeliest_BT = np.asarray(network(tokens_BT)).argmax(axis=-1)
    row, place = np.nonzero(tokens_BT == READ)
    np.testing.assert_array_equal(likeliest_BT[row, place], tokens_BT[row, place + 1])


def test_each_layer_looks_where_the_proof_says():
    tokens_T = np.array([0, 4, 2, 3, 0, 3, 2, 4, 1, 3], np.int32)  # w1 i0 w0 i1 r0
    network = exact_network(10, sharpness=20.0)
    with jax.enable_x64(True):
        first_TS, second_TS = np.asarray(network.attention_weights(tokens_T[None]))[:, 0, 0]
    # A bit looks at the write before it; what follows no write at itself.
    assert first_TS.argmax(axis=-1).tolist() == [0, 0, 2, 3, 4, 4, 6, 7, 8, 9]
    # From the first bit on, at the bit written last.
    assert second_TS.argmax(axis=-1)[1:].tolist() == [1, 1, 1, 4, 5, 5, 5, 5, 5]


def test_the_network_has_the_sizes_of_the_proposition():
    config = exact_network(64).config
    assert (config.embed_dim, config.num_layers, config.num_heads, config.head_dim) == (7, 2, 1, 2)
    assert (config.norm, config.activation, config.dtype) == ("none", "relu", "float64")


def test_float32_reads_strings_of_512_tokens_too():
    found = measure(exact_network(512, "float32"), drawn(512, 30, 0.8))
    assert found["errors"] == 0 and found["off"] < math.exp(-0.75 * SHARPNESS)


def rounded_gaps(length):
    """c/2T and c/T as float32 scores of layer 1 and 2 keep them at the end of a row, by NumPy."""
    c, place = np.float32(SHARPNESS * length), np.arange(length - 9, length + 1, dtype=np.float32)
    place = place / np.float32(length)
    bonus = np.float32(1.5) * np.float32(SHARPNESS) + c * place
    return bonus[:-1] - c * place[1:], np.diff(c + c * place)


def test_a_length_that_float32_cannot_hold_is_refused_with_the_reason():
    most = greatest_length("float32")
    for gaps, exact in zip(rounded_gaps(most), (SHARPNESS / 2, SHARPNESS), strict=True):
        assert np.abs(gaps - exact).max() <= SHARPNESS / 8
    first, second = rounded_gaps(2**24)
    assert first.min() <= 0 or second.min() <= 0  # positions that count the same
    message = rf"length {most + 1:,}: .*float32 may round away .*to {most:,} tokens; use dtype='fl"
    with pytest.raises(ConfigError, match=message):
        exact_network(most + 1, "float32")
    assert greatest_length("float64") > 10**12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exact_network(2), "at least 4 tokens, got 2"),
        (lambda: exact_network(8, "bfloat16"), "one of float64, float32, got 'bfloat16'"),
        (lambda: all_strings(7), "even and at least 4, got 7"),
        (lambda: measure(exact_network(8), all_strings(10)), "rows of up to 8 tokens, got 10"),
        (lambda: measure(exact_network(8), np.array([[0, 3, 1, 4]])), "row 0, place 3"),
    ],
)
def test_what_cannot_be_read_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
