"""Flip-flops read without an error by a GPT of two layers, one head each (Liu 2024, proposition 3).

Layer 1 marks each write and the bit after it; layer 2 copies the bit that is marked last. Both find
it by score: c times the position, t/T, and a bonus that is larger where it counts.
"""

import itertools

import jax
import numpy as np

from icl_jax.config import ConfigError, GPTConfig
from icl_jax.models.gpt import GPT
from icl_jax.sandboxes.automata.exact.assembly import ROUNDINGS, set_weights
from icl_jax.sandboxes.flip_flop.language import (
    IGNORE,
    ONE,
    READ,
    SHORTEST,
    WRITE,
    ZERO,
    check,
)

# e1 to e7. At a read, which is no write, layer 2 puts the bit into e1.
CHANNELS = WRITES, OTHERS, ZEROS, ONES, CONSTANT, PLACE, MARK = range(7)
DTYPES = ("float64", "float32")
SHARPNESS = 4.0  # c / T: the thesis asks for T log T, but layer 1 rounds, so that 1.5 T is enough
UNMARKED, MARKED = 3 / 8, 5 / 8  # layer 1 rounds weights outside these to 0 and 1
MOST_SCORES = 2**24  # of a batch: 128 MB in float64


def exact_network(length: int, dtype: str = "float64", sharpness: float = SHARPNESS) -> GPT:
    """The network for rows of up to `length` tokens, T; `sharpness` is c/T.

    The likeliest token after a read is the bit, and the logit of ONE is the bit as it was copied.
    """
    if length < SHORTEST:
        raise ConfigError(f"length must be at least {SHORTEST} tokens, got {length}")
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got '{dtype}'")
    if length > (most := greatest_length(dtype)):
        hint = "; use dtype='float64'" if dtype == "float32" else ""
        raise ConfigError(
            f"length {length:,}: scores are as large as 2 c = {2 * sharpness * length:,.0f}, and "
            f"{dtype} may round away that two of them differ by c/2T = {sharpness / 2:g}; it is "
            f"sure to hold to {most:,} tokens{hint}"
        )
    config = GPTConfig(
        vocab_size=5, context_length=length, num_layers=2, embed_dim=len(CHANNELS), num_heads=1,
        head_dim=2, mlp_dim=3, activation="relu", norm="none", position="learned", tie_head=False,
        attention="plain", embedding_dropout=0.0, attention_dropout=0.0, residual_dropout=0.0,
        dtype=dtype, scan_layers=True,
    )  # fmt: skip
    return set_weights(config, _weights(config, sharpness))


def greatest_length(dtype: str) -> int:
    """The longest rows whose scores a dtype can tell apart.

    Rounding may take a quarter of the smallest gap, c/2T in layer 1, as if c were a quarter less.
    Two scores of up to 2 c are off by twice 2 c ROUNDINGS epsilon together, so that c cancels out.
    """
    return int(1 / (8 * 4 * ROUNDINGS * np.finfo(dtype).eps))


