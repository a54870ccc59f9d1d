"""From named channels, heads and feed-forward layers to the weights of an ordinary GPT.

Every layer is padded to the same heads and hidden layers; constants are biases. Shape suffixes:
L layers, D embed, H heads, K head_dim, F mlp, V vocab, N rows, S letters, Q states.
"""

from collections.abc import Sequence
import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import ConfigError, GPTConfig
from icl_jax.models.gpt import GPT
from icl_jax.sandboxes.automata.exact.gadgets import FeedForward, Form, Margin, Unit
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton

ROUNDINGS = 8  # of a score: of its factors, its terms and its sum, for both positions compared


@dataclasses.dataclass
class Head:
    """Scores are `scale` x (query . key); each read adds factor x value to a channel."""

    query: list[Form]
    key: list[Form]
    reads: list[tuple[Form, Form, float]]  # (value, channel, factor)
    scale: float = 1.0


@dataclasses.dataclass
class Layer:
    """Attention, then a feed-forward layer; both add to the residual stream."""

    heads: list[Head] = dataclasses.field(default_factory=list)
    mlp: FeedForward = dataclasses.field(default_factory=FeedForward)


@dataclasses.dataclass
class Channel:
    """What the embeddings put into it."""

    letters: np.ndarray
    pads: np.ndarray
    place: np.ndarray


class Draft:
    """A network on paper. Rows are pads, then letters; tokens are letters, states, then pads."""

    def __init__(self, automaton: Semiautomaton, length: int, pads: Sequence[int] = (0,)):
        if length < 1:
            raise ConfigError(f"expected a length of at least 1 letter, got {length}")
        self.automaton, self.length = automaton, length
        self.pads = list(pads)  # the kind of each; there are tokens for kinds 0 to max(pads)
        self.rows = len(self.pads) + length
        self.channels: dict[str, Channel] = {}
        self.layers: list[Layer] = []
        self.margins: list[Margin] = []
        self.bounds: dict[str, tuple[float | None, str]] = {}
        self.readout: tuple[list[str], str, np.ndarray] | None = None

    def channel(self, name: str, letters=0.0, pads=0.0, place=0.0) -> Form:
        """A channel, of which the embeddings of letters, kinds of pads and places are given."""
        if name not in self.channels:
            sizes = self.automaton.num_letters, max(self.pads) + 1, self.rows
            values = (letters, pads, place)
            self.channels[name] = Channel(
                *(np.broadcast_to(np.asarray(value, float), (size,)).copy()
                  for value, size in zip(values, sizes, strict=True))
            )  # fmt: skip
        return Form({name: 1.0})

    def layer(self) -> Layer:
        """A further layer, empty."""
        self.layers.append(Layer())
        return self.layers[-1]

    def count(self, layer: Layer, reads: list[tuple[Form, Form]], pad: Form, log: Form) -> None:
        """A head that sums values over all letters so far (lemma 15).

        Pad 0 has key 1 and value 0; from the query log(2N - t) it takes what t letters leave of 2N.
        """
        total = 2.0 * self.rows
        layer.heads.append(Head([log], [pad], [(value, to, total) for value, to in reads]))

    def logs(self) -> Form:
        """The channel of places for `count`."""
        return self.channel("log", place=np.log(2 * self.rows - np.arange(self.rows)))

    def select(self, layer: Layer, head: Head, largest: float, gap: float, spread: float) -> None:
        """A head that copies from the place of the highest score (lemma 13).

        `largest` bounds the scores, `gap` is how far the second is behind, values differ by at most
        `spread`: together they must be copied to a quarter of a unit.
        """
        needed = np.log(8.0 * self.rows * spread)
        self.margins.append(Margin("a choice by score", ROUNDINGS * largest, gap - needed))
        layer.heads.append(head)

    def read(self, channels: list[Form], one: Form, code_QC: np.ndarray) -> None:
        """States are read as the nearest code; rows of NaN are states that never occur."""
        code_QC = np.asarray(code_QC, float).reshape(self.automaton.num_states, -1)
        never = -2.0 - np.nanmax(np.abs(code_QC))
        code_QC = np.where(np.isnan(code_QC), never, code_QC)
        self.readout = [next(iter(c.terms)) for c in channels], next(iter(one.terms)), code_QC

    @property
    def pad_tokens(self) -> np.ndarray:
        """The tokens before each row of letters."""
        return self.automaton.num_letters + self.automaton.num_states + np.array(self.pads)

    def all_margins(self) -> list[Margin]:
        """Every place where rounding could go wrong."""
        return self.margins + [margin for layer in self.layers for margin in layer.mlp.margins]

    def holds(self, dtype: str) -> bool:
        """Whether its scores and sums can be told apart in a dtype."""
        epsilon = np.finfo(dtype).eps
        return all(m.magnitude * epsilon <= m.allowed for m in self.all_margins())


def assemble(draft: Draft, dtype: str) -> GPT:
    """The GPT with the weights of a draft."""
    config = configure(draft, dtype)
    return set_weights(config, write_weights(draft, config))


def set_weights(config: GPTConfig, weights: dict[tuple, np.ndarray]) -> GPT:
    """The GPT with these parameters, all of them, by their paths."""
    weights = dict(weights)
    with jax.enable_x64(config.dtype == "float64"):
        model = nnx.eval_shape(lambda: GPT(config, rngs=nnx.Rngs(0)))
        graphdef, state = nnx.split(model)
        filled = [
            (path, leaf.replace(jnp.asarray(weights.pop(path), config.dtype)))
            for path, leaf in nnx.to_flat_state(state)
        ]
        assert not weights, weights.keys()
        return nnx.merge(graphdef, nnx.from_flat_state(filled))


