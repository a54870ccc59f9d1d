"""The random control holds the same sentences, dealt to queries that they are not related to."""

import types

import numpy as np
import pyarrow as pa
import pytest

from icl_jax.config import StageError
from icl_jax.design.groups import GroupShard, write_groups
from icl_jax.design.records.layout import Marks
from icl_jax.design.strategies.random import (
    Related,
    Slots,
    check_related,
    deal,
    deal_anew,
    related_share,
)
from icl_jax.retrieval.neighbours import Neighbours

MARKS = Marks(None, 1, 2)


def made_up(num_groups=200, num_sentences=500, seed=0):
    """Groups of a query and up to five neighbours; lengths from 3 to 12, documents of four."""
    rng = np.random.default_rng(seed)
    rows = [
        rng.choice(num_sentences, 1 + rng.integers(6), replace=False) for _ in range(num_groups)
    ]
    offsets = np.append(0, np.cumsum([len(row) for row in rows]))
    ids = np.concatenate(rows)
    lengths = rng.integers(3, 13, num_sentences)
    return GroupShard(offsets, ids, np.ones(len(ids), np.float32)), lengths, ids.max() + 1


def more_related(slots, seed=0):
    """For each query, besides the neighbours of its group, two that did not fit."""
    rng = np.random.default_rng(seed)
    rows = [
        np.append(slots.originals[a:b], rng.integers(0, 500, 2))
        for a, b in zip(slots.first, slots.first[1:])
    ]
    return Related(np.append(0, np.cumsum([len(row) for row in rows])), np.concatenate(rows))


def tokens_of(groups, ids, lengths):
    return np.add.reduceat(lengths[ids] + 1, groups.offsets[:-1])


@pytest.mark.parametrize("seed", range(5))
def test_same_sentences_same_counts_same_lengths_and_no_relation(seed):
    groups, lengths, _ = made_up(seed=seed)
    documents = np.arange(len(lengths)) // 4
    slots = Slots.of([groups], [np.ones(len(groups), bool)])
    room = int((tokens_of(groups, groups.ids, lengths) - 1).max())
    related = more_related(slots, seed)
    dealt, left = deal(slots, related, lengths, lengths[slots.queries], documents, room, 1, seed)
    assert left == 0
    assert sorted(dealt) == sorted(slots.originals)
    for group, query in enumerate(slots.queries):
        part = slice(slots.first[group], slots.first[group + 1])
        got, before = dealt[part], related.to(group)
        assert {*slots.originals[part]} <= {*before}
        assert len({query, *got}) == len(got) + 1
        assert not {*got} & {*before}
        assert not (documents[got] == documents[query]).any()
        assert lengths[query] + lengths[got].sum() + len(got) <= room
    # Nearly every group is as long as it was: lengths differ only where no other swap was found.
    before = np.array(
        [lengths[slots.originals[a:b]].sum() for a, b in zip(slots.first, slots.first[1:])]
    )
    after = np.array([lengths[dealt[a:b]].sum() for a, b in zip(slots.first, slots.first[1:])])
    assert np.mean(before == after) > 0.95


@pytest.mark.parametrize("between", [1, 2])
@pytest.mark.parametrize("seed", [6, 9, 10])
def test_no_group_outgrows_its_room_where_no_two_sentences_are_equally_long(seed, between):
    groups, _, _ = made_up(60, 200, seed=seed)
    lengths = 3 + np.random.default_rng(seed).permutation(200)
    slots = Slots.of([groups], [np.ones(len(groups), bool)])
    room = int((tokens_of(groups, groups.ids, lengths + between - 1) - between).max())
    related = more_related(slots, seed)
    dealt, left = deal(slots, related, lengths, lengths[slots.queries], None, room, between, seed)
    assert left == 0 and (dealt != slots.originals).all()
    for query, first, last in zip(slots.queries, slots.first, slots.first[1:]):
        assert lengths[query] + (lengths[dealt[first:last]] + between).sum() <= room


def test_the_deal_is_random_and_the_seed_decides():
    groups, lengths, _ = made_up(400)
    slots = Slots.of([groups], [np.ones(len(groups), bool)])
    first, again, other = (
        deal(slots, more_related(slots), lengths, lengths[slots.queries], None, 100, 1, seed)[0]
        for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert np.mean(first == other) < 0.1


@pytest.mark.parametrize("size", [2, 3, 4])
def test_no_group_gets_a_sentence_twice_wherever_in_it(size):
    neighbours = np.arange(60 * size) % 12  # of 12 sentences each is dealt many times
    offsets = np.arange(61) * (size + 1)
    ids = np.insert(neighbours, np.arange(60) * size, np.arange(100, 160))
    slots = Slots.of([GroupShard(offsets, ids, np.ones(len(ids), np.float32))], [np.ones(60, bool)])
    related = Related(np.zeros(61, np.int64), np.empty(0, np.int64))
    lengths = np.full(160, 5)
    dealt, left = deal(slots, related, lengths, lengths[slots.queries], None, 100, 1, 0)
    assert left == 0 and all(len({*group}) == size for group in dealt.reshape(60, size))


def test_groups_that_the_gain_filter_left_out_give_and_get_nothing():
    groups, lengths, _ = made_up()
    keep = np.arange(len(groups)) % 2 == 0
    slots = Slots.of([groups], [keep])
    assert (slots.queries == groups.ids[groups.offsets[:-1]][keep]).all()
    assert len(slots.originals) == (np.diff(groups.offsets) - 1)[keep].sum()
    dealt, _ = deal(slots, more_related(slots), lengths, lengths[slots.queries], None, 100, 1, 0)
    assert sorted(dealt) == sorted(slots.originals)


def test_a_control_with_too_many_related_sentences_is_refused_unless_the_user_says_otherwise():
    found = {"dealt": 200, "above_threshold": 10}
    assert related_share(found) == 0.05
    told = (
        r"10 of 200 random companions \(5\.0%\) are related.* above design\.search\.min_sim.* 0\.3"
    )
    with pytest.raises(
        StageError, match=told + r"; expected less than .*max_related_share = 0\.05"
    ):
        check_related(found, 0.3, 0.05)
    check_related(found, 0.3, 0.06)
    check_related(found | {"above_threshold": 9}, 0.3, 0.05)
    check_related(found | {"above_threshold": 200}, 0.3, 1.0)  # never
    with pytest.raises(StageError, match=r"1 of 200"):
        check_related(found | {"above_threshold": 1}, 0.3, 0.0)
    check_related({"dealt": 0, "above_threshold": 0}, 0.3, 0.0)


def test_a_pool_that_allows_no_other_arrangement_is_reported(tmp_path):
    groups = GroupShard(np.array([0, 3]), np.array([0, 1, 2]), np.ones(3, np.float32))
    write_groups(tmp_path, 0, groups)

    corpus = types.SimpleNamespace(lengths=np.full(3, 5), documents=np.arange(3))
    sentences = types.SimpleNamespace(
        corpus=corpus, queries=None, first_query=0, lengths_of=lambda ids: corpus.lengths[ids]
    )
    found = pa.record_batch({"ids": pa.array([[1, 2], [], []], pa.list_(pa.int64()))})
    neighbours = Neighbours([found], {})
    with pytest.raises(
        StageError, match=r"of 2 neighbours of 1 groups, 2 are related to every query"
    ):
        deal_anew(tmp_path, neighbours, sentences, False, 100, MARKS, 1, 0, tmp_path)
