"""Keeps a group only if a model finds its sentences easier in context than apart.

In context the group is one example; apart, each of its sentences is one. Both sides are asked for
the same tokens: a GPT for those that follow another token of their sentence, a RoBERTa for the same
masked ones, special tokens never. The gain is the loss apart less that in context, in nats a token.
"""

from collections.abc import Callable, Iterator
import itertools
from pathlib import Path

from jax.sharding import Mesh
import numpy as np

from icl_jax.config import ConfigError, ExamplesConfig, GPTConfig
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.example_design.gain_inputs import model_checksum
from icl_jax.example_design.gain_model import GainModel, Passage
from icl_jax.example_design.groups import Groups, GroupShard, keep_file
from icl_jax.example_design.layout import Marks, in_context
from icl_jax.example_design.sentences import Sentences
from icl_jax.models import huggingface
from icl_jax.models.inputs import position_limit
from icl_jax.parallel import progress_bar
from icl_jax.step_folder import StepFolder, beside, read_inputs

MASK_SHARE = 0.15  # of a sentence's tokens, at least one
_EDGES = np.round(np.linspace(-2, 2, 41), 1)  # of the histogram; beyond: the bins at its ends


def check_gain_model(
    examples: ExamplesConfig, limit: int, tokenizer: Tokenizer | None = None
) -> None:
    """Stops on a model that cannot judge groups of `limit` tokens; reads no weights."""
    field = f"design.examples.gain_model: {examples.gain_model}"
    try:
        config = huggingface.read_config(examples.gain_model)
    except huggingface.FolderError as error:
        raise ConfigError(f"design.examples.gain_model: {error}") from None
    most, found = position_limit(config), []
    if most is not None and most < limit:
        found.append(
            f"it has {most} positions, fewer than the {limit} tokens of an example; lower "
            "design.examples.max_tokens, or choose another model"
        )
    masked = not isinstance(config, GPTConfig)
    if masked and not config.mlm_head:
        found.append("it has no MLM head, so it predicts no token; choose one that has")
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        found.append(
            f"it knows {config.vocab_size} tokens, but the tokenizer has {tokenizer.vocab_size}, "
            "its separator included; choose a model trained with this tokenizer "
            "(python -m icl_jax.training.export)"
        )
    if tokenizer is not None and masked and tokenizer.mask_id is None:
        found.append(
            "it predicts masked tokens, but the tokenizer has no mask token; choose a GPT, or "
            "another tokenizer (design.tokenizer)"
        )
    if found:
        raise ConfigError("; ".join(f"{field}: {problem}" for problem in found))


def filter_groups(
    folder: Path,
    examples: ExamplesConfig,
    limit: int,
    mesh: Mesh | None,
    sentences: Sentences,
    tokenizer: Tokenizer,
) -> dict:
    """Writes beside the groups in `folder` which are kept, and to `folder`/gain what each gains."""
    check_gain_model(examples, limit, tokenizer)
    made_from = {"groups": read_inputs(folder), "limit": limit, "min_gain": examples.min_gain}
    step = StepFolder(folder / "gain", made_from | {"model": model_checksum(examples.gain_model)})
    if step.results is None:
        groups, model = Groups.open(folder), GainModel(examples.gain_model, limit, mesh)
        sizes = [_count_passages(shard) for shard in groups.shards]
        missing = [i for i in range(len(sizes)) if not keep_file(folder, i).exists()]
        done = sum(sizes) - sum(sizes[i] for i in missing)
        with progress_bar(total=sum(sizes), initial=done, unit="passage", desc="gain") as bar:
            for i in missing:
                gains, counts = measure(groups.shards[i], sentences, tokenizer, model, bar.update)
                _save(gain_file(folder, i), gains)
                _save(keep_file(folder, i), (counts == 0) | (gains > examples.min_gain))
        step.complete(_summary(folder, groups))
    return step.results


