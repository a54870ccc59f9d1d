"""Exact networks by name: which constructions there are, and the shallowest that applies.

`exact_network("D6", 64).states(letters_BT)` follows the automaton without an error.
"""

from collections.abc import Callable
import dataclasses
import difflib

from flax import nnx
import jax
import numpy as np

from icl_jax.config import ConfigError
from icl_jax.models.gpt import GPT
from icl_jax.sandboxes.automata.exact.assembly import Draft, assemble, configure
from icl_jax.sandboxes.automata.exact.cascades import cascade
from icl_jax.sandboxes.automata.exact.dyck import dyck
from icl_jax.sandboxes.automata.exact.gridworld import gridworld
from icl_jax.sandboxes.automata.exact.groups import counter, solvable
from icl_jax.sandboxes.automata.exact.prefix import count_layers, prefix
from icl_jax.sandboxes.automata.exact.resets import memory, reset
from icl_jax.sandboxes.automata.library import as_automaton
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton

# Of two constructions with as many layers, the first is taken.
CONSTRUCTIONS: dict[str, Callable[[Semiautomaton, int], Draft]] = {
    "counter": counter,
    "memory": memory,
    "solvable": solvable,
    "reset": reset,
    "dyck": dyck,
    "gridworld": gridworld,
    "cascade": cascade,
    "prefix": prefix,
}
DTYPES = ("float64", "float32")
BATCH = 256  # rows that run at once
MOST_WEIGHTS = 500_000_000  # of feed-forward layers: 4 GB in float64


