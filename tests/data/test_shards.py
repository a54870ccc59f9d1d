"""Any record of many shards can be read at once, through an index that never lies."""

from concurrent.futures import ThreadPoolExecutor
import os
from pathlib import Path
import pickle

from etils import epath
import numpy as np
import pytest

from icl_jax.config import DataConfig
from icl_jax.data import shard_index
from icl_jax.data import shards as shards_module
from icl_jax.data.input_pipeline import open_data
from icl_jax.data.shard_index import load_indexes
from icl_jax.data.shards import Shards, find_shards
from icl_jax.data.tfrecord import RecordError, encode_example, frame, write_records
from tests.data.records import record, write_source


def numbers(shards: Shards) -> list[int]:
    return [int(shards[i]["tokens"][0]) for i in range(len(shards))]


@pytest.fixture
def path(tmp_path):
    path = epath.Path(tmp_path / "a.tfrecord")
    write_records(path, [record(2, 3), record(3, 5, batch_group=7)])
    return path


def test_records_of_all_shards_follow_each_other_and_empty_shards_have_none(tmp_path):
    source = write_source(tmp_path, [[], [record(1, 3), record(2, 3)], [], [record(3, 5)], []])
    shards = Shards(find_shards(source))
    assert numbers(shards) == [1, 2, 3]
    with pytest.raises(IndexError, match="from 0 to 2, got 3"):
        shards[3]
    with pytest.raises(IndexError):
        shards[-1]


def test_threads_and_copies_read_the_same(tmp_path):
    source = write_source(tmp_path, [[record(10 * s + i, 3) for i in range(7)] for s in range(5)])
    shards = Shards(find_shards(source))
    expected = numbers(shards)
    copy = pickle.loads(pickle.dumps(shards))
    assert not copy._files and shards._files
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda i: int(copy[i % 35]["tokens"][0]), range(350)))
    assert read == expected * 10


def test_a_reader_keeps_few_files_open_and_closes_them(tmp_path, monkeypatch):
    monkeypatch.setattr(shards_module, "_OPEN_FILES", 2)
    source = write_source(tmp_path, [[record(s, 3)] for s in range(5)])
    before = len(os.listdir("/proc/self/fd"))
    shards = Shards(find_shards(source))
    assert numbers(shards) == numbers(shards) == [0, 1, 2, 3, 4]
    assert len(os.listdir("/proc/self/fd")) == before + 2
    del shards
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("tokens", [2, 4], ids=["shorter", "longer"])
def test_a_record_of_another_length_than_when_it_was_indexed_is_reported(path, tokens):
    shards, before, now = Shards([path]), len(record(2, 3)), len(record(2, tokens))
    write_records(path, [record(2, tokens), record(3, 5, batch_group=7)])
    message = f"at byte 0: expected a record of {before} bytes as in the index, got {now} bytes; "
    with pytest.raises(RecordError, match=message + "the file has changed while in use"):
        shards[0]


def test_the_index_knows_every_record(path):
    (index,) = load_indexes([path])
    assert index.offset.tolist() == [0, len(frame(record(2, 3)))]
    assert index.length.tolist() == [len(record(2, 3)), len(record(3, 5, batch_group=7))]
    assert index.tokens.tolist() == [3, 5] and index.batch_group.tolist() == [-1, 7]
    assert (index.smallest_token, index.largest_token, index.size) == (2, 3, path.stat().length)


def test_a_shard_is_scanned_only_once(path, monkeypatch):
    (first,) = load_indexes([path])
    monkeypatch.setattr(shard_index, "scan_records", None)
    (second,) = load_indexes([path])
    np.testing.assert_equal(vars(second), vars(first))


@pytest.mark.parametrize("numbers_now", [[5, 7, 11], [5, 7]], ids=["other size", "same size"])
def test_the_index_of_a_rewritten_shard_is_rebuilt(path, numbers_now):
    load_indexes([path])
    lengths = {5: 5, 7: 3, 11: 2}
    write_records(
        path, [record(n, lengths[n], batch_group=7 if n == 5 else None) for n in numbers_now]
    )
    (index,) = load_indexes([path])
    assert index.tokens.tolist() == [lengths[n] for n in numbers_now]
    assert numbers(Shards([path])) == numbers_now


def test_a_shard_of_which_only_the_end_was_rewritten_is_indexed_again(path, monkeypatch):
    monkeypatch.setattr(shard_index, "_EDGE_BYTES", 20)  # less than a record
    load_indexes([path])
    write_records(path, [record(2, 3), record(7, 5, batch_group=7)])  # as long as before
    (index,) = load_indexes([path])
    assert index.largest_token == 7


@pytest.mark.parametrize("content", ["empty", "garbage", "cut", "old version", "no field"])
def test_an_index_that_cannot_be_read_is_rebuilt(path, content, monkeypatch):
    (expected,) = load_indexes([path])
    place = path.parent / "a.tfrecord.index.npz"
    if content == "old version":
        stored = dict(np.load(place)) | {"version": 0, "tokens": np.array([1, 1], np.int32)}
        np.savez(place, **stored)
    elif content == "no field":
        np.savez(place, version=shard_index._VERSION, size=expected.size)
    else:
        data = {"empty": b"", "garbage": b"PK garbage", "cut": place.read_bytes()[:-50]}
        place.write_bytes(data[content])
    (index,) = load_indexes([path])
    np.testing.assert_equal(vars(index), vars(expected))
    monkeypatch.setattr(shard_index, "scan_records", None)
    load_indexes([path])  # and the new one is kept


