"""Neighbour gain: how much easier a sentence is after its neighbours than after random sentences.

The groups of a design give the neighbours of a sentence, and as many random sentences of the same
length. The model predicts the tokens of each query three times: alone, after its neighbours (the
nearest directly before it), and after the random sentences. All text is tokenised again, so any
model can be asked, also one that was trained on something else. A query that leaves no room for a
context in the model's positions says nothing and is skipped.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import hashlib
import json
from typing import NamedTuple

from etils import epath
from jax.sharding import Mesh
import numpy as np

from icl_jax.config import ConfigError, EvaluationConfig, StageError
from icl_jax.design.folders import DesignFolders
from icl_jax.design.groups import Groups
from icl_jax.design.sentences import Sentences
from icl_jax.evaluation.bootstrap import note_few_items, ratio_interval, show_interval
from icl_jax.evaluation.likelihood import Likelihood
from icl_jax.evaluation.metric import Metrics, Unit, by_size
from icl_jax.evaluation.task import Task
from icl_jax.models.passage_losses import Passage
from icl_jax.training.model_at import ModelAt

SIDES = ("alone", "with_neighbours", "with_random")
# Result -> the side it is measured from, and the one that may be easier.
GAINS = {
    "gain_neighbours": ("alone", "with_neighbours"),
    "gain_random": ("alone", "with_random"),
    "neighbour_gain": ("with_random", "with_neighbours"),
}


GAIN = Unit("nats gained per token", 4, by_token=True)


class Query(NamedTuple):
    """A sentence, and those before it on two of the sides; the nearest first."""

    id: int
    neighbours: tuple[int, ...]
    random: tuple[int, ...]


class NeighbourGain(Task):
    """The task `neighbour_gain`."""

    unit, part_size = "sentences", 200
    item, units = ("query", "neighbour_ids", "random_ids", "tokens"), (GAIN,)
    rank = 3

    @classmethod
    def with_design(cls, config: EvaluationConfig, workdir: epath.Path) -> EvaluationConfig:
        """Neighbours are those of the design in `workdir`."""
        gain = config.neighbour_gain
        gain = dataclasses.replace(gain, design=gain.design or str(workdir))
        return dataclasses.replace(config, neighbour_gain=gain)

    def __init__(self, model: ModelAt, config: EvaluationConfig):
        self._config, self._model = config, model
        self._likelihood = Likelihood(model)
        workdir = find_design(model, config.neighbour_gain.design)
        self._sentences = Sentences.open(workdir)
        queries = read_queries(workdir)
        if not queries:
            raise ConfigError(
                f"evaluation.neighbour_gain.design: no query of {workdir} has a neighbour; lower "
                "design.search.min_similarity there"
            )
        self.items = _sample(queries, config.neighbour_gain.queries, config.seed)
        self.separator, self._separator_tokens = _separator(model)
        if not any(self._has_room(self._encode(query)) for query in self.items):
            raise StageError(self._no_room(len(self.items)))
        self.inputs = {
            "sentences": self._sentences.fingerprint,
            "queries": {"count": len(self.items), "checksum": _checksum(self.items)},
            "separator": self.separator,
            "kind": "masked tokens" if model.masked else "next tokens",
        }

    def run(
        self, items: Sequence[Query], first: int, mesh: Mesh, progress: Callable[[int], None]
    ) -> list[dict]:
        """The rows of some queries."""
        model = self._likelihood.open(mesh, self._longest)
        rows = [self._row(query) for query in items]
        sums = np.zeros((len(items), len(SIDES)))
        done = 0
        passages = (p for n, q in enumerate(items) for p in self._passages(n, q, rows[n]))
        for passage, losses, _ in model.each(passages):
            n, side = divmod(passage.owner, len(SIDES))
            sums[n, side] += losses.sum()
            progress(n - done)
            done = n
        progress(len(items) - done)
        if not np.all(np.isfinite(sums)):
            raise StageError("the loss of some queries is not finite; check the model's weights")
        sides = (dict(zip(SIDES, map(float, row), strict=True)) for row in sums)
        return [row | own for row, own in zip(rows, sides, strict=True)]

    @functools.cached_property
    def _longest(self) -> int:
        """Tokens of the longest query with its context, as far as there is room."""
        longest = 0
        for query in self.items:
            contexts = (self._context(others) for others in (query.neighbours, query.random))
            longest = max(longest, len(self._encode(query)) + max(map(len, contexts)))
            if longest >= self._likelihood.room:
                return self._likelihood.room
        return longest

    def _row(self, query: Query) -> dict:
        return {
            "query": query.id,
            "document": int(self._sentences.documents_of(np.array([query.id]))[0]),
            "text": self._sentences.text(query.id),
            "neighbours": len(query.neighbours),
            "neighbour_ids": query.neighbours,
            "random_ids": query.random,
            "tokens": 0,  # asked for on each side
            "has_room": True,  # for a context; without it nothing is asked for
            "neighbours_cut": 0,  # tokens cut on the left, for lack of positions
            "random_cut": 0,
        }

    def _passages(self, n: int, query: Query, row: dict) -> Iterator[Passage]:
        """The query on its three sides; what is cut and asked goes into its row."""
        own = self._encode(query)
        row["has_room"] = self._has_room(own)
        if not row["has_room"]:
            return
        room, asked = self._likelihood.room, np.ones(len(own), bool)
        asked[:1] = self._likelihood.masked  # a GPT is given the first
        row["tokens"] = int(asked.sum())
        for side, others in enumerate(((), query.neighbours, query.random)):
            context = self._context(others)
            kept = context[max(0, len(context) + len(own) - room) :]
            if others:
                row[f"{('neighbours', 'random')[side - 1]}_cut"] = len(context) - len(kept)
            tokens = np.concatenate([kept, own])
            chosen = np.concatenate([np.zeros(len(kept), bool), asked])
            yield from self._likelihood.passages(tokens, chosen, n * len(SIDES) + side)

    def _encode(self, query: Query) -> np.ndarray:
        return self._model.tokenizer.encode(self._sentences.text(query.id))

    def _has_room(self, own: np.ndarray) -> bool:
        """Whether more than a separator fits before the query."""
        return len(own) + len(self._separator_tokens) < self._likelihood.room

    def _no_room(self, count: int) -> str:
        return (
            f"none of {count:,} queries leaves room for a context in the {self._likelihood.room} "
            f"tokens that {self._model.path} reads at once; choose a model with more positions, "
            "or a design of shorter sentences (max_sentence_tokens of its corpus)"
        )

    def _context(self, others: Sequence[int]) -> np.ndarray:
        """The sentences from the farthest to the nearest, a separator after each."""
        pieces = [np.empty(0, np.int32)]
        for text in reversed(self._sentences.text_of(others)):
            pieces += [self._model.tokenizer.encode(text), self._separator_tokens]
        return np.concatenate(pieces)

    def results(self, rows: list[dict]) -> dict:
        """Losses and gains in nats a token, with 95% intervals over queries."""
        without_room = sum(not row["has_room"] for row in rows)
        if without_room == len(rows):
            raise StageError(f"neighbour_gain: {self._no_room(len(rows))}")
        rows = [row for row in rows if row["tokens"]]
        if not rows:
            raise StageError(
                "neighbour_gain: no query with room for a context has a second token to ask for; "
                "choose a design of longer sentences"
            )
        numbers: dict = {"queries": len(rows), "queries_without_room": without_room}
        numbers["tokens"] = sum(row["tokens"] for row in rows)
        for side in SIDES:
            numbers[f"loss_{side}"] = self._mean([row[side] for row in rows], rows)[0]
        for name, (before, after) in GAINS.items():
            gains = [row[before] - row[after] for row in rows]
            numbers[name], numbers[f"{name}_interval95"] = self._mean(gains, rows)
            numbers[f"{name}_share"] = float(np.mean(np.array(gains) > 0))
        for name in ("neighbours_cut", "random_cut"):
            numbers[name] = sum(row[name] > 0 for row in rows)
        numbers["mean_neighbours"] = float(np.mean([row["neighbours"] for row in rows]))
        design = self._config.neighbour_gain.design or "the run's own, which it may have trained on"
        return numbers | {
            "separator": self.separator, "kind": self.inputs["kind"], "design": design
        }  # fmt: skip

    def _mean(self, sums: list[float], rows: list[dict]) -> tuple[float, list[float] | None]:
        """Nats a token over all queries, and the interval."""
        tokens = [row["tokens"] for row in rows]
        ends = ratio_interval(sums, tokens, self._config.resamples, self._config.seed)
        return sum(sums) / sum(tokens), ends

    def table(self, results: dict) -> str:
        """The three losses, then the three gains."""
        lines = ["| the query | loss, nats a token |", "|---|---|"]
        for side in SIDES:
            lines.append(f"| {side.replace('_', ' ')} | {results[f'loss_{side}']:.4f} |")
        lines += [
            "",
            "| what is gained by | nats a token | 95% interval | queries that gain |",
            "|---|---|---|---|",
        ]
        labels = {"gain_neighbours": "neighbours, against alone",
                "gain_random": "random sentences, against alone",
                "neighbour_gain": "neighbours, against random sentences"}  # fmt: skip
        for name, words in labels.items():
            ends = show_interval(results[f"{name}_interval95"], "{:+.4f}".format)
            lines.append(
                f"| {words} | {results[name]:+.4f} | {ends} | "
                f"{100 * results[f'{name}_share']:.1f}% |"
            )
        lines.append(
            f"\nLosses of {results['kind']} of {results['queries']:,} queries with "
            f"{results['mean_neighbours']:.1f} neighbours on average, design: {results['design']}; "
            f"separator: {results['separator']}. Cut on the left to the model's positions: "
            f"{results['neighbours_cut']:,} contexts of neighbours, {results['random_cut']:,} "
            "random ones."
        )
        if results["queries_without_room"]:
            lines.append(
                f"{results['queries_without_room']:,} queries without room for a context skipped."
            )
        lines += note_few_items(results["queries"])
        return "\n".join(lines)

    @staticmethod
    def metrics(rows: list[dict], results: dict) -> Metrics:
        """What neighbours before a sentence bring, against nothing and against random sentences."""

        def gain(before: str, after: str):
            gained = [row[before] - row[after] for row in rows]
            return by_size(rows, gained, "tokens", GAIN)

        return {name: gain(*GAINS[name]) for name in ("gain_neighbours", "neighbour_gain")}

    @staticmethod
    def headline(metrics: list[str]) -> list[str]:
        """The gain over random sentences first."""
        return sorted(metrics, key=lambda name: name != "neighbour_gain")

    @classmethod
    def title(cls, metric: str, items: int) -> str:
        """Of its panel in the figure of a report."""
        return "Gain of neighbours over random ones"


def find_design(model: ModelAt, design: str) -> str:
    """The workdir of the design that is asked for; "": that of the run itself."""
    workdir = design or str(model.own_workdir("evaluation.neighbour_gain.design"))
    folders = DesignFolders(workdir)
    needed = [folders.groups / name / "results.json" for name in ("neighbours", "random")]
    missing = [str(file) for file in [folders.config, *needed] if not file.exists()]
    if missing:
        raise ConfigError(
            f"evaluation.neighbour_gain.design: expected a finished design in {workdir}, but there "
            f"is no {' and no '.join(missing)}; run the stage design there, with "
            "neighbours_in_context and random_in_context among design.examples.arms, or name "
            "another workdir"
        )
    return workdir


def read_queries(workdir: str) -> list[Query]:
    """All queries that have neighbours and a random control, by their ids."""
    sides = []
    for strategy in ("neighbours", "random"):
        found = {}
        for shard in Groups.open(DesignFolders(workdir).groups / strategy).shards:
            for start, end in zip(shard.offsets[:-1], shard.offsets[1:], strict=True):
                found[int(shard.ids[start])] = tuple(shard.ids[start + 1 : end].tolist())
        sides.append(found)
    neighbours, dealt = sides  # the control leaves out what a gain filter has left out
    return [
        Query(id, near, dealt[id])
        for id, near in sorted(neighbours.items())
        if near and id in dealt
    ]


def _sample(queries: list[Query], count: int, seed: int) -> list[Query]:
    """Some of them, in their order; 0: all."""
    if not 0 < count < len(queries):
        return queries
    chosen = np.random.RandomState(seed).permutation(len(queries))[:count]
    return [queries[n] for n in sorted(chosen.tolist())]


def _separator(model: ModelAt) -> tuple[str, np.ndarray]:
    """The design's separator where the model knows it; else a new line."""
    id = model.tokenizer.separator_id
    if id < model.config.vocab_size:
        return model.tokenizer.library.id_to_token(id), np.array([id], np.int32)
    return "a new line, because the model has no separator", model.tokenizer.encode("\n")


def _checksum(queries: list[Query]) -> str:
    return hashlib.sha256(json.dumps(queries).encode()).hexdigest()[:32]
