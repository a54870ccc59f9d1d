"""The random control: every query with as many sentences as before, dealt anew from the same pool.

All neighbours of all groups are laid out as slots and dealt again at random, so that both arms
hold the same sentences, each as often. A sentence goes to a slot of its own token length, so that
both arms have examples of the same lengths too. What a query must not get (its own neighbours,
itself, its document, a sentence twice) is swapped away.
"""

import dataclasses
from pathlib import Path

import numpy as np

from icl_jax.config import StageError
from icl_jax.example_design.groups import GroupShard, read_groups, read_keep, write_groups
from icl_jax.example_design.layout import Marks
from icl_jax.example_design.sentences import Sentences, open_sentences
from icl_jax.retrieval.vectors import Vectors
from icl_jax.step_folder import beside

_DEALT = "dealt.npy"
_TRIES = 200  # to find a partner for a sentence that must go elsewhere
_FAR = 50  # so many of them among sentences of the same length


@dataclasses.dataclass
class Slots:
    """The places of all neighbours; a slot belongs to a group, a group has a query."""

    group: np.ndarray  # of each slot, ascending
    queries: np.ndarray  # of each group
    originals: np.ndarray  # of each slot, the neighbour that stood there
    first: np.ndarray  # slot of each group, and one more

    @classmethod
    def of(cls, groups: list[GroupShard], kept: list[np.ndarray]) -> "Slots":
        """The slots of all kept groups, shard after shard."""
        sizes, queries, originals = [], [], []
        for shard, keep in zip(groups, kept, strict=True):
            counts = np.diff(shard.offsets)
            is_query = np.zeros(len(shard.ids), bool)
            is_query[shard.offsets[:-1]] = True
            queries.append(shard.ids[shard.offsets[:-1]][keep])
            originals.append(shard.ids[~is_query & np.repeat(keep, counts)])
            sizes.append(counts[keep] - 1)
        sizes = np.concatenate(sizes)
        group = np.repeat(np.arange(len(sizes)), sizes)
        first = np.append(0, np.cumsum(sizes))
        return cls(group, np.concatenate(queries), np.concatenate(originals), first)


def deal_anew(
    neighbours: Path,
    num_shards: int,
    sentences: Sentences,
    same_document: bool,
    limit: int,
    marks: Marks,
    seed: int,
    folder: Path,
) -> dict[str, int]:
    """Deals the neighbours of all groups anew and stores the result; one global step.

    `neighbours` is the folder of the neighbour groups.
    """
    shards = [read_groups(neighbours, index) for index in range(num_shards)]
    kept = [read_keep(neighbours, index, len(shard)) for index, shard in enumerate(shards)]
    slots = Slots.of(shards, kept)
    # All that is dealt is of the corpus; of a task's own queries only the lengths matter.
    lengths, documents = sentences.corpus.lengths, sentences.corpus.documents
    if same_document or sentences.queries is not None:
        documents = None
    dealt, left = deal(
        slots, lengths, sentences.lengths_of(slots.queries), documents, limit - marks.ends, seed
    )
    if 2 * left > len(dealt) > 0:
        raise StageError(
            f"the arms random_* cannot be made: of {len(dealt)} neighbours of {len(slots.queries)} "
            f"groups, {left} find no other query that they are not related to; use a larger "
            "corpus, or leave these arms out (design.examples.arms)"
        )
    with beside(folder / _DEALT) as partial, partial.open("wb") as file:
        np.save(file, dealt)
    return {"dealt": len(dealt), "still_related": left}


def make_shard(
    workdir: str,
    fingerprint: str,
    neighbours: str,
    vectors: tuple[str, str],
    folder: str,
    index: int,
    first_slot: int,
) -> None:
    """One shard: the neighbour groups with what was dealt to them, and its cosine to the query.

    `vectors` are the folders of those of the corpus and of the queries.
    """
    sentences = open_sentences(workdir, fingerprint)
    groups = read_groups(Path(neighbours), index)
    slots = Slots.of([groups], [read_keep(Path(neighbours), index, len(groups))])
    dealt = np.load(Path(folder) / _DEALT, mmap_mode="r")[first_slot:][: len(slots.group)]
    offsets = slots.first + np.arange(len(slots.first))
    ids = np.insert(dealt, slots.first[:-1], slots.queries)
    of_pool, of_queries = (Vectors.open(Path(place)) for place in vectors)
    queries = of_queries.take(slots.queries - sentences.first_query)
    scores = np.vecdot(of_pool.take(dealt), queries[slots.group])
    scores = np.insert(scores.astype(np.float32), slots.first[:-1], 1)
    write_groups(Path(folder), index, GroupShard(offsets, ids, scores))


