"""The random control: every query keeps its number of sentences, dealt again from the same pool.

All neighbours of all groups are laid out as slots and dealt again at random, so that both arms
hold the same sentences, each as often. A sentence goes to a slot of its own token length, so that
both arms also have examples of the same lengths. What a query must not get (its neighbours, itself,
its document, a sentence twice) is swapped with another slot.
"""

from collections.abc import Sequence
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from icl_jax.config import DesignConfig, StageError
from icl_jax.design.groups import Groups, GroupShard, read_groups, read_keep, write_groups
from icl_jax.design.records.layout import Marks
from icl_jax.design.sentences import Sentences, open_sentences
from icl_jax.design.strategies import neighbours as neighbour_groups
from icl_jax.design.strategies.strategy import Count, Strategy
from icl_jax.files.arrays import save_array
from icl_jax.retrieval.neighbours import Neighbours
from icl_jax.retrieval.vectors import Vectors

if TYPE_CHECKING:
    from icl_jax.design.build import Build
    from icl_jax.design.explain.reasons import Reasons

WARN_SHARE = 0.01  # of random companions that are related: from here on the stage warns
_DEALT = "dealt.npy"
_BLOCK = 8192  # vectors that are compared at once
_TRIES = 200  # to find a slot to swap with
_FAR = 50  # so many of them among sentences of the same length


def make_groups(build: "Build") -> Groups:
    """Deals the neighbours again; stops if too many of them are related to their new query."""
    groups, search = build.folders.groups / "neighbours", build.config.design.search
    table, own = build.sentences.query_table, build.sentences.queries is not None
    vectors = build.folders.query_vectors if own else build.folders.corpus_vectors
    vectors = (str(build.folders.corpus_vectors), str(vectors))
    slots = [count_slots(str(groups), shard) for shard in range(table.num_shards)]
    first_slot = [sum(slots[:shard]) for shard in range(len(slots))]
    first = (
        build.workdir, build.sentences.fingerprint, str(groups), vectors, search.min_similarity
    )  # fmt: skip

    def deal_once(folder: Path) -> dict:
        return deal_anew(
            groups, build.neighbours, build.sentences, search.same_document, build.limit,
            build.marks, build.between, build.config.seed, folder,
        )  # fmt: skip

    made = build.by_shard(
        "random",
        {**build.kept_groups("neighbours"), "seed": build.config.seed},
        make_shard,
        lambda folder, shard: (*first, folder, shard, first_slot[shard]),
        table.starts,
        deal_once,
    )
    # Not an input: a build that stopped here continues once the user allows it.
    check_related(made.results, search.min_similarity, build.examples.max_related_share)
    return made


def why_no_more(reasons: "Reasons", ids: list[int], left: int) -> str:
    """Random sentences replace the neighbours of the query; why it has no more of these."""
    found, scores = reasons.related(reasons.folders.neighbours, ids[0])
    taken = len(ids) - 1
    replaced = ", ".join(f"#{i} ({s:.3f})" for i, s in zip(found[:taken], scores[:taken]))
    own = [ids[0], *found[:taken].tolist()]
    used = int(reasons.sentences.lengths_of(own).sum()) + taken + reasons.marks.ends
    return (
        "dealt at random from the neighbours of all queries, as many as the query's own, in "
        f"place of {replaced or 'none'}\nno more of its own: "
        + neighbour_groups.why_no_more(reasons, own, reasons.limit - used)
    )


def remark(arms: Sequence[str], results: dict, design: DesignConfig) -> str:
    """Whether these arms are a valid control."""
    warning = ""
    if related_share(results) >= WARN_SHARE:
        warning = "WARNING: a control should have less than 1%. "
    share = describe_related(results, design.search.min_similarity)
    return f"{warning}{', '.join(arms)}: {share}"


@dataclasses.dataclass
class Slots:
    """The places of all neighbours; a slot belongs to a group, a group has a query."""

    group: np.ndarray  # of each slot, ascending
    queries: np.ndarray  # of each group
    originals: np.ndarray  # of each slot, the neighbour that was there
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