def test_an_interrupted_build_leaves_nothing_that_is_read(path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

        def interrupted(self, target):
            self.write_bytes(self.read_bytes()[:100])
            raise KeyboardInterrupt

        patch.setattr(Path, "replace", interrupted)
        patch.setattr(Path, "unlink", lambda self, missing_ok: None)  # nor is there time for that
        load_indexes([path])
    left = sorted(p.name for p in path.parent.iterdir())
    assert left[0] == "a.tfrecord" and left[1].endswith(".partial") and len(left) == 2
    assert find_shards(str(path.parent)) == [path]
    assert numbers(Shards([path])) == [2, 3]


def test_where_nothing_can_be_written_the_index_is_kept_in_memory(path):
    (path.parent / "a.tfrecord.index.npz").mkdir()  # as root no folder is read-only
    assert numbers(Shards([path])) == [2, 3]
    assert len(list(path.parent.iterdir())) == 2


@pytest.mark.parametrize(
    "payload, message",
    [
        (b"\xff\xff\xff", "expected a tf.train.Example, got 3 bytes that are none"),
        (encode_example({"token": [1]}), r"expected a feature 'tokens'.* \['token'\]"),
        (encode_example({"tokens": [0.5]}), "one int64 in 'tokens', got 1 of float32"),
        (encode_example({"tokens": np.array([], int)}), "one int64 in 'tokens', got 0 of int64"),
        (
            encode_example({"tokens": [1, 2, 3], "group": [1, 1]}),
            "'group' for each of 3 tokens, got 2",
        ),
        (
            encode_example({"tokens": [1, 2], "group": [1, -1]}),
            "'group' ids of at least 0.* got ids from -1 to 1",
        ),
        (
            encode_example({"tokens": [1], "batch_group": [1, 2]}),
            r"one int64 in 'batch_group'.*2\]",
        ),
        (record(1, 3, batch_group=7), "batch_group 7 one after another, got others in between"),
    ],
)
def test_a_record_that_cannot_be_used_is_named_by_file_and_byte(path, payload, message):
    records = [record(2, 3, batch_group=7), record(3, 5, batch_group=11)]
    write_records(path, [*records, payload])
    offset = sum(len(frame(r)) for r in records)
    with pytest.raises(RecordError, match=rf"a.tfrecord at byte {offset}: .*{message}"):
        load_indexes([path])
    assert not list(path.parent.glob("*.npz"))


def test_the_damage_of_all_shards_is_reported_at_once(tmp_path):
    paths = find_shards(write_source(tmp_path, [[b"\xff"], [record(1, 3)], [b"\xff"]]))
    with pytest.raises(RecordError) as caught:
        load_indexes(paths)
    lines = str(caught.value).splitlines()
    assert len(lines) == 2 and "00000-of" in lines[0] and "00002-of" in lines[1]


def test_shards_are_found_by_folder_glob_and_file(tmp_path):
    write_source(tmp_path, [[record(1, 3)], [], []])
    for other in ("x.tfrecord-00000-of-00003.index.npz", "y.tfrecord.partial", "card.json"):
        (tmp_path / other).touch()
    names = [f"x.tfrecord-0000{i}-of-00003" for i in range(3)]
    assert [p.name for p in find_shards(str(tmp_path))] == names
    assert [p.name for p in find_shards(f"{tmp_path}/x*")] == names
    assert [
        p.name for p in find_shards(f"{tmp_path.parent}/{tmp_path.name[:-1]}?/x*0000[12]-of*")
    ] == names[1:]
    assert [p.name for p in find_shards(f"{tmp_path}/{names[1]}")] == names[1:2]


@pytest.mark.parametrize(
    "source, message",
    [
        ("nowhere", "expected a folder, a glob or a file, got .*nowhere: it does not exist"),
        ("", r"expected \*.tfrecord\* files in the folder .*, got none"),
        ("*.tfrecord", "expected files that match .*, got none"),
    ],
)
def test_a_source_without_shards_says_what_was_looked_for(tmp_path, source, message):
    with pytest.raises(RecordError, match=message):
        find_shards(str(tmp_path / source))


@pytest.mark.parametrize("source", ["", "*.tfrecord", "a.tfrecord"])
def test_a_pipe_among_the_shards_is_refused_and_not_waited_for(tmp_path, source):
    write_source(tmp_path, [[record(1, 3)]])
    os.mkfifo(tmp_path / "a.tfrecord")
    config = DataConfig(sources=(f"{tmp_path}/nowhere", str(tmp_path / source)))
    with pytest.raises(RecordError, match=r"nowhere(.|\n)*a\.tfrecord is a named pipe"):
        open_data(config, 1, 3, 0)


def test_missing_shards_are_named(tmp_path):
    source = write_source(tmp_path, [[], [], [], []])
    for i in (1, 3):
        (tmp_path / f"x.tfrecord-0000{i}-of-00004").unlink()
    message = "got 2; missing: x.tfrecord-00001-of-00004, x.tfrecord-00003-of-00004"
    for name in (source, source + "/*"):
        with pytest.raises(RecordError, match=message):
            find_shards(name)