@dataclasses.dataclass(frozen=True, eq=False)
class ExactNetwork:
    """An ordinary GPT whose weights follow an automaton for rows of up to `length` letters."""

    automaton: Semiautomaton
    construction: str
    length: int
    model: GPT
    pads: tuple[int, ...]  # the tokens before the letters of each row
    bounds: dict[str, tuple[float | None, str]]  # what the theorem says: the number, its formula

    def states(self, letters_BT: np.ndarray) -> np.ndarray:
        """The states that the network predicts after each letter, int32 (batch, time)."""
        letters_BT = np.asarray(letters_BT)
        if letters_BT.ndim != 2 or not letters_BT.size or letters_BT.shape[1] > self.length:
            raise ConfigError(
                f"expected rows of 1 to {self.length} letters, got an array of {letters_BT.shape}; "
                "build the network for the longest row"
            )
        self.automaton.run(letters_BT)  # stops on letters that may not come
        rows = len(letters_BT)
        batch = min(BATCH, 1 << (rows - 1).bit_length())  # few shapes to compile
        filled_BT = np.concatenate([letters_BT, np.repeat(letters_BT[:1], -rows % batch, axis=0)])
        found = [self._predict(part) for part in np.split(filled_BT, len(filled_BT) // batch)]
        return np.concatenate(found)[:rows]

    def sizes(self) -> dict[str, int | float]:
        """How large the network is.

        `largest_weight` is the largest absolute value of one, but for those of the readout: they
        are the codes of states and their squares, and the theorems leave them open.
        """
        config, weights = self.model.config, nnx.to_flat_state(nnx.state(self.model))
        arrays = {path: np.asarray(leaf[...]) for path, leaf in weights}
        return {
            "layers": config.num_layers,
            "width": config.embed_dim,
            "heads": config.num_heads,
            "head_dim": config.head_dim,
            "mlp_width": config.mlp_dim,
            "mlp_layers": config.mlp_layers,
            "parameters": sum(array.size for array in arrays.values()),
            "largest_weight": max(
                float(np.abs(array).max()) for path, array in arrays.items() if path[0] != "head"
            ),
        }

    @property
    def state_tokens(self) -> slice:
        """Where the states are in the vocabulary: after the letters."""
        first = self.automaton.num_letters
        return slice(first, first + self.automaton.num_states)

    def _predict(self, letters_BT: np.ndarray) -> np.ndarray:
        pads_BT = np.tile(np.array(self.pads), (len(letters_BT), 1))
        tokens_BT = np.concatenate([pads_BT, letters_BT], axis=1)
        with jax.enable_x64(self.model.config.dtype == "float64"):
            logits_BTV = np.asarray(self.model(tokens_BT))
        logits_BTQ = logits_BTV[:, len(self.pads) :, self.state_tokens]
        return np.argmax(logits_BTQ, axis=-1).astype(np.int32)


def exact_network(
    automaton: Semiautomaton | str,
    length: int,
    construction: str | None = None,
    dtype: str = "float64",
) -> ExactNetwork:
    """The network of a construction; by default, of the shallowest that applies."""
    automaton = as_automaton(automaton)
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got '{dtype}'")
    if not isinstance(length, int | np.integer) or length < 1:
        raise ConfigError(f"length must be a whole number of letters, at least 1, got {length!r}")
    length = int(length)
    if construction is None:
        construction, draft = _shallowest(automaton, length, dtype)
    else:
        draft = _draft(automaton, length, construction, dtype)
    return ExactNetwork(
        automaton=automaton,
        construction=construction,
        length=length,
        model=assemble(draft, dtype),
        pads=tuple(draft.pad_tokens.tolist()),
        bounds=draft.bounds,
    )


def greatest_length(
    automaton: Semiautomaton, construction: str, dtype: str, below: int
) -> int | None:
    """The longest rows, shorter than `below`, whose scores and sums a dtype can tell apart."""
    build, low, high = CONSTRUCTIONS[construction], 0, below
    while high - low > 1:
        middle = (low + high) // 2
        if build(automaton, middle).holds(dtype):
            low = middle
        else:
            high = middle
    return low or None


def _draft(automaton: Semiautomaton, length: int, construction: str, dtype: str) -> Draft:
    if construction not in CONSTRUCTIONS:
        close = difflib.get_close_matches(construction, CONSTRUCTIONS, 3, 0.3)
        raise ConfigError(
            f"there is no construction '{construction}'; closest: "
            f"{', '.join(close) or ', '.join(CONSTRUCTIONS)}"
        )
    draft = CONSTRUCTIONS[construction](automaton, length)
    _refuse_large(draft, construction, dtype)
    if not draft.holds(dtype):
        most = greatest_length(automaton, construction, dtype, below=length)
        margin = min(draft.all_margins(), key=lambda m: m.allowed / max(m.magnitude, 1e-300))
        raise ConfigError(
            f"{automaton.name}: at T = {length}, construction='{construction}' has {margin.what} "
            f"of magnitude {margin.magnitude:.2g}, too large for {dtype} to tell apart what "
            f"differs by {margin.allowed:.2g}; "
            + (f"it is sure to hold to T = {most}" if most else "no length is sure to work")
            + ("; use dtype='float64'" if dtype == "float32" else "")
        )
    return draft


def _refuse_large(draft: Draft, construction: str, dtype: str) -> None:
    config = configure(draft, dtype)
    between = (config.mlp_layers - 1) * config.mlp_dim**2
    weights = config.num_layers * (between + 2 * config.embed_dim * config.mlp_dim)
    if weights > MOST_WEIGHTS:
        raise ConfigError(
            f"{draft.automaton.name}: at T = {draft.length}, construction='{construction}' has "
            f"feed-forward layers {config.mlp_dim:,} wide, {weights:,} weights; expected at most "
            f"{MOST_WEIGHTS:,}: choose a smaller automaton, shorter rows or another construction"
        )


def _shallowest(automaton: Semiautomaton, length: int, dtype: str) -> tuple[str, Draft]:
    best, refused = None, []
    least = {"dyck": 2, "gridworld": 2, "cascade": 3, "prefix": count_layers(length)}
    for name in CONSTRUCTIONS:
        # A cascade of one level is a permutation-reset automaton, which comes before it.
        if best is not None and least.get(name, 1) >= len(best[1].layers):
            continue
        try:
            draft = _draft(automaton, length, name, dtype)
        except ConfigError as error:
            refused.append(f"- {name}: {error}")
            continue
        if best is None or len(draft.layers) < len(best[1].layers):
            best = name, draft
    if best is None:
        raise ConfigError(
            f"no construction applies to {automaton.name} at T = {length} in {dtype}:\n"
            + "\n".join(refused)
        )
    return best