def count_slots(neighbours: str, index: int) -> int:
    """How many slots a shard of neighbour groups has."""
    groups = read_groups(Path(neighbours), index)
    keep = read_keep(Path(neighbours), index, len(groups))
    return int((np.diff(groups.offsets) - 1)[keep].sum())


def deal(
    slots: Slots,
    lengths: np.ndarray,
    query_lengths: np.ndarray,
    documents: np.ndarray | None,
    room: int,
    seed: int,
) -> tuple[np.ndarray, int]:
    """The sentence that each slot gets, and in how many slots one had to stay that should not.

    `room` is how many tokens a group may have; `documents` is None where those of the query are as
    good as others.
    """
    rng = np.random.RandomState(seed)
    length = lengths[slots.originals]
    by_length = np.argsort(length, kind="stable")
    sorted_length = length[by_length]
    dealt = np.empty_like(slots.originals)
    dealt[by_length] = slots.originals[np.lexsort((rng.random_sample(len(length)), length))]
    table = _Table(slots, dealt, lengths, query_lengths, documents, room)
    left = 0
    for slot in np.flatnonzero(_conflicts(slots, dealt, documents)).tolist():
        if table.allows(slot, dealt[slot]):  # an earlier swap has helped
            continue
        same = np.searchsorted(sorted_length, [length[slot], length[slot] + 1])
        for attempt in range(_TRIES):
            low, high = same if attempt < _FAR else (0, len(length))
            if table.swap(slot, int(by_length[rng.randint(low, high)])):
                break
        else:
            left += 1
    return dealt, left


class _Table:
    """Where the sentences lie while they are swapped."""

    def __init__(
        self,
        slots: Slots,
        dealt: np.ndarray,
        lengths: np.ndarray,
        query_lengths: np.ndarray,
        documents: np.ndarray | None,
        room: int,
    ):
        self.slots, self.dealt, self.lengths, self.documents = slots, dealt, lengths, documents
        sizes = np.diff(slots.first)
        used = np.append(0, np.cumsum(lengths[dealt], dtype=np.int64))[slots.first]
        self.free = room - query_lengths - np.diff(used) - sizes

    def allows(self, slot: int, sentence: int) -> bool:
        """Whether a sentence may lie in a slot, in place of what lies there."""
        slots, group = self.slots, self.slots.group[slot]
        query, mates = slots.queries[group], slice(slots.first[group], slots.first[group + 1])
        same_document = self.documents is not None and (
            self.documents[sentence] == self.documents[query]
        )
        twice = (self.dealt[mates] == sentence) & (np.arange(mates.start, mates.stop) != slot)
        more = self.lengths[sentence] - self.lengths[self.dealt[slot]]
        return not (
            sentence == query
            or same_document
            or more > self.free[group]
            or twice.any()
            or (slots.originals[mates] == sentence).any()
        )

    def swap(self, a: int, b: int) -> bool:
        """Exchanges what lies in two slots if both may then lie there."""
        dealt, group = self.dealt, self.slots.group
        if not (self.allows(a, dealt[b]) and self.allows(b, dealt[a])):
            return False
        more = self.lengths[dealt[b]] - self.lengths[dealt[a]]
        self.free[group[a]] -= more
        self.free[group[b]] += more
        dealt[a], dealt[b] = dealt[b], dealt[a]
        return True


def _conflicts(slots: Slots, dealt: np.ndarray, documents: np.ndarray | None) -> np.ndarray:
    """Slots that hold what their query must not get; of two equal sentences, the second."""
    query = slots.queries[slots.group]
    wrong = dealt == query
    if documents is not None:
        wrong |= documents[dealt] == documents[query]
    span = np.int64(max(dealt.max(initial=0), slots.originals.max(initial=0)) + 1)
    keys = slots.group * span + dealt
    wrong |= np.isin(keys, slots.group * span + slots.originals)
    order = np.argsort(keys, kind="stable")
    wrong[order[1:][keys[order[1:]] == keys[order[:-1]]]] = True
    return wrong