def measure(
    shard: GroupShard,
    sentences: Sentences,
    tokenizer: Tokenizer,
    model: GainModel,
    progress: Callable[[int], None] = lambda count: None,
) -> tuple[np.ndarray, np.ndarray]:
    """The gain of each group in nats per token (float32), and of how many tokens.

    Of a group of one sentence there is nothing to compare: 0, of 0 tokens.
    """
    reader = _Reader(shard, sentences, Marks.of(tokenizer), tokenizer.mask_id, model.masked)
    rows = np.flatnonzero(np.diff(shard.offsets) > 1).tolist()
    together, counts = model.losses(map(reader.together, rows), len(shard), progress)
    apart = itertools.chain.from_iterable(map(reader.apart, rows))
    apart, _ = model.losses(apart, len(shard), progress)
    return ((apart - together) / np.maximum(counts, 1)).astype(np.float32), counts


class _Reader:
    """The groups of a shard as the model reads them."""

    def __init__(
        self, shard: GroupShard, sentences: Sentences, marks: Marks, mask_id: int, masked: bool
    ):
        self.shard, self.sentences, self.marks = shard, sentences, marks
        self.mask_id, self.masked = mask_id, masked

    def together(self, row: int) -> Passage:
        """The group as one example."""
        tokens, chosen, _ = self._choose(row)
        return self._passage(tokens, chosen, row)

    def apart(self, row: int) -> Iterator[Passage]:
        """Each of its sentences as an example."""
        tokens, chosen, spans = self._choose(row)
        begin = [] if self.marks.begin is None else [self.marks.begin]
        for start, end in spans:
            framed = np.concatenate([begin, tokens[start:end], [self.marks.end]]).astype(np.int32)
            asked = np.zeros(len(framed), bool)
            asked[len(begin) : -1] = chosen[start:end]
            yield self._passage(framed, asked, row)

    def _choose(self, row: int) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]:
        """Tokens of the example, which are asked for, and from where to where sentences reach."""
        tokens, starts = in_context(self.sentences, self.shard, row, self.marks)
        special = np.isin(tokens, [mark for mark in self.marks if mark is not None])
        ids = self.shard.ids[self.shard.offsets[row] : self.shard.offsets[row + 1]]
        chosen, spans = np.zeros(len(tokens), bool), []
        for sentence, start, end in zip(ids, starts, [*starts[1:], len(tokens)], strict=True):
            while end > start and special[end - 1]:
                end -= 1
            spans.append((start, end))
            chosen[start:end] = self._asked(sentence, end - start)
        return tokens, chosen, spans

    def _asked(self, sentence: int, length: int) -> np.ndarray:
        """Which tokens of a sentence are asked for, the same wherever it stands."""
        if not self.masked:
            return np.arange(length) > 0
        draw = np.random.RandomState(sentence % 2**32).random_sample(length)
        return (draw < MASK_SHARE) | (draw == draw.min(initial=1))

    def _passage(self, tokens: np.ndarray, chosen: np.ndarray, row: int) -> Passage:
        if self.masked:
            return Passage(np.where(chosen, np.int32(self.mask_id), tokens), tokens, chosen, row)
        # A GPT says at each place what comes next. The first token is never asked for.
        return Passage(tokens, np.roll(tokens, -1), np.roll(chosen, -1), row)


def gain_file(folder: Path, shard: int) -> Path:
    """Where the gains of a shard of the groups in `folder` lie."""
    return folder / "gain" / f"gain-{shard:05d}.npy"


def _count_passages(shard: GroupShard) -> int:
    """The groups of more than one sentence, and all sentences of theirs."""
    sizes = np.diff(shard.offsets)
    return int((sizes[sizes > 1] + 1).sum())


def _summary(folder: Path, groups: Groups) -> dict:
    shards = range(len(groups.shards))
    gains = np.concatenate([np.load(gain_file(folder, i)) for i in shards])
    keep = np.concatenate([np.load(keep_file(folder, i)) for i in shards])
    compared = gains[groups.sizes > 1].astype(np.float64)
    counts, _ = np.histogram(np.clip(compared, _EDGES[0], _EDGES[-1]), _EDGES)
    return {
        "groups": len(groups),
        "one_sentence": len(gains) - len(compared),
        "kept": int(keep.sum()),
        "mean_gain": round(float(compared.mean()), 4) if len(compared) else None,
        "gain_edges": _EDGES.tolist(),
        "gain_counts": counts.tolist(),
    }


def _save(file: Path, array: np.ndarray) -> None:
    with beside(file) as partial, partial.open("wb") as opened:
        np.save(opened, array)
