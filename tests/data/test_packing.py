"""A plan holds every record once, in rows that fit, and keeps batch groups together."""

import dataclasses
import itertools

import numpy as np
import pytest

from icl_jax.data.packing import Plan, make_plan
from icl_jax.data.tfrecord import RecordError

LENGTH = 31


def some_records(units: bool, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 14, count).astype(np.int32)
    if not units:
        return tokens, np.full(count, -1)
    group = np.repeat(np.arange(count), rng.integers(1, 8, count))[:count]
    group[group % 5 == 0] = -1
    return tokens, group


def plan_of(tokens, group, *, pack, rows_together=12, seed=0, **others) -> Plan:
    return make_plan(
        tokens, group, sequence_length=LENGTH, rows_together=rows_together, pack=pack, seed=seed,
        **others,
    )  # fmt: skip


def rows_of(plan: Plan) -> list[list[int]]:
    return [plan.records_of(row).tolist() for row in range(plan.num_rows)]


@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize("pack", [False, True])
def test_every_record_is_in_one_row_that_it_fits(units, pack):
    tokens, group = some_records(units)
    rows = rows_of(plan_of(tokens, group, pack=pack))
    assert sorted(itertools.chain(*rows)) == list(range(len(tokens)))
    assert all(tokens[row].sum() <= LENGTH for row in rows)
    assert pack or max(map(len, rows)) == 1


