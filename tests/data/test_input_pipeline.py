"""The n-th batch is the same whatever the hosts, workers and restarts, and nothing is lost."""

from collections import Counter, defaultdict
import json
from pathlib import Path
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from icl_jax.config import DataConfig
from icl_jax.data.input_pipeline import GlobalBatches, _source_seed, make_batches, open_data
from icl_jax.data.packing import Plan
from icl_jax.data.source import RowStream
from icl_jax.data.tfrecord import RecordError, encode_example, frame
from tests.data.records import flip_bit, record, write_source

LENGTH, BATCH, PAD = 13, 8, 999
SWITCH = 3  # from this step on half of each batch is of the second source


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Plain records 100, 101, ...; records 200, 201, ... in batch groups of up to four."""
    root = tmp_path_factory.mktemp("records")
    plain = [record(100 + i, 2 + i % 5, groups=i % 3) for i in range(29)]
    sizes = [1, 4, 2, 3, 1, 1, 4, 3, 2, 2, 4]
    unit = np.repeat(np.arange(len(sizes)), sizes)
    grouped = [record(200 + i, 3 + i % 7, batch_group=int(u)) for i, u in enumerate(unit)]
    return (
        write_source(root / "plain", [plain[:11], [], plain[11:]]),
        write_source(root / "grouped", [grouped[:13], grouped[13:]]),  # cut within a group
        {200 + i: int(u) for i, u in enumerate(unit)},
    )


def open_mixed(folders, *, pack=True, seed=5):
    phases = ((0, (1, 0)), (SWITCH, (1, 1)))
    config = DataConfig(sources=folders[:2], phases=phases, pack=pack)
    return open_data(config, BATCH, LENGTH, seed)


def open_one(source: str, *, pack=False, seed=5, batch_size=BATCH):
    return open_data(DataConfig(sources=(source,), pack=pack), batch_size, LENGTH, seed)


def read(data, steps, **options):
    return list(make_batches(data, steps=steps, pad_token_id=PAD, **options))


def assert_same(batches, expected):
    assert len(batches) == len(expected)
    for batch, want in zip(batches, expected):
        np.testing.assert_equal(batch, want)


def numbers_of(tokens: np.ndarray) -> list[int]:
    """The records of these rows, each once per row."""
    return [int(n) for row in tokens for n in np.unique(row) if n != PAD]


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_together_read_the_batch_that_one_host_reads(folders, pack, hosts):
    expected = read(open_mixed(folders, pack=pack), 11)
    parts = [
        read(open_mixed(folders, pack=pack), 11, rows=range(host, BATCH, hosts))
        for host in range(hosts)
    ]
    assert parts[0][0]["tokens"].shape == (BATCH // hosts, LENGTH)
    joined = [
        {k: np.stack([b[k] for b in batch], axis=1).reshape(BATCH, LENGTH) for k in batch[0]}
        for batch in zip(*parts)
    ]
    assert_same(joined, expected)


def test_a_host_reads_only_its_own_rows(folders, monkeypatch):
    data, places = open_one(folders[0]), []
    batches = GlobalBatches(data, 1, rows=[5, 2])
    original = type(data.sources[0].shards).__getitem__
    monkeypatch.setattr(
        type(data.sources[0].shards),
        "__getitem__",
        lambda self, i: places.append(i) or original(self, i),
    )
    assert batches[0]["tokens"].shape == (2, LENGTH) and len(places) == 2


def test_worker_processes_do_not_change_the_order(folders):
    data = open_mixed(folders)
    expected = read(data, 7)
    batches = make_batches(data, steps=7, start=2, workers=2, prefetch=2, pad_token_id=PAD)
    assert_same(list(batches), expected[2:])
    assert batches.get_state() == {"step": 7}


def test_a_run_continues_from_every_step_as_if_never_stopped(folders):
    steps = 7
    expected = read(open_mixed(folders), steps)
    for stop in range(steps + 1):
        batches = make_batches(open_mixed(folders), steps=steps, pad_token_id=PAD)
        before = [next(batches) for _ in range(stop)]
        state = json.loads(json.dumps(batches.get_state()))
        del batches
        resumed = make_batches(open_mixed(folders), steps=steps, prefetch=1, pad_token_id=PAD)
        resumed.set_state(state)
        assert_same(before + list(resumed), expected)
        assert_same(read(open_mixed(folders), steps, start=stop), expected[stop:])


def test_a_state_can_be_set_while_reading(folders):
    data = open_mixed(folders)
    batches = make_batches(data, steps=7, pad_token_id=PAD)
    first, state = next(batches), batches.get_state()
    rest = list(batches)
    batches.set_state(state)
    assert_same([first, *batches], [first, *rest])
    with pytest.raises(StopIteration):
        next(batches)


def test_orbax_saves_and_restores_the_place_of_the_iterator(folders, tmp_path):
    import grain
    import orbax.checkpoint as ocp

    data = open_mixed(folders)
    batches = make_batches(data, steps=7, pad_token_id=PAD)
    for _ in range(4):
        next(batches)
    fresh = make_batches(data, steps=7, pad_token_id=PAD)
    with ocp.CheckpointManager(tmp_path) as manager:
        save = ocp.args.Composite(batches=grain.checkpoint.CheckpointSave(batches))
        manager.save(4, args=save)
        restore = ocp.args.Composite(batches=grain.checkpoint.CheckpointRestore(fresh))
        restored = manager.restore(4, args=restore).batches
    assert_same(list(restored), list(batches))


def test_every_batch_is_half_and_half_after_the_switch(folders):
    for n, batch in enumerate(read(open_mixed(folders, pack=False), 20)):
        real = batch["tokens"].max(axis=1, where=batch["group"] > 0, initial=0)
        assert (real[: BATCH // 2] // 100 == 1).all()
        second = set(real[BATCH // 2 :] // 100)
        assert second == {1} if n < SWITCH else second <= {0, 2} and 2 in second


@pytest.mark.parametrize("pack", [False, True])
def test_batch_groups_are_complete_within_one_batch_in_every_epoch(folders, pack):
    data = open_mixed(folders, pack=pack)
    _, _, unit_of = folders
    members = Counter(unit_of.values())
    rows = data.sources[1].num_rows
    epochs = 4
    times_seen = Counter()
    for batch in read(data, SWITCH + epochs * rows // 4):
        found = Counter(unit_of[n] for n in numbers_of(batch["tokens"]) if n >= 200)
        assert all(found[unit] == members[unit] for unit in found)
        times_seen.update(found.keys())
    assert rows % 4 == 0 and set(times_seen.values()) == {epochs}


@pytest.mark.parametrize("which, pack", [(0, False), (0, True), (1, False), (1, True)])
def test_an_epoch_has_every_record_once_and_each_epoch_another_order(folders, which, pack):
    data = open_one(folders[which], pack=pack, batch_size=4)
    source = data.sources[0]
    everything = read(data, 6 * source.num_rows)  # 6 * 4 = 24 epochs
    rows = np.concatenate([batch["tokens"] for batch in everything])
    epochs = [
        numbers_of(rows[i : i + source.num_rows]) for i in range(0, len(rows), source.num_rows)
    ]
    assert all(len(e) == len(set(e)) == source.num_records for e in epochs)
    assert len(set(map(tuple, epochs))) > 4
    assert data.steps_per_epoch == source.num_rows / 4


def test_another_seed_gives_another_order_and_sources_do_not_share_theirs(folders, tmp_path):
    twin = write_source(tmp_path, [[record(100 + i, 2) for i in range(50)]])
    one, other = (read(open_one(twin, seed=s), 6) for s in (0, 1))
    assert not np.array_equal(one[0]["tokens"], other[0]["tokens"])
    both = open_data(DataConfig(sources=(twin, twin)), BATCH, LENGTH, 0)
    rows = np.concatenate([b["tokens"].reshape(2, 4, -1) for b in read(both, 6)], axis=1)
    assert not np.array_equal(rows[0], rows[1])


def test_rows_hold_the_records_then_padding(folders, tmp_path):
    source = write_source(tmp_path, [[record(7, 5, groups=2), record(8, 4)]])
    (batch,) = read(open_one(source, batch_size=2), 1)
    assert batch["tokens"].dtype == batch["group"].dtype == np.int32
    rows = {row[0]: (row.tolist(), g.tolist()) for row, g in zip(batch["tokens"], batch["group"])}
    assert rows[7] == ([7] * 5 + [PAD] * 8, [1, 1, 1, 2, 2] + [0] * 8)
    assert rows[8] == ([8] * 4 + [PAD] * 9, [1] * 4 + [0] * 9)


def test_a_record_as_long_as_a_row_fills_it(tmp_path):
    source = write_source(tmp_path, [[record(7, LENGTH)]])
    (batch,) = read(open_one(source, batch_size=1), 1)
    assert batch["tokens"].tolist() == [[7] * LENGTH] and batch["group"].tolist() == [[1] * LENGTH]


def test_records_packed_into_one_row_keep_their_groups_apart(folders):
    packed = read(open_one(folders[0], pack=True), 4)
    assert max(len(np.unique(row)) for batch in packed for row in batch["tokens"]) > 3
    for batch in packed:
        for tokens, group in zip(batch["tokens"], batch["group"]):
            owners = defaultdict(set)
            for number, g in zip(tokens, group):
                assert (g == 0) == (number == PAD)
                owners[int(g)].add(int(number))
            assert all(len(numbers) == 1 for numbers in owners.values())
            assert sorted(owners.keys() - {0}) == list(range(1, len(owners.keys() - {0}) + 1))


def test_a_group_of_padding_inside_a_record_stays_padding(tmp_path):
    features = {"tokens": [4, 5, 6], "group": [0, 3, 0]}
    source = write_source(tmp_path, [[encode_example(features)] * 2])
    data = open_one(source, pack=True, batch_size=1)
    (batch,) = read(data, 1)
    assert batch["group"][0].tolist() == [0, 3, 0, 0, 6, 0] + [0] * 7
    assert batch["tokens"][0].tolist() == [4, 5, 6] * 2 + [PAD] * 7


def test_a_record_of_padding_alone_does_not_join_the_groups_around_it(tmp_path):
    groups = ([1, 2], [0, 0], [1])
    records = [encode_example({"tokens": [4] * len(g), "group": g}) for g in groups]
    data = open_one(write_source(tmp_path, [records]), pack=True, batch_size=1)
    (batch,) = read(data, 1)
    assert batch["group"][0, :5].tolist() == [1, 2, 0, 0, 3]


def test_the_numbers_of_a_source_are_reported(folders):
    plain, grouped = open_mixed(folders).sources
    assert (plain.num_records, plain.num_tokens) == (29, sum(2 + i % 5 for i in range(29)))
    assert plain.filled == plain.num_tokens / (plain.num_rows * LENGTH) > 0.9
    assert open_mixed(folders).steps_per_epoch is None
    assert open_mixed(folders, pack=False).sources[0].num_rows == 29
    assert grouped.num_rows % 4 == 0


def company_of(batches, group_of) -> list[frozenset]:
    """The batch groups of each batch."""
    return [frozenset(group_of[n] for n in numbers_of(batch["tokens"])) for batch in batches]


@pytest.mark.parametrize("pack", [False, True])
def test_batch_groups_have_other_company_in_every_epoch_whoever_reads_from_wherever(tmp_path, pack):
    group_of = {i: i // 3 for i in range(120)}
    records = [record(i, 3 + i % 7, batch_group=i // 3) for i in range(120)]
    source = write_source(tmp_path / "many", [records[:50], records[50:]])
    data = open_one(source, pack=pack)
    per_epoch = int(data.steps_per_epoch)
    assert per_epoch == data.steps_per_epoch > 4
    batches = read(data, 4 * per_epoch)
    company = company_of(batches, group_of)
    epochs = [company[i : i + per_epoch] for i in range(0, len(company), per_epoch)]
    for epoch in epochs:  # every group once, whole
        assert sum(map(len, epoch)) == len(frozenset().union(*epoch)) == 40
    assert len(set(company)) > 0.9 * len(company)
    for host in range(2):
        part = np.arange(host, BATCH, 2)
        start = 2 * per_epoch - 1  # across the border of two epochs, which were not read before
        mine = read(open_one(source, pack=pack), 3 * per_epoch, start=start, rows=part)
        wanted = [{k: x[part] for k, x in b.items()} for b in batches[start : 3 * per_epoch]]
        assert_same(mine, wanted)


def write_arms(tmp_path, longest=5) -> list[str]:
    """Ten queries alone, with what belongs to them in context, and the same in batch."""
    told = {"row_holds": "one_query"}
    rows = {"task_only": [], "in_context": [], "in_batch": []}
    for query in range(10):
        sizes = [2, longest, 4][: 1 + query % 3]
        rows["task_only"].append(record(query, 2))
        rows["in_context"].append(record(query, sum(sizes)))
        rows["in_batch"] += [record(query, size, batch_group=query) for size in sizes]
    for arm, records in rows.items():
        write_source(tmp_path / arm, [records])
        (tmp_path / arm / "results.json").write_text(json.dumps(told))
    return [str(tmp_path / arm) for arm in rows]


def test_one_query_a_row_gives_every_arm_the_same_queries_in_each_update(tmp_path):
    arms = [open_one(arm, batch_size=4) for arm in write_arms(tmp_path)]
    assert [data.steps_per_epoch for data in arms] == [2.5] * 3
    task_only, in_context, in_batch = (read(data, 7) for data in arms)
    for alone, together, apart in zip(task_only, in_context, in_batch):
        queries = alone["tokens"][:, 0].tolist()
        assert together["tokens"][:, 0].tolist() == apart["tokens"][:, 0].tolist() == queries
        np.testing.assert_equal(together["tokens"], apart["tokens"])
        assert together["group"].max() == 1
        assert apart["group"].max(axis=1).tolist() == [1 + query % 3 for query in queries]


def test_a_query_whose_sentences_do_not_fit_into_its_row_is_refused_by_file_and_byte(tmp_path):
    message = r"in_batch.* at byte \d+: expected the sentences of a query to fit into one row of 13"
    with pytest.raises(RecordError, match=message):
        open_one(write_arms(tmp_path, longest=9)[2], batch_size=4)


def test_records_for_one_query_a_row_are_not_packed(tmp_path):
    (arm, *_) = write_arms(tmp_path)
    message = f"data.pack=True would put several .* but {arm} was designed for one query a row"
    with pytest.raises(RecordError, match=message):
        open_one(arm, pack=True)


def test_tokens_outside_the_vocabulary_are_named_by_file_and_byte(folders):
    data = open_mixed(folders)
    assert (data.smallest_token[0], data.largest_token[0]) == (100, 226)
    assert data.largest_token[1].name == "x.tfrecord-00001-of-00002"
    assert data.check_vocabulary(227) is None
    offset = sum(len(frame(record(213 + i, 3 + (13 + i) % 7, batch_group=0))) for i in range(12))
    message = data.check_vocabulary(225)
    assert f"grouped/x.tfrecord-00001-of-00002 at byte {offset}: expected token ids" in message
    assert "from 0 to 224, got 225" in message


def test_the_first_id_behind_the_vocabulary_is_outside_of_it(folders):
    message = open_mixed(folders).check_vocabulary(226)  # whose ids end with 225
    assert "expected token ids from 0 to 225, got 226" in message


def test_a_token_below_zero_is_outside_of_every_vocabulary(tmp_path):
    source = write_source(tmp_path, [[record(3, 2), record(-1, 4)]])
    message = open_one(source).check_vocabulary(10**6)
    assert f"at byte {len(frame(record(3, 2)))}: expected token ids from 0 to 999999" in message
    assert "got -1" in message


def test_the_fingerprint_changes_with_the_records_alone(tmp_path):
    records = [record(i, 3) for i in range(7)]

    def print_of(name, written):
        return open_one(write_source(tmp_path / name, [written])).fingerprint()

    first = print_of("a", records)
    assert print_of("b", records) == first
    assert print_of("c", records[::-1]) != first  # of the same size
    assert print_of("d", records[:-1]) != first


def test_all_problems_of_all_sources_are_reported_at_once(folders, tmp_path):
    long = write_source(tmp_path / "long", [[record(1, 3), record(2, 17), record(3, 19)]])
    damaged = write_source(tmp_path / "damaged", [[record(1, 3)]])
    flip_bit(tmp_path / "damaged/x.tfrecord-00000-of-00001", 0)
    empty = write_source(tmp_path / "empty", [[], []])
    config = DataConfig(
        sources=(long, damaged, f"{tmp_path}/nowhere", empty, folders[0]),
        phases=((0, (1, 1, 1, 1, 1e-6)),),
    )
    with pytest.raises(RecordError) as caught:
        open_data(config, BATCH, LENGTH, 0)
    told = str(caught.value).splitlines()
    offset = len(frame(record(1, 3)))
    for line, words in zip(
        told,
        [
            "sources[4] with weight 1e-06",
            f"at byte {offset}: expected at most sequence_length = 13 tokens, got 17; 2 of 3",
            "at byte 0: expected length CRC",
            "nowhere: it does not exist",
            "got 2 empty shards",
        ],
        strict=True,
    ):
        assert words in line


def test_a_batch_group_too_large_for_its_part_of_a_batch_is_named(folders):
    with pytest.raises(RecordError, match=r"grouped/.*00000-of-00002 at byte .* at most 2 rows"):
        open_one(folders[1], batch_size=2)


def test_wrong_phases_and_no_sources_are_reported(folders):
    with pytest.raises(RecordError, match=r"data.sources is empty"):
        open_data(DataConfig(), BATCH, LENGTH, 0)
    config = DataConfig(sources=folders[:1], phases=((0, (1, 1)),))
    with pytest.raises(RecordError, match="the phase from step 0 has 2 weights for 1 sources"):
        open_data(config, BATCH, LENGTH, 0)


def test_damage_that_comes_later_stops_the_batch_that_reads_it(tmp_path):
    source = write_source(tmp_path, [[record(i, 3) for i in range(8)]])
    data = open_one(source)
    flip_bit(tmp_path / "x.tfrecord-00000-of-00001", -1)
    with pytest.raises(RecordError, match=r"00000-of-00001 at byte \d+: expected payload CRC"):
        read(data, 1)


def test_many_bundles_are_shuffled_again_on_every_pass_too():
    count = 20_011
    stream = RowStream(None, Plan(count), seed=5)
    passes = [[stream._bundle(k) for k in range(p * count, (p + 1) * count)] for p in range(2)]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(count))
    assert np.mean(np.equal(*passes)) < 0.01
    assert stream._bundle(10**15) in range(count)


def test_no_pass_over_a_source_has_the_order_of_a_pass_over_another():
    plan, orders = Plan(20_011), set()
    for source in range(3):
        stream = RowStream(None, plan, _source_seed(5, source))
        for epoch in range(3):
            orders.add(tuple(stream._bundle(epoch * plan.num_rows + k) for k in range(20)))
    assert len(orders) == 9


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(folders, tmp_path):
    script = tmp_path / "read.py"
    script.write_text(f"""
import multiprocessing, os, signal
from icl_jax.config import DataConfig
from icl_jax.data.input_pipeline import make_batches, open_data

if __name__ == "__main__":
    data = open_data(DataConfig(sources=({folders[0]!r},)), {BATCH}, {LENGTH}, 0)
    next(batches := make_batches(data, steps=10**6, workers=1))
    print(multiprocessing.active_children()[0].pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
""")
    run = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=False)
    assert run.returncode == -signal.SIGKILL
    for _ in range(50):
        if not Path(f"/proc/{int(run.stdout)}").exists():
            return
        time.sleep(0.1)
    pytest.fail("the worker lives on")