@dataclasses.dataclass
class Related:
    """All neighbours of each query, also those that did not fit into its group."""

    first: np.ndarray  # of each group, and one more
    ids: np.ndarray

    @classmethod
    def of(cls, neighbours: Neighbours, rows: np.ndarray) -> "Related":
        """The neighbours of these rows of the query table, ascending."""
        counts, ids = [], []
        cuts = np.searchsorted(rows, neighbours.starts)
        for shard, start in enumerate(neighbours.starts[:-1]):
            column = neighbours.shard(shard)["ids"]
            offsets, values = column.offsets.to_numpy(), column.values.to_numpy()
            chosen = rows[cuts[shard] : cuts[shard + 1]] - start
            size = offsets[chosen + 1] - offsets[chosen]
            within = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
            counts.append(size)
            ids.append(values[np.repeat(offsets[chosen], size) + within])
        return cls(np.append(0, np.cumsum(np.concatenate(counts))), np.concatenate(ids))

    def to(self, group: int) -> np.ndarray:
        """The neighbours of the query of a group."""
        return self.ids[self.first[group] : self.first[group + 1]]


def deal_anew(
    groups: Path,
    neighbours: Neighbours,
    sentences: Sentences,
    same_document: bool,
    limit: int,
    marks: Marks,
    between: int,
    seed: int,
    folder: Path,
) -> dict[str, int]:
    """Deals the neighbours of all groups again and stores the result, once for all shards.

    `groups` is the folder of the neighbour groups.
    """
    shards = [read_groups(groups, index) for index in range(len(neighbours.shards))]
    kept = [read_keep(groups, index, len(shard)) for index, shard in enumerate(shards)]
    slots = Slots.of(shards, kept)
    related = Related.of(neighbours, slots.queries - sentences.first_query)
    # Everything dealt is from the corpus; queries of a task belong to no document of it.
    documents = sentences.corpus.documents
    if same_document or sentences.queries is not None:
        documents = None
    lengths, of_queries = sentences.corpus.lengths, sentences.lengths_of(slots.queries)
    room = limit - marks.ends
    dealt, left = deal(slots, related, lengths, of_queries, documents, room, between, seed)
    if 2 * left > len(dealt) > 0:
        raise StageError(
            f"the arms random_* cannot be made: of {len(dealt)} neighbours of {len(slots.queries)} "
            f"groups, {left} are related to every query that they could go to; use a larger "
            "corpus, or leave these arms out (design.examples.arms)"
        )
    save_array(folder / _DEALT, dealt)
    return {
        "dealt": len(dealt),
        "still_related": left,
        "same_length_groups": _count_same_length(slots, lengths, dealt),
    }


def related_share(results: dict) -> float:
    """How much of what was dealt is related to its query: exact cosine above the threshold."""
    return results["above_threshold"] / max(1, results["dealt"])


def describe_related(results: dict, threshold: float) -> str:
    """How many of the random companions are related to their query."""
    return (
        f"{results['above_threshold']:,} of {results['dealt']:,} random companions "
        f"({related_share(results):.1%}) are related to their query: cosine above "
        f"design.search.min_similarity = {threshold:g}"
    )


def check_related(results: dict, threshold: float, most: float) -> None:
    """Stops if the control is not valid."""
    if results["above_threshold"] and most < 1 and related_share(results) >= most:
        raise StageError(
            f"the arms random_* are not a valid control: {describe_related(results, threshold)}; "
            f"expected less than design.examples.max_related_share = {most:g}. Use a larger corpus "
            "or a higher min_similarity, leave these arms out (design.examples.arms), or raise "
            "max_related_share to build them anyway"
        )


def make_shard(
    workdir: str,
    fingerprint: str,
    groups: str,
    vectors: tuple[str, str],
    threshold: float,
    folder: str,
    index: int,
    first_slot: int,
) -> None:
    """One shard: the neighbour groups with what was dealt to them, and its cosine to the query.

    `groups` is the folder of the neighbour groups, `vectors` are those of corpus and queries.
    Counts what is above the threshold of the search nevertheless: near duplicates of the query, and
    what an approximate search missed.
    """
    sentences = open_sentences(workdir, fingerprint)
    shard = read_groups(Path(groups), index)
    slots = Slots.of([shard], [read_keep(Path(groups), index, len(shard))])
    dealt = np.load(Path(folder) / _DEALT, mmap_mode="r")[first_slot:][: len(slots.group)]
    of_pool, of_queries = (Vectors.open(Path(place)) for place in vectors)
    scores = np.empty(len(dealt), np.float32)
    for start in range(0, len(dealt), _BLOCK):
        part = slice(start, start + _BLOCK)
        queries = slots.queries[slots.group[part]] - sentences.first_query
        scores[part] = np.vecdot(of_pool.take(dealt[part]), of_queries.take(queries))
    above = int((scores > threshold).sum())
    offsets = slots.first + np.arange(len(slots.first))
    ids = np.insert(dealt, slots.first[:-1], slots.queries)
    scores = np.insert(scores, slots.first[:-1], 1)
    write_groups(Path(folder), index, GroupShard(offsets, ids, scores), {"above_threshold": above})