def configure(draft: Draft, dtype: str) -> GPTConfig:
    """The smallest shape that has room for every layer."""
    heads = [head for layer in draft.layers for head in layer.heads]
    levels = [level for layer in draft.layers for level in _levels(layer.mlp, _depth(draft))]
    automaton = draft.automaton
    return GPTConfig(
        vocab_size=automaton.num_letters + automaton.num_states + max(draft.pads) + 1,
        context_length=draft.rows,
        num_layers=len(draft.layers),
        embed_dim=len(draft.channels),
        num_heads=max([len(layer.heads) for layer in draft.layers] + [1]),
        head_dim=max([max(len(head.query), len(head.reads)) for head in heads] + [1]),
        mlp_dim=max([len(level) for level in levels] + [1]),
        mlp_layers=_depth(draft),
        activation="relu", norm="none", position="learned", tie_head=False, attention="plain",
        embedding_dropout=0.0, attention_dropout=0.0, residual_dropout=0.0,
        dtype=dtype, scan_layers=True,
    )  # fmt: skip


def write_weights(draft: Draft, config: GPTConfig) -> dict[tuple, np.ndarray]:
    """The parameters of the GPT by their paths, float64."""
    place = {name: n for n, name in enumerate(draft.channels)}
    channels = list(draft.channels.values())
    letters, states = draft.automaton.num_letters, draft.automaton.num_states
    embedding_VD = np.zeros((config.vocab_size, config.embed_dim))
    embedding_VD[:letters] = np.stack([channel.letters for channel in channels], axis=1)
    embedding_VD[letters + states :] = np.stack([channel.pads for channel in channels], axis=1)
    head_VD = np.zeros_like(embedding_VD)
    names, one, code_QC = draft.readout
    for column, name in enumerate(names):
        head_VD[letters : letters + states, place[name]] += 2 * code_QC[:, column]
    head_VD[letters : letters + states, place[one]] -= np.square(code_QC).sum(axis=1)
    weights = {
        ("token_embedding", "rows"): embedding_VD,
        ("positions", "table", "rows"): np.stack([channel.place for channel in channels], axis=1),
        ("head", "rows"): head_VD,
    }
    for n, layer in enumerate(draft.layers):
        for path, array in (_attention(layer, config, place) | _mlp(layer, config, place)).items():
            stacked = weights.setdefault(
                ("blocks", *path), np.zeros((len(draft.layers), *array.shape))
            )
            stacked[n] = array
    return weights


def _attention(layer: Layer, config: GPTConfig, place: dict[str, int]) -> dict:
    shape = (config.num_heads, config.head_dim)
    made = {
        ("attention", part, kind): np.zeros(leading + shape)
        for part in ("query", "key", "value")
        for kind, leading in (("kernel", (config.embed_dim,)), ("bias", ()))
    }
    out_HKD = np.zeros((*shape, config.embed_dim))
    made["attention", "out", "kernel"] = out_HKD
    made["attention", "out", "bias"] = np.zeros(config.embed_dim)
    for h, head in enumerate(layer.heads):
        both = head.scale**0.5  # of queries and keys; the layer divides scores by head_dim^0.5
        scale = {"query": both * config.head_dim**0.5, "key": both, "value": 1.0}
        forms = {"query": head.query, "key": head.key, "value": [read[0] for read in head.reads]}
        for part, rows in forms.items():
            for k, form in enumerate(rows):
                made["attention", part, "bias"][h, k] = scale[part] * form.constant
                for name, value in form.terms.items():
                    made["attention", part, "kernel"][place[name], h, k] = scale[part] * value
        for k, (_, channel, factor) in enumerate(head.reads):
            for name, value in channel.terms.items():
                out_HKD[h, k, place[name]] += factor * value
    return made


def _mlp(layer: Layer, config: GPTConfig, place: dict[str, int]) -> dict:
    levels = _levels(layer.mlp, config.mlp_layers)
    made = {}
    for depth in range(config.mlp_layers):
        path = ("mlp", "up") if depth == 0 else ("mlp", "middle", depth - 1)
        inputs = config.mlp_dim if depth else config.embed_dim
        kernel, bias = np.zeros((inputs, config.mlp_dim)), np.zeros(config.mlp_dim)
        for column, form in enumerate(levels[depth]):
            bias[column] = form.constant
            for key, value in form.terms.items():
                kernel[_row(key, place), column] = value
        made |= {(*path, "kernel"): kernel, (*path, "bias"): bias}
    kernel, bias = np.zeros((config.mlp_dim, config.embed_dim)), np.zeros(config.embed_dim)
    for name, form in layer.mlp.outputs.items():
        form = layer.mlp.lift(form, config.mlp_layers)
        bias[place[name]] = form.constant
        for key, value in form.terms.items():
            kernel[_row(key, place), place[name]] = value
    return made | {("mlp", "down", "kernel"): kernel, ("mlp", "down", "bias"): bias}


def _row(key: str | Unit, place: dict[str, int]) -> int:
    return key[1] if isinstance(key, tuple) else place[key]


def _depth(draft: Draft) -> int:
    """Hidden layers that some feed-forward layer needs."""
    return max([1, *(len(layer.mlp.levels) for layer in draft.layers)])


def _levels(mlp: FeedForward, depth: int) -> list[list[Form]]:
    """The hidden units of each level, with those that carry outputs to the last one."""
    for form in mlp.outputs.values():
        mlp.lift(form, depth)
    return mlp.levels + [[] for _ in range(depth - len(mlp.levels))]