def _weights(config: GPTConfig, sharpness: float) -> dict[tuple, np.ndarray]:
    """The parameters by their paths, float64; both layers are stacked along the first axis."""
    length, width = config.context_length, config.embed_dim
    c = sharpness * length
    embedding_VD = np.zeros((config.vocab_size, width))
    channels = {WRITE: WRITES, READ: OTHERS, IGNORE: OTHERS, ZERO: ZEROS, ONE: ONES}
    embedding_VD[list(channels), list(channels.values())] = 1.0
    embedding_VD[:, CONSTANT] = 1.0
    position_TD = np.zeros((length, width))
    position_TD[:, PLACE] = np.arange(1, length + 1) / length
    head_VD = np.zeros((config.vocab_size, width))
    head_VD[:, CONSTANT] = -1.0  # no instruction is likelier than a bit
    head_VD[ZERO, CONSTANT] = 0.5
    head_VD[ONE] = np.eye(width)[WRITES]

    query_LDHK, key_LDHK, value_LDHK = np.zeros((3, 2, width, 1, 2))
    out_LHKD = np.zeros((2, 1, 2, width))
    query_LDHK[:, CONSTANT] = 2**0.5  # of head_dim, by whose root the layer divides scores
    key_LDHK[:, PLACE, 0, 1] = c
    key_LDHK[0, WRITES, 0, 0] = 1.5 * c / length
    key_LDHK[1, MARK, 0, 0] = c
    value_LDHK[0, WRITES, 0, 0] = value_LDHK[1, ONES, 0, 0] = 1.0
    out_LHKD[0, 0, 0, MARK] = out_LHKD[1, 0, 0, WRITES] = 1.0

    # The mark v becomes relu(4 v - 1.5) - relu(4 v - 2.5) in place of v; layer 2 changes nothing.
    up_LDF, up_bias_LF = np.zeros((2, width, 3)), np.zeros((2, 3))
    up_LDF[0, MARK], up_bias_LF[0] = (4.0, 4.0, 1.0), (-4 * UNMARKED, -4 * MARKED, 0.0)
    down_LFD = np.zeros((2, 3, width))
    down_LFD[0, :, MARK] = 1.0, -1.0, -1.0
    heads = {"query": query_LDHK, "key": key_LDHK, "value": value_LDHK}
    return {
        ("token_embedding", "rows"): embedding_VD,
        ("positions", "table", "rows"): position_TD,
        ("head", "rows"): head_VD,
        ("blocks", "mlp", "up", "kernel"): up_LDF,
        ("blocks", "mlp", "up", "bias"): up_bias_LF,
        ("blocks", "mlp", "down", "kernel"): down_LFD,
        ("blocks", "mlp", "down", "bias"): np.zeros((2, width)),
        ("blocks", "attention", "out", "kernel"): out_LHKD,
        ("blocks", "attention", "out", "bias"): np.zeros((2, width)),
        **{("blocks", "attention", part, "kernel"): kernel for part, kernel in heads.items()},
        **{("blocks", "attention", part, "bias"): np.zeros((2, 1, 2)) for part in heads},
    }


def measure(network: GPT, tokens_BT: np.ndarray) -> dict[str, int | float]:
    """Reads of some rows, how many the network gets wrong, and how far it is off at most.

    `off` is the distance from the logit of ONE to the bit; proposition 3 makes it e^(-c/T).
    """
    tokens_BT = check(tokens_BT)
    length = tokens_BT.shape[1]
    if length > network.config.context_length:
        raise ConfigError(
            f"the network is built for rows of up to {network.config.context_length} tokens, got "
            f"{length}"
        )
    reads, errors, off = 0, 0, 0.0
    rows = max(1, MOST_SCORES // length**2)
    for first in range(0, len(tokens_BT), rows):
        part_BT = tokens_BT[first : first + rows]
        with jax.enable_x64(network.config.dtype == "float64"):
            logits_BTV = np.asarray(network(part_BT))
        row, place = np.nonzero(part_BT == READ)
        logits_NV, bits_N = logits_BTV[row, place], part_BT[row, place + 1]
        reads += len(bits_N)
        errors += int((logits_NV.argmax(axis=-1) != bits_N).sum())
        off = max(off, float(np.abs(logits_NV[:, ONE] - (bits_N == ONE)).max()))
    return {"rows": len(tokens_BT), "reads": reads, "errors": errors, "off": off}


def all_strings(length: int) -> np.ndarray:
    """Every flip-flop string of a length, int32 (strings, length); there are 2 * 5^(length/2-2)."""
    if length < SHORTEST or length % 2:
        raise ConfigError(f"length must be even and at least {SHORTEST}, got {length}")
    pairs = [(WRITE, ZERO), (WRITE, ONE), (IGNORE, ZERO), (IGNORE, ONE), (READ, None)]
    rows = []
    for middle in itertools.product(pairs, repeat=length // 2 - 2):
        for first in pairs[:2]:
            row, memory = [], None
            for instruction, bit in (first, *middle, (READ, None)):
                memory = bit if instruction == WRITE else memory
                row += [instruction, memory if instruction == READ else bit]
            rows.append(row)
    return np.array(rows, np.int32)