def count_slots(groups: str, index: int) -> int:
    """How many slots a shard of neighbour groups has."""
    shard = read_groups(Path(groups), index)
    keep = read_keep(Path(groups), index, len(shard))
    return int((np.diff(shard.offsets) - 1)[keep].sum())


def deal(
    slots: Slots,
    related: Related,
    lengths: np.ndarray,
    query_lengths: np.ndarray,
    documents: np.ndarray | None,
    room: int,
    between: int,
    seed: int,
) -> tuple[np.ndarray, int]:
    """The sentence that each slot gets, and how many slots had to keep one that they should not.

    `room` is how many tokens a group may have, `between` how many each sentence takes besides its
    own; `documents` is None if sentences of the query's document are allowed.
    """
    rng = np.random.RandomState(seed)
    length = lengths[slots.originals]
    by_length = np.argsort(length, kind="stable")
    sorted_length = length[by_length]
    shuffled = rng.permutation(slots.originals)
    dealt = np.empty_like(slots.originals)
    dealt[by_length] = shuffled[np.argsort(lengths[shuffled], kind="stable")]
    del shuffled
    table = _Table(slots, related, dealt, lengths, query_lengths, documents, room, between)
    left = 0
    for slot in np.flatnonzero(_conflicts(slots, related, dealt, documents)).tolist():
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
    """Where the sentences are while they are swapped."""

    def __init__(
        self,
        slots: Slots,
        related: Related,
        dealt: np.ndarray,
        lengths: np.ndarray,
        query_lengths: np.ndarray,
        documents: np.ndarray | None,
        room: int,
        between: int,
    ):
        self.slots, self.related, self.dealt = slots, related, dealt
        self.lengths, self.documents = lengths, documents
        used = np.append(0, np.cumsum(lengths[dealt], dtype=np.int64))[slots.first]
        self.free = room - query_lengths - np.diff(used) - between * np.diff(slots.first)

    def allows(self, slot: int, sentence: int) -> bool:
        """Whether a sentence may replace the one in a slot."""
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
            or (self.related.to(group) == sentence).any()
        )

    def swap(self, a: int, b: int) -> bool:
        """Swaps the sentences of two slots if both are then allowed."""
        dealt, group = self.dealt, self.slots.group
        if not (self.allows(a, dealt[b]) and self.allows(b, dealt[a])):
            return False
        more = self.lengths[dealt[b]] - self.lengths[dealt[a]]
        self.free[group[a]] -= more
        self.free[group[b]] += more
        dealt[a], dealt[b] = dealt[b], dealt[a]
        return True


def _count_same_length(slots: Slots, lengths: np.ndarray, dealt: np.ndarray) -> int:
    """The number of groups with as many tokens as with their neighbours."""
    more = np.append(0, np.cumsum(lengths[dealt].astype(np.int64) - lengths[slots.originals]))
    return int((np.diff(more[slots.first]) == 0).sum())


def _conflicts(
    slots: Slots, related: Related, dealt: np.ndarray, documents: np.ndarray | None
) -> np.ndarray:
    """Slots that hold what their query must not get; of two equal sentences, only the second.

    In passes over all slots rather than by sorting: there may be a billion of them.
    """
    query = slots.queries[slots.group]
    wrong = dealt == query
    if documents is not None:
        wrong |= documents[dealt] == documents[query]
    del query
    counts = np.diff(related.first)
    for rank in range(counts.max(initial=0)):
        has_one = (rank < counts)[slots.group]
        place = related.first[slots.group[has_one]] + rank
        wrong[has_one] |= related.ids[place] == dealt[has_one]
    for distance in range(1, np.diff(slots.first).max(initial=0)):
        same_group = slots.group[distance:] == slots.group[:-distance]
        wrong[distance:] |= same_group & (dealt[distance:] == dealt[:-distance])
    return wrong


STRATEGY = Strategy(
    make_groups,
    why_no_more,
    remark=remark,
    counts={
        "dealt": Count("dealt again"),
        "still_related": Count(
            "of these, stayed with a query that they are related to, because no other was possible"
        ),
        "above_threshold": Count(
            "of these, related to their query: exact cosine above the threshold",
            related_share,
            "their share, in every arm random_* (a control should have less than 1%)",
            2,
        ),
        "same_length_groups": Count(
            "groups as long as with their neighbours",
            lambda results: results["same_length_groups"] / max(1, results["groups"]),
        ),
    },
)