@pytest.mark.parametrize("pack", [False, True])
def test_a_batch_group_lies_in_one_bundle(pack):
    tokens, group = some_records(units=True)
    plan = plan_of(tokens, group, pack=pack)
    assert plan.rows_per_bundle == 12 and plan.num_rows % 12 == 0
    bundles = {g: set() for g in group}
    for number, row in enumerate(rows_of(plan)):
        for record in row:
            bundles[group[record]].add(number // 12)
    assert all(len(found) == 1 for g, found in bundles.items() if g >= 0)


def test_a_shared_row_holds_whole_batch_groups_and_a_longer_group_shares_none():
    tokens, group = some_records(units=True)
    unit = np.cumsum(np.append(0, (group[1:] != group[:-1]) | (group[1:] < 0)))
    total = np.bincount(unit, tokens)
    assert (total > LENGTH).any() and (total < LENGTH // 2).any()
    shared = 0
    for row in filter(None, rows_of(plan_of(tokens, group, pack=True))):
        held = np.unique(unit[row])
        if len(held) > 1:
            assert sorted(row) == np.flatnonzero(np.isin(unit, held)).tolist()
            shared += 1
        else:
            assert total[held[0]] > LENGTH or len(row) == (unit == held[0]).sum()
    assert shared > 20


def test_short_batch_groups_fill_the_rows():
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 5, 3000).astype(np.int32)
    group = np.repeat(np.arange(1000), 3)  # a group takes a quarter of a row
    plan = plan_of(tokens, group, pack=True, rows_together=2)
    assert tokens.sum() / (plan.num_rows * LENGTH) > 0.95


def test_short_records_fill_the_rows():
    tokens, group = some_records(units=False)
    plan = plan_of(tokens, group, pack=True)
    assert tokens.sum() / (plan.num_rows * LENGTH) > 0.95


def test_bundles_are_filled_and_only_what_is_left_is_padding():
    tokens, group = some_records(units=True)
    rows = rows_of(plan_of(tokens, group, pack=False))
    assert sum(map(bool, rows)) == len(tokens) and np.mean([bool(row) for row in rows]) > 0.95


def test_gaps_are_filled_by_later_groups():
    group = np.repeat(np.arange(1000), [3, 1] * 500)
    plan = plan_of(np.ones(2000, np.int32), group, pack=False, rows_together=4)
    assert plan.num_rows < 1.05 * 2000


def test_the_plan_depends_on_the_seed_alone():
    tokens, group = some_records(units=True)
    rows = rows_of(plan_of(tokens, group, pack=True))
    assert rows == rows_of(plan_of(tokens, group, pack=True))
    assert rows != rows_of(plan_of(tokens, group, pack=True, seed=1))


def test_which_units_share_a_row_is_drawn_by_the_seed():
    rng = np.random.default_rng(0)
    tokens, group = rng.integers(1, 5, 300).astype(np.int32), np.repeat(np.arange(100), 3)
    one, other = (
        {frozenset(row) for row in rows_of(plan_of(tokens, group, pack=True, seed=s))}
        for s in (0, 1)
    )
    assert len(one & other) < len(one) / 2


def test_without_packing_and_groups_a_plan_takes_no_memory():
    tokens = np.broadcast_to(np.int32(7), 10**6)
    plan = plan_of(tokens, np.broadcast_to(-1, 10**6), pack=False)
    assert plan.starts is None and plan.records is None and plan.rows_per_bundle == 1
    assert plan.num_rows == 10**6 and plan.records_of(997).tolist() == [997]


def test_a_group_larger_than_its_part_of_a_batch_is_named():
    tokens, group = np.full(9, 20, np.int32), np.array([-1, -1, 4, 4, 4, 4, 4, -1, -1])
    message = "record 2: expected a batch group of at most 4 rows.* got group 4 of 5 rows"
    for pack in (False, True):
        with pytest.raises(RecordError, match=message):
            plan_of(tokens, group, pack=pack, rows_together=4)
    plan_of(tokens, group, pack=False, rows_together=5)
    plan_of(tokens // 2, group, pack=True, rows_together=2)  # three records to a row


def test_records_without_a_group_are_not_taken_for_one():
    plan = plan_of(np.ones(5, np.int32), np.array([-1, -1, -1, 0, 0]), pack=False, rows_together=2)
    assert plan.num_rows == 6


@pytest.mark.parametrize("pack", [False, True])
def test_every_epoch_deals_the_company_of_a_bundle_again_and_keeps_its_promises(pack):
    tokens, group = some_records(units=True)
    first = plan_of(tokens, group, pack=pack)
    later = [first.of_epoch(epoch) for epoch in (1, 2)]
    assert first.of_epoch(0) is first
    assert [rows_of(plan) for plan in later] == [rows_of(first.of_epoch(e)) for e in (1, 2)]
    company = []
    for plan in (first, *later):
        rows = rows_of(plan)
        assert plan.num_rows == first.num_rows and plan.rows_per_bundle == 12
        assert sorted(itertools.chain(*rows)) == list(range(len(tokens)))
        assert all(tokens[row].sum() <= LENGTH for row in rows)
        assert sum(map(bool, rows)) == sum(map(bool, rows_of(first)))  # filled as far
        bundles = [[*itertools.chain(*rows[i : i + 12])] for i in range(0, len(rows), 12)]
        held = [set(group[bundle]) - {-1} for bundle in bundles]
        assert sum(map(len, held)) == len(set().union(*held))  # no group in two bundles
        company.append(
            {pair for groups in held for pair in itertools.combinations(sorted(groups), 2)}
        )
    for one, other in itertools.combinations(company, 2):
        assert len(one & other) < 0.5 * len(one)


def test_units_that_share_a_row_find_others_there_in_the_next_epoch():
    rng = np.random.default_rng(0)
    tokens, group = rng.integers(1, 5, 300).astype(np.int32), np.repeat(np.arange(100), 3)
    plan = plan_of(tokens, group, pack=True, rows_together=4)
    rows, again = (
        {frozenset(group[row].tolist()) for row in rows_of(p)} for p in (plan, plan.of_epoch(1))
    )
    assert len(rows & again) < len(rows) / 2


def test_what_the_units_of_a_later_epoch_trade_depends_on_the_seed_too():
    tokens, group = some_records(units=True)
    places = plan_of(tokens, group, pack=True).places
    other = dataclasses.replace(places, seed=1)  # of the same first epoch
    assert (other.rows(0) == places.rows(0)).all() and (other.rows(1) != places.rows(1)).any()


def test_one_unit_a_row_has_a_row_for_each_unit_in_their_order():
    tokens, group = np.array([9, 9, 9, 20, 4, 5], np.int32), np.array([7, 7, 7, 3, 3, -1])
    plan = plan_of(tokens, group, pack=False, one_unit=True)
    assert rows_of(plan) == [[0, 1, 2], [3, 4], [5]] and plan.rows_per_bundle == 1


def test_a_unit_too_long_for_one_row_is_refused_where_each_has_one():
    tokens = np.array([5, 5, 20, 20, 5, 5], np.int32)
    message = (
        "record 2: expected the sentences of a query to fit into one row .* of 1 queries do not"
    )
    with pytest.raises(RecordError, match=message):
        plan_of(tokens, np.array([3, 3, 7, 7, 4, 4]), pack=False, rows_together=2, one_unit=True)


def test_rows_whose_units_cannot_be_traded_still_trade_their_bundle():
    tokens = np.arange(16, 31, dtype=np.int32)  # each needs a row, and no two are as long
    tokens, group = np.append(tokens, [31, 31]), np.append(np.arange(15), [15, 15])
    plan = plan_of(tokens, group, pack=True, rows_together=3)
    company = []
    for epoch in (0, 1):
        rows = rows_of(plan.of_epoch(epoch))
        held = [[*itertools.chain(*rows[i : i + 3])] for i in range(0, len(rows), 3)]
        company.append({frozenset(group[bundle].tolist()) for bundle in held})
    assert len(company[0] & company[1]) <= 1
