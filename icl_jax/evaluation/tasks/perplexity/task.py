"""Perplexity of documents and of records: by token, by character and by byte.

A window slides over each text; it predicts the tokens that the one before did not, so that every
token but the first is predicted exactly once, after at least window - stride others. An encoder
("masked perplexity", which cannot be compared with a GPT's) predicts every token once, in 7 passes
with every 7th token masked; it sees both sides of it in the window.

Of records, all tokens count by token, as in training (an encoder: those that are no special ones),
but only the losses of text tokens count by character and by byte.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import math
from pathlib import Path

from etils import epath
from jax.sharding import Mesh
import numpy as np

from icl_jax.config import ConfigError, EvaluationConfig, StageError
from icl_jax.design.folders import PREFIX, arm_folder, is_arm
from icl_jax.evaluation.bootstrap import note_few_items, ratio_interval, show_interval
from icl_jax.evaluation.likelihood import Likelihood
from icl_jax.evaluation.metric import Metrics, Unit, by_size, split
from icl_jax.evaluation.task import Task
from icl_jax.evaluation.tasks.perplexity.texts import Documents, Records, Text, special_tokens
from icl_jax.models.passage_losses import Passage
from icl_jax.training.model_at import ModelAt

_BITS = 1 / math.log(2)  # of a nat
# Result -> what is divided by what, and the factor from nats.
MEASURES = {
    "nats_per_token": ("loss", "tokens", 1.0),
    "bits_per_character": ("text_loss", "characters", _BITS),
    "bits_per_byte": ("text_loss", "bytes", _BITS),
}
LOSS = Unit("nats per token", 4, "lower", by_token=True)
BY_CHARACTER = Unit("bits per character", 4, "lower")
BY_BYTE = Unit("bits per byte", 4, "lower")


class Perplexity(Task):
    """The task `perplexity`."""

    unit, part_size = "texts", 64
    item, units = ("source", "document"), (LOSS, BY_CHARACTER, BY_BYTE)
    rank = 4

    @classmethod
    def with_design(cls, config: EvaluationConfig, workdir: epath.Path) -> EvaluationConfig:
        """Records of an arm are read from the design in `workdir`."""
        arms, wanted = workdir / "design" / "arms", config.perplexity
        records = tuple(
            str(arms / source.removeprefix(PREFIX)) if is_arm(source) else source
            for source in wanted.records
        )
        return dataclasses.replace(config, perplexity=dataclasses.replace(wanted, records=records))

    def __init__(self, model: ModelAt, config: EvaluationConfig):
        self._config, self._likelihood = config, Likelihood(model)
        self._special = special_tokens(model.tokenizer)
        self.kind = "masked perplexity" if model.masked else "perplexity"
        self.window, self.stride = self._sizes(model)
        self._sources = self._open(model)
        self.items = [(n, i) for n, source in enumerate(self._sources) for i in range(len(source))]
        self.inputs = {
            "kind": self.kind,
            "window": self.window,
            "stride": self.stride,
            "limit": config.perplexity.limit,
            "sources": {source.name: source.inputs for source in self._sources},
        }

    def _sizes(self, model: ModelAt) -> tuple[int, int]:
        """Window and stride, in tokens of the text."""
        wanted, found, room = self._config.perplexity, [], self._likelihood.room
        if wanted.window > self._likelihood.positions:
            found.append(
                f"evaluation.perplexity.window is {wanted.window}, but {model.path} has "
                f"{self._likelihood.positions} positions; lower it, or leave it at 0"
            )
        window = min(wanted.window or room, room)
        stride = wanted.stride or max(1, window // 2)
        if window < 2 or stride >= window:
            found.append(
                f"evaluation.perplexity.stride must be below the window of {window} tokens of "
                f"text, got {stride}"
            )
        if found:
            raise ConfigError("; ".join(found))
        return window, stride

    def _open(self, model: ModelAt) -> list[Documents | Records]:
        wanted, tokenizer = self._config.perplexity, model.tokenizer
        given = 0 if self._likelihood.masked else 1
        sources: list[Documents | Records] = []
        if wanted.documents.files:
            sources.append(Documents(wanted.documents, wanted.limit, tokenizer, given))
        folders = [_folder(source, model) for source in wanted.records]
        names = [Path(folder).name for folder in folders]
        for name, folder in zip(names, folders, strict=True):
            name = folder if names.count(name) > 1 or name == Documents.name else name
            vocabulary = model.config.vocab_size
            sources.append(Records(name, folder, wanted.limit, tokenizer, given, vocabulary))
        if not sources:
            raise ConfigError(
                "there is nothing to read; name a corpus (evaluation.perplexity.documents.files) "
                "or folders of records (evaluation.perplexity.records)"
            )
        return sources

    def run(
        self, items: Sequence, first: int, mesh: Mesh, progress: Callable[[int], None]
    ) -> list[dict]:
        """The rows of the texts of some documents and records."""
        model = self._likelihood.open(mesh, self.window)
        rows: list[dict] = []
        item_of: list[int] = []  # of each row

        def passages() -> Iterator[Passage]:
            for n, (source, texts) in enumerate(self._read(items)):
                for text in texts:
                    rows.append(_row(source, text))
                    item_of.append(n)
                    yield from self._passages(text, len(rows) - 1)

        done = 0
        for passage, losses, _ in model.each(passages()):
            row, targets = rows[passage.owner], passage.targets[passage.chosen]
            is_text = ~np.isin(targets, self._special)
            row["tokens"] += len(losses)
            row["loss"] += float(losses.sum())
            row["text_tokens"] += int(is_text.sum())
            row["text_loss"] += float(losses[is_text].sum())
            progress(item_of[passage.owner] - done)
            done = item_of[passage.owner]
        progress(len(items) - done)
        for row in rows:
            if not math.isfinite(row["loss"]):
                raise StageError(
                    f"the loss of {row['document']} of {row['source']} is not finite; check the "
                    "weights of the model"
                )
        return rows

    def _read(self, items: Sequence) -> Iterator[tuple[str, list[Text]]]:
        for n, source in enumerate(self._sources):
            own = [i for m, i in items if m == n]
            if own:
                yield from ((source.name, texts) for texts in source.read(own[0], own[-1] + 1))

    def _passages(self, text: Text, owner: int) -> Iterator[Passage]:
        wanted = np.ones(len(text.tokens), bool)
        if self._likelihood.masked:
            wanted = ~np.isin(text.tokens, self._special)
        given = 0 if self._likelihood.masked else 1
        for begin, end, new in windows(len(text.tokens), self.window, self.stride, given):
            asked = wanted[begin:end] & (np.arange(begin, end) >= new)
            yield from self._likelihood.passages(text.tokens[begin:end], asked, owner)

    def results(self, rows: list[dict]) -> dict:
        """Of each source, and over all of them."""
        counted = [row for row in rows if row["tokens"]]
        if not counted:
            raise StageError("no text has a token to predict: each is a single token")
        by_source = {
            source.name: self._results([row for row in rows if row["source"] == source.name])
            for source in self._sources
        }
        return {
            "kind": self.kind,
            "window": self.window,
            "stride": self.stride,
            "sources": by_source,
            "all": self._results(rows),
            "bad_documents": sum(source.bad for source in self._sources),
        }

    def _results(self, rows: list[dict]) -> dict:
        numbers: dict = {
            "texts": len(rows),
            "texts_predicted": sum(row["tokens"] > 0 for row in rows),
        }
        numbers |= {
            name: sum(row[name] for row in rows) for name in ("tokens", "characters", "bytes")
        }
        rows = [row for row in rows if row["tokens"]]  # others would be drawn for nothing
        for name, (above, below, factor) in MEASURES.items():
            losses = [row[above] * factor for row in rows]
            sizes = [row[below] for row in rows]
            numbers[name], numbers[f"{name}_interval95"] = None, None
            if sum(sizes):
                numbers[name] = sum(losses) / sum(sizes)
                numbers[f"{name}_interval95"] = ratio_interval(
                    losses, sizes, self._config.resamples, self._config.seed
                )
        name = self.kind.replace(" ", "_")
        numbers[name] = _exp(numbers["nats_per_token"])
        ends = numbers["nats_per_token_interval95"]
        numbers[f"{name}_interval95"] = ends and [_exp(end) for end in ends]
        return numbers

    def table(self, results: dict) -> str:
        """One line for each source."""
        kind, sources = results["kind"], results["sources"]
        shown = dict(sources) if len(sources) == 1 else sources | {"all": results["all"]}
        lines = [
            f"| source | texts | tokens | {kind} (95% interval) "
            "| loss, nats a token (95% interval) | bits a character | bits a byte |",
            "|---|---|---|---|---|---|---|",
        ]
        name = kind.replace(" ", "_")
        for source, own in shown.items():
            lines.append(
                f"| {source} | {own['texts']:,} | {own['tokens']:,} "
                f"| {_with_interval(own, name)} | {_with_interval(own, 'nats_per_token')} | "
                f"{_number(own['bits_per_character'])} | {_number(own['bits_per_byte'])} |"
            )
        lines.append(
            f"\nWindows of {results['window']} tokens, {results['stride']} from one to the next; "
            f"{results['bad_documents']} documents could not be read. A {kind} is by token: "
            "compare models with another tokenizer by character or by byte."
        )
        lines += note_few_items(*(own["texts_predicted"] for own in shown.values()))
        single = [source for source, own in sources.items() if own["texts"] == 1]
        if single:
            lines.append(f"Only one text: {', '.join(single)}.{_how_to_split(single)}")
        return "\n".join(lines)

    @staticmethod
    def metrics(rows: list[dict], results: dict) -> Metrics:
        """The loss of each source, in three units."""
        metrics = {}
        for name, own in split(rows, "source").items():
            bits = [row["text_loss"] * _BITS for row in own]
            loss = [row["loss"] for row in own]
            metrics[f"loss of {name}"] = by_size(own, loss, "tokens", LOSS)
            metrics[f"loss of {name}, by character"] = by_size(
                own, bits, "characters", BY_CHARACTER
            )
            metrics[f"loss of {name}, by byte"] = by_size(own, bits, "bytes", BY_BYTE)
        return metrics

    @staticmethod
    def headline(metrics: list[str]) -> list[str]:
        """By token; by byte where the models have different tokens."""
        by_token = [name for name in metrics if not name.endswith((", by character", ", by byte"))]
        return by_token or [name for name in metrics if name.endswith(", by byte")]


def windows(count: int, window: int, stride: int, given: int) -> Iterator[tuple[int, int, int]]:
    """Windows from `begin` to `end` over `count` tokens; each asks for those from `new` on.

    The first `given` tokens are never asked for, every other one exactly once.
    """
    begin, new = 0, given
    while new < count:
        end = min(begin + window, count)
        yield begin, end, new
        begin, new = begin + stride, end


def _folder(source: str, model: ModelAt) -> str:
    """The folder or files of the records of a source."""
    if not is_arm(source):
        return source
    workdir = model.own_workdir("evaluation.perplexity.records")
    return str(arm_folder(workdir, source.removeprefix(PREFIX)))


def _row(source: str, text: Text) -> dict:
    return {
        "source": source,
        "document": text.document,
        "tokens": 0,
        "loss": 0.0,
        "text_tokens": 0,
        "text_loss": 0.0,
        "characters": text.characters,
        "bytes": text.bytes,
    }


def _how_to_split(single: list[str]) -> str:
    if Documents.name not in single:
        return ""
    return " A text file is split into several by evaluation.perplexity.documents.text_documents."


def _with_interval(own: dict, name: str) -> str:
    return f"{_number(own[name])} ({show_interval(own[f'{name}_interval95'], _number)})"


def _exp(nats: float | None) -> float | None:
    return math.exp(nats) if nats is not None and nats < 700 else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3f}" if value < 1000 else f"{value:,.0f}"
