"""Some groups for people to look at: the same sentence as each strategy groups it."""

from collections.abc import Sequence
import os

import numpy as np

from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.example_design.groups import Groups, read_keep
from icl_jax.example_design.layout import Marks, in_context
from icl_jax.example_design.sentences import Sentences
from icl_jax.retrieval.design_folders import DesignFolders

# Groups of these begin with a query; in the others the sentence is looked for anywhere.
WITH_QUERY = ("neighbours", "random", "shared_entity", "task_only")
_CHOSEN_FROM = (*WITH_QUERY, "contiguous", "document_path")


def take_samples(
    workdir: str | os.PathLike,
    strategies: Sequence[str],
    count: int,
    seed: int,
    also: Sequence[int] = (),
) -> dict:
    """`count` sentences, chosen at random, with their group under each strategy.

    Sentences and documents stand apart, by id, for several groups hold the same; `also` are more
    sentences to describe. A strategy that
    never saw the chosen ones (running text, where a task asks) shows other groups instead.
    """
    folders = DesignFolders(workdir)
    reader = GroupReader(Sentences.open(workdir), Tokenizer.open(folders.tokenizer))
    groups = {name: Groups.open(folders.groups / name) for name in strategies}
    first = next(name for name in _CHOSEN_FROM if name in groups)
    kept = [_kept(groups[first], folders.groups / first, group)
            for group in _draw(len(groups[first]), 2 * count, seed)]  # fmt: skip
    anchors = [int(groups[first].of(group)[0][0]) for group, keep in kept if keep][:count]
    samples = [{"sentence": anchor, "groups": {}} for anchor in anchors]
    for name, found in groups.items():
        numbers = _find(found, anchors, name in WITH_QUERY)
        elsewhere = not numbers
        if elsewhere:
            numbers = dict(zip(anchors, _draw(len(found), len(anchors), seed)))
        for sample in samples:
            number = numbers.get(sample["sentence"])
            if number is not None:
                _, keep = _kept(found, folders.groups / name, number)
                shown = {"kept": keep, "elsewhere": elsewhere, **reader.read(found, number)}
                sample["groups"][name] = shown
    ids = [id for sample in samples for group in sample["groups"].values() for id in group["ids"]]
    return {
        "samples": samples,
        "marks": reader.mark_names,
        **reader.describe([*ids, *anchors, *also]),
    }


class GroupReader:
    """Groups as a data card shows them."""

    def __init__(self, sentences: Sentences, tokenizer: Tokenizer):
        self.sentences, self.marks = sentences, Marks.of(tokenizer)
        names = {mark: tokenizer.library.id_to_token(id)
                 for mark, id in self.marks._asdict().items() if id is not None}  # fmt: skip
        self.mark_names = {mark: names.get(mark) for mark in Marks._fields}
        self._name_of = {getattr(self.marks, mark): name for mark, name in names.items()}

    def read(self, groups: Groups, number: int) -> dict:
        """A group with its scores, and the special tokens around each of its sentences."""
        ids, similarities = groups.of(number)
        tokens, starts = in_context(self.sentences, *groups.place(number), self.marks)
        return {
            "group": number,
            "ids": ids.tolist(),
            "similarities": [None if np.isnan(s) else round(float(s), 4) for s in similarities],
            "tokens": len(tokens),
            **self.split(tokens, starts),
        }

    def split(self, tokens: np.ndarray, starts: np.ndarray) -> dict:
        """Of each sentence how many tokens it has, and the special tokens that follow it.

        `before` are those before the first.
        """
        pieces = np.split(tokens, starts)
        ends = [self._names(piece) for piece in pieces]
        lengths = [len(piece) - len(end) for piece, end in zip(pieces, ends)]
        return {"before": ends[0], "lengths": lengths[1:], "after": ends[1:]}

    def describe(self, ids: Sequence[int]) -> dict:
        """What is known about these sentences and their documents, by id."""
        ids = sorted(set(ids))
        documents = self.sentences.documents_of(ids).tolist()
        texts = self.sentences.text_of(ids)
        described = {
            id: {"text": text, "document": document, "position": self.sentences.position(id)}
            for id, text, document in zip(ids, texts, documents)
        }
        places = {id: self.sentences.document(id)._asdict() for id in sorted(set(documents))}
        return {"sentences": described, "documents": places}

    def _names(self, piece: np.ndarray) -> list[str]:
        """The special tokens at the end of a piece."""
        special = np.isin(piece, list(self._name_of))
        count = int(np.argmin(np.append(special[::-1], False)))
        return [self._name_of[int(token)] for token in piece[len(piece) - count :]]


def _draw(size: int, count: int, seed: int) -> list[int]:
    """Different numbers below `size`, in random order; memory does not grow with `size`."""
    rng = np.random.RandomState(seed)
    if size <= 4 * count:
        return rng.permutation(size)[:count].tolist()
    drawn = rng.randint(0, size, 4 * count, np.int64).tolist()
    return list(dict.fromkeys(drawn))[:count]


def _kept(groups: Groups, folder: os.PathLike, number: int) -> tuple[int, bool]:
    """The number again, and whether the gain filter kept the group."""
    shard = int(np.searchsorted(groups.starts, number, side="right")) - 1
    keep = read_keep(folder, shard, len(groups.shards[shard]))
    return number, bool(keep[number - groups.starts[shard]])


def _find(groups: Groups, sentences: Sequence[int], as_query: bool) -> dict[int, int]:
    """Sentence -> the first group that it begins, or that holds it at all."""
    found: dict[int, int] = {}
    for start, shard in zip(groups.starts, groups.shards):
        ids = shard.ids[shard.offsets[:-1]] if as_query else shard.ids
        for place in np.flatnonzero(np.isin(ids, sentences)).tolist():
            row = place
            if not as_query:
                row = int(np.searchsorted(shard.offsets, place, side="right")) - 1
            found.setdefault(int(ids[place]), int(start) + row)
    return found
