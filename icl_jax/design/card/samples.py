"""Sample groups for the reader: the same sentence as each strategy groups it."""

from collections.abc import Sequence
import os

import numpy as np

from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.design.arms import ARMS, has_queries, strategies_of
from icl_jax.design.explain.group_text import GroupReader
from icl_jax.design.folders import DesignFolders
from icl_jax.design.groups import Groups, read_keep
from icl_jax.design.sentences import Sentences


def take_samples(
    workdir: str | os.PathLike,
    strategies: Sequence[str],
    count: int,
    seed: int,
    also: Sequence[int] = (),
) -> dict:
    """`count` sentences, chosen at random, with their group under each strategy.

    Sentences and documents are listed once, by id, because several groups hold the same; `also` are
    more sentences to describe. A strategy that never saw the chosen ones (running text, if the
    queries are of a task) shows other groups instead.
    """
    folders = DesignFolders(workdir)
    reader = GroupReader(Sentences.open(workdir), Tokenizer.open(folders.tokenizer))
    groups = {name: Groups.open(folders.groups / name) for name in strategies}
    first = _richest(groups)
    chosen = _draw_kept(groups[first], folders.groups / first, count, seed)
    anchors = [int(groups[first].of(group)[0][0]) for group in chosen]
    samples = [{"sentence": anchor, "groups": {}} for anchor in anchors]
    for name, found in groups.items():
        numbers = _find(found, anchors, has_queries(name))
        elsewhere = not numbers
        if elsewhere:
            numbers = dict(zip(anchors, _draw(len(found), len(anchors), seed)))
        for sample in samples:
            number = numbers.get(sample["sentence"])
            if number is not None:
                kept = _is_kept(found, folders.groups / name, number)
                shown = {"kept": kept, "elsewhere": elsewhere, **reader.read(found, number)}
                sample["groups"][name] = shown
    ids = [id for sample in samples for group in sample["groups"].values() for id in group["ids"]]
    return {
        "samples": samples,
        "marks": reader.mark_names,
        **reader.describe([*ids, *anchors, *also]),
    }


def _richest(groups: dict[str, Groups]) -> str:
    """The first strategy whose groups are a query with others; else with queries; else any."""

    def rank(name: str) -> tuple[bool, bool]:
        asked = has_queries(name)
        return asked, asked and int(groups[name].sizes.sum()) > len(groups[name])

    return max(sorted(groups, key=strategies_of(ARMS).index), key=rank)


def _draw(size: int, count: int, seed: int) -> list[int]:
    """Different numbers below `size`, in random order; memory does not grow with `size`."""
    rng = np.random.RandomState(seed)
    if size <= 4 * count:
        return rng.permutation(size)[:count].tolist()
    drawn = rng.randint(0, size, 4 * count, np.int64).tolist()
    return list(dict.fromkeys(drawn))[:count]


def _draw_kept(groups: Groups, folder: os.PathLike, count: int, seed: int) -> list[int]:
    """The same, among the groups that the gain filter kept, which may be few."""
    sizes = list(enumerate(map(len, groups.shards)))
    kept = np.cumsum([0, *(int(read_keep(folder, *size).sum()) for size in sizes)])
    numbers = []
    for place in _draw(int(kept[-1]), count, seed):
        shard = int(np.searchsorted(kept, place, side="right")) - 1
        rows = np.flatnonzero(read_keep(folder, *sizes[shard]))
        numbers.append(int(groups.starts[shard] + rows[place - kept[shard]]))
    return numbers


def _is_kept(groups: Groups, folder: os.PathLike, number: int) -> bool:
    """Whether the gain filter kept a group."""
    shard = int(np.searchsorted(groups.starts, number, side="right")) - 1
    keep = read_keep(folder, shard, len(groups.shards[shard]))
    return bool(keep[number - groups.starts[shard]])


def _find(groups: Groups, sentences: Sequence[int], as_query: bool) -> dict[int, int]:
    """Sentence -> the first group that it begins (or, if not `as_query`, that holds it)."""
    found: dict[int, int] = {}
    for start, shard in zip(groups.starts, groups.shards):
        ids = shard.ids[shard.offsets[:-1]] if as_query else shard.ids
        for place in np.flatnonzero(np.isin(ids, sentences)).tolist():
            row = place
            if not as_query:
                row = int(np.searchsorted(shard.offsets, place, side="right")) - 1
            found.setdefault(int(ids[place]), int(start) + row)
    return found
