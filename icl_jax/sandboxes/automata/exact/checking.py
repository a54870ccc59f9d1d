"""Exact networks against the automata themselves: all short strings, and random long ones.

Shape suffixes: B batch, T time.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import ConfigError
from icl_jax.models.attention import locate
from icl_jax.models.layers import make_cache
from icl_jax.sandboxes.automata import algebra, library
from icl_jax.sandboxes.automata.exact.network import ExactNetwork, exact_network
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton

MOST_STRINGS = 8**7  # of the longest length of which all strings are tried
MOST_ROWS = 4096  # prefixes that grow by a letter at once
LONG = 100  # T of the experiments; prefix networks are checked there too
RANDOM_ROWS = 1000


def plan() -> list[tuple[str, str]]:
    """(automaton, construction) of the checks; `check(*entry)` runs one."""
    counters = [f"C{n}" for n in range(2, 9)] + ["C2^2", "C2^3", "C2xC3"]
    entries = {
        "prefix": ["S5", "A5", "S4", "A4", "D6", "Q8", "C5", "Grid9", "abab", "Dyck(2,2)"],
        "counter": counters,
        "memory": ["flipflop", "memory4"],
        "solvable": ["D6", "D8", "Q8", "A4", "S4"],
        "reset": ["reset(C3)", "reset(D6)", "reset(A4)"],
        "gridworld": ["Grid4", "Grid9", "Grid9+", "Grid4xGrid4"],
        "cascade": ["Grid4", "Grid9", "abab", *(f"random {seed}" for seed in RANDOM_SEEDS)],
        "dyck": ["Dyck(4,2)"],
    }
    return [(name, construction) for construction, names in entries.items() for name in names]


def check(automaton_name: str, construction: str, length: int = 64) -> dict:
    """Builds a network and counts its wrong states."""
    network = exact_network(find(automaton_name), length, construction)
    result = count_wrong(network, random_length=length)
    if construction == "prefix":  # a length that is no power of 2
        longer = exact_network(network.automaton, LONG, construction)
        letters_BT = random_letters(network.automaton, RANDOM_ROWS, LONG, seed=1)
        result["wrong_states"] += _wrong(longer, letters_BT)
    return result


RANDOM_SEEDS = (0, 1, 2)


def find(name: str) -> Semiautomaton:
    """An automaton of the library, or "random 3": a solvable one of 4 or 5 states."""
    if name.startswith("random "):
        return random_solvable(int(name.removeprefix("random ")))
    return library.make(name)


def random_solvable(seed: int) -> Semiautomaton:
    """Random letters whose cascade has several levels, one at least with a group of 3 to 12."""
    rng = np.random.default_rng(seed)
    while True:
        size = int(rng.integers(4, 6))
        delta = [rng.permutation(size), *rng.integers(0, size, (2, size))]
        delta[1] = np.where(rng.random(size) < 0.7, np.arange(size), delta[1])
        automaton = Semiautomaton(f"random {seed}", np.array(delta), int(rng.integers(size)))
        cascade = algebra.hole_cascade(automaton)
        orders = [algebra.group(level.automaton).order for level in cascade.levels]
        if cascade.solvable and len(orders) > 1 and 2 < max(orders) <= 12:
            return automaton


def count_wrong(
    network: ExactNetwork,
    all_to: int = 7,
    random_rows: int = RANDOM_ROWS,
    random_length: int = 64,
    seed: int = 0,
) -> dict:
    """Wrong states on all strings up to `all_to` letters and on random rows, with the sizes.

    Where there would be more than 8^7 strings, `all_to` is less. All strings run through a network
    that is built for their length, the random ones through the one that is given.
    """
    automaton = network.automaton
    if random_length > network.length:
        raise ConfigError(
            f"expected random rows of at most {network.length} letters, for which the network is "
            f"built, got {random_length}"
        )
    while all_to > 1 and automaton.num_letters**all_to > MOST_STRINGS:
        all_to -= 1
    short = exact_network(automaton, all_to, network.construction, network.model.config.dtype)
    strings, wrong = _try_all(short)
    letters_BT = random_letters(automaton, random_rows, random_length, seed)
    return {
        "automaton": automaton.name,
        "construction": network.construction,
        "length": network.length,
        "all_to": all_to,
        "strings": strings,
        "random_rows": random_rows,
        "random_length": random_length,
        "wrong_states": wrong + _wrong(network, letters_BT),
        **network.sizes(),
        "bounds": network.bounds,
    }


def random_letters(automaton: Semiautomaton, rows: int, length: int, seed: int) -> np.ndarray:
    """Uniform letters, or uniform among those that may come."""
    rng = np.random.default_rng(seed)
    if automaton.legal_QS is None:
        return rng.integers(0, automaton.num_letters, (rows, length))
    letters_BT, state_B = np.empty((rows, length), np.int64), np.full(rows, automaton.start)
    for t in range(length):
        legal_BS = automaton.legal_QS[state_B]
        letters_BT[:, t] = np.argmax(legal_BS * rng.uniform(0.1, 1, legal_BS.shape), axis=1)
        state_B = automaton.delta_SQ[letters_BT[:, t], state_B]
    return letters_BT


def _wrong(network: ExactNetwork, letters_BT: np.ndarray) -> int:
    return int((network.states(letters_BT) != network.automaton.run(letters_BT)).sum())


@dataclasses.dataclass
class _Rows:
    """Strings of one length, a row each: what the network has read, and where the automaton is."""

    cache: object
    state_B: np.ndarray
    legal_B: np.ndarray


def _try_all(network: ExactNetwork) -> tuple[int, int]:
    """(strings, wrong last states) of all lengths up to the network's.

    Strings grow by a letter at a time through the key-value cache: first the rows are all strings
    of `depth` letters, then all of them get the same further letters, in turn.
    """
    automaton, letters = network.automaton, network.automaton.num_letters
    depth = network.length
    while letters**depth > MOST_ROWS and depth > 1:
        depth -= 1
    count = letters**depth
    grow = _grower(network)
    dtype = network.model.config.dtype
    with jax.enable_x64(dtype == "float64"):
        cache = make_cache(network.model.config, count, len(network.pads) + network.length)
        for start, pad in enumerate(network.pads):
            _, cache = grow(network.model, np.full((count, 1), pad, np.int32), start, cache)
        rows = _Rows(cache, np.full(count, automaton.start), np.ones(count, bool))
        strings = wrong = 0
        for t in range(depth):
            below = letters ** (depth - 1 - t)
            letter_B = np.arange(count) // below % letters
            rows, wrong_B = _extend(network, grow, rows, letter_B, t)
            kept_B = rows.legal_B & (np.arange(count) % below == 0)  # each string once
            strings, wrong = strings + kept_B.sum(), wrong + (wrong_B & kept_B).sum()
        stack = [(rows, depth)] if depth < network.length else []
        while stack:
            rows, t = stack.pop()
            for letter in range(letters):
                longer, wrong_B = _extend(network, grow, rows, np.full(count, letter), t)
                strings, wrong = strings + longer.legal_B.sum(), wrong + wrong_B.sum()
                if t + 1 < network.length:
                    stack.append((longer, t + 1))
    return int(strings), int(wrong)


def _grower(network: ExactNetwork):
    """(model, tokens, start, cache) -> (states, cache), compiled once for all lengths."""
    places = locate(len(network.pads) + network.length, None)

    @jax.jit
    def grow(model, tokens_B1, start, cache):
        logits_BV, cache = model.extend(tokens_B1, places, start, cache)
        return jnp.argmax(logits_BV[:, network.state_tokens], axis=-1), cache

    return grow


def _extend(network: ExactNetwork, grow, rows: _Rows, letter_B: np.ndarray, t: int):
    """The rows with a letter more, and which of those that may be have a wrong state."""
    automaton = network.automaton
    tokens_B1 = letter_B[:, None].astype(np.int32)
    found_B, cache = grow(network.model, tokens_B1, len(network.pads) + t, rows.cache)
    legal_B = rows.legal_B
    if automaton.legal_QS is not None:
        legal_B = legal_B & automaton.legal_QS[rows.state_B, letter_B]
    state_B = automaton.delta_SQ[letter_B, rows.state_B]
    return _Rows(cache, state_B, legal_B), (np.asarray(found_B) != state_B) & legal_B
