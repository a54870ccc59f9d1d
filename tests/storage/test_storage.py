"""Reading and writing at a URL: passing failures are tried again, and nothing half is ever read."""

import importlib
import logging
from pathlib import Path
import re
import subprocess
import sys
import time

from etils import epath
import fsspec
import numpy as np
import pytest

from icl_jax.config import ConfigError, CorpusConfig, ExperimentConfig, StageError
from icl_jax.corpus.documents import read_documents
from icl_jax.corpus.files import describe_files
from icl_jax.corpus.shards import plan_shards
from icl_jax.data import shard_index
from icl_jax.data.shard_index import load_indexes
from icl_jax.data.shards import Shards, find_shards
from icl_jax.data.tfrecord import encode_example, write_records
from icl_jax.experiment.stages import run_stages
from icl_jax.files import remote as storage
from icl_jax.files.step_folder import beside, write_json

FILE = "gs://bucket/folder/file"


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


def records(count: int) -> list[bytes]:
    return [encode_example({"tokens": np.arange(1, 50) + i}) for i in range(count)]


def test_a_url_is_opened_by_the_same_client_whether_tensorflow_is_there_or_not(gcs):
    assert type(epath.Path(FILE)._backend).__name__ == "_FileSystemSpecBackend"
    client = epath.Path(FILE)._backend.fs(FILE)
    assert not client.dircache.use_listings_cache  # else it would not see what others write


ENDS = (b"\n", b"\r", b"\r\n", b"\n\r", b"\n\n", b"\r\n\r\n", b"\0", b" ", b"")
LIKE_A_BOUNDARY = (
    b"--==0==", b"\n--==0==\n", b"\r\n--==0==--\r\n", b"\n--==0==--", b"\n\n--==0==\n\n",
)  # fmt: skip


@pytest.mark.parametrize("client", ["gcsfs", "google-cloud-storage"])
def test_every_byte_of_a_body_arrives_whatever_it_ends_in(gcs, client):
    bodies = [b"body" + end for end in ENDS] + [b"a" + x + b"b" + x for x in LIKE_A_BOUNDARY]
    bodies += ENDS  # nothing but a line break
    for body in bodies:
        if client == "gcsfs":
            storage.write_bytes(FILE, body)
        else:
            uploads = pytest.importorskip("google.cloud.storage")
            anonymous = importlib.import_module("google.auth.credentials").AnonymousCredentials()
            bucket = uploads.Client("none", anonymous).bucket("bucket")
            bucket.blob("folder/file").upload_from_string(body)
        assert gcs.content(FILE) == body == storage.read_bytes(FILE)
    kinds = {kind for asked in gcs.requests for kind in re.findall(r"uploadType=(\w+)", asked)}
    assert kinds == {"multipart"}


@pytest.mark.parametrize("failure", ["503", "429", "reset", "cut"])
def test_a_read_that_fails_twice_is_tried_again_after_longer_and_longer_waits(gcs, told, failure):
    gcs.put("bucket/folder/file", b"all of it" * 100)
    met = gcs.fail("GET", "alt=media", failure, times=2)
    assert storage.read_bytes(FILE) == b"all of it" * 100
    assert len(met.requests) == 2
    if failure == "reset":  # of a connection that was used before: the HTTP library tries once more
        assert len(gcs.waits) <= 2
        return
    assert len(gcs.waits) == 2 and 1 <= gcs.waits[0] < 2 <= gcs.waits[1] < 3
    assert len([line for line in told() if "retrying" in line]) == 2


def test_a_store_that_stays_away_is_reported_with_path_and_count_and_not_waited_for_twice(gcs):
    gcs.put("bucket/folder/file", b"content")
    met = gcs.fail("GET", "alt=media", "503", times=99)
    with pytest.raises(storage.StorageError, match=f"{FILE} could not be read: 6 tries failed"):
        storage.read_bytes(FILE)
    assert len(met.requests) == 6  # those of gcsfs: ours would make 30 of them


def test_what_gcsfs_does_not_try_again_is_tried_here(gcs, told, monkeypatch):
    gcs.put("bucket/folder/file", b"content")
    client, _ = storage.file_system(FILE)
    errors, real = [TimeoutError(), ConnectionResetError(104, "reset")], client.cat_file

    def cat_file(*args, **options):
        if errors:
            raise errors.pop(0)
        return real(*args, **options)

    monkeypatch.setattr(client, "cat_file", cat_file)
    assert storage.read_bytes(FILE) == b"content"
    assert [f"try {n} of 5" in line for n, line in zip((2, 3), told(), strict=True)] == [True, True]
    assert 1 <= gcs.waits[0] <= 1.5 and 2 <= gcs.waits[1] <= 3
    errors += [TimeoutError()] * 5
    with pytest.raises(storage.StorageError, match=r"could not be read: 5 tries failed"):
        storage.read_bytes(FILE)


@pytest.mark.parametrize(
    ("status", "error"), [("403", PermissionError), ("404", FileNotFoundError)]
)
def test_what_will_not_pass_is_not_tried_again(gcs, status, error):
    gcs.put("bucket/folder/file", b"content")
    met = gcs.fail("GET", "alt=media", status, times=9)
    with pytest.raises(error, match=FILE):
        storage.read_bytes(FILE)
    assert len(met.requests) == 1 and not gcs.waits


def test_a_client_that_is_not_installed_is_named_with_what_to_install(monkeypatch):
    def url_to_fs(url):
        raise ImportError("Please install gcsfs")

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    with pytest.raises(ConfigError, match=r"gs://bucket/a: to open gs:// install gcsfs \(pip"):
        run_stages(ExperimentConfig(), epath.Path("gs://bucket/a"), ["train"])


@pytest.mark.parametrize("size", [1000, 6 << 20])  # at once, and in parts
def test_an_upload_that_dies_half_way_leaves_nothing_and_is_sent_again(gcs, tmp_path, size):
    (tmp_path / "file").write_bytes(b"x" * size)
    gcs.put("bucket/folder/file", b"the old one")
    met = gcs.fail("POST", "uploadType", "die", times=2)
    storage.upload(tmp_path / "file", FILE)
    assert len(met.requests) == 2 and gcs.content(FILE) == b"x" * size
    assert gcs.names("gs://bucket") == ["folder/file"]  # nothing beside it
    gcs.fail("POST", "uploadType", "die", times=99)
    with pytest.raises(storage.StorageError, match="could not be written"):
        storage.write_bytes(FILE, b"new")
    assert gcs.content(FILE) == b"x" * size


def test_an_upload_of_which_less_arrived_is_sent_again(gcs, monkeypatch):
    client, _ = storage.file_system(FILE)
    real, sent = client.pipe_file, []

    def pipe_file(name, content):
        sent.append(name)
        real(name, content[:3] if len(sent) == 1 else content)

    monkeypatch.setattr(client, "pipe_file", pipe_file)
    storage.write_bytes(FILE, b"content")
    assert len(sent) == 2 and gcs.content(FILE) == b"content"


def cut_once(monkeypatch, method: str, cut) -> list:
    """The client's method, but what it did the first time is cut by `cut(result, *arguments)`."""
    client, _ = storage.file_system(FILE)
    real, called = getattr(client, method), []

    def cutting(*args, **options):
        called.append(args)
        result = real(*args, **options)
        return cut(result, *args) if len(called) == 1 else result

    monkeypatch.setattr(client, method, cutting)
    return called


def test_a_part_of_an_object_of_which_less_arrived_is_read_again(gcs, monkeypatch):
    gcs.put("bucket/folder/file", b"0123456789")
    called = cut_once(monkeypatch, "cat_file", lambda content, *args: content[:3])
    assert storage.read_range(FILE, 2, 6) == b"234567" and len(called) == 2
    assert storage.read_range(FILE, 8, 6) == b"89" and len(called) == 3  # there it ends
    with storage.open_to_read(FILE) as file:
        assert file.read() == b"0123456789"


def test_a_download_of_which_less_arrived_is_fetched_again(gcs, tmp_path, monkeypatch):
    gcs.put("bucket/folder/file", b"content")
    called = cut_once(
        monkeypatch, "get_file", lambda result, name, place: Path(place).write_bytes(b"con")
    )
    storage.download(FILE, tmp_path / "file")
    assert len(called) == 2 and (tmp_path / "file").read_bytes() == b"content"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_of_which_less_arrived_is_sent_again(gcs, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"content")
    called = cut_once(monkeypatch, "put_file", lambda *args: gcs.put("bucket/folder/file", b"con"))
    assert storage.upload(tmp_path / "file", FILE)[0] == 7
    assert len(called) == 2 and gcs.content(FILE) == b"content"


def test_a_copy_of_which_less_arrived_is_made_again(gcs, monkeypatch):
    gcs.put("bucket/folder/file", b"content")
    called = cut_once(monkeypatch, "cp_file", lambda *args: gcs.put("bucket/folder/other", b"con"))
    storage.copy(FILE, "gs://bucket/folder/other")
    assert len(called) == 2 and gcs.content("gs://bucket/folder/other") == b"content"


def test_an_error_while_a_file_is_made_sends_nothing(gcs):
    for writer in (
        lambda: write_records(FILE, (1 / (2 - i) for i in range(3))),
        lambda: write_json(FILE, {"no": object()}),
    ):
        with pytest.raises((ZeroDivisionError, TypeError)):
            writer()
    with pytest.raises(KeyboardInterrupt), beside(FILE) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert gcs.names() == []


def test_a_process_that_is_killed_while_it_sends_leaves_the_old_object(gcs):
    gcs.put("bucket/folder/file", b"the old one")
    gcs.fail("POST", "uploadType", "hang")
    code = f"from icl_jax.files import remote; remote.write_bytes({FILE!r}, b'new' * 1_000_000)"
    writer = subprocess.Popen([sys.executable, "-c", code])
    while not gcs.failures[0].requests:
        assert writer.poll() is None
        time.sleep(0.02)
    writer.kill()
    writer.wait()
    assert gcs.content(FILE) == b"the old one" and not gcs.uploads


def test_records_are_written_indexed_and_read_with_failures_on_every_way(gcs, tmp_path):
    url = epath.Path("gs://bucket/records")
    name = "a.tfrecord-00000-of-00001"
    write_records(tmp_path / name, records(40))
    gcs.fail("POST", "upload", "503", times=2)
    write_records(url / name, records(40))
    assert gcs.content(str(url / name)) == (tmp_path / name).read_bytes()
    gcs.fail("GET", "alt=media", "cut", times=2)
    gcs.fail("GET", "o/records", "503", times=2)
    shards = Shards(find_shards(str(url)))
    local = Shards([tmp_path / name])
    gcs.fail("GET", "alt=media", "reset", times=2)
    for i in (3, 39, 0):
        np.testing.assert_equal(shards[i], local[i])
    index = f"{name}.index.npz"
    assert gcs.names(str(url)) == [name, index]
    gcs.requests.clear()
    load_indexes(find_shards(str(url)), show_progress=False)
    whole = [r for r in gcs.requests if "alt=media" in r and index not in r]
    assert len(whole) == 2  # its edges: the stored index was taken


def test_half_an_index_is_not_taken_and_a_cut_shard_is_named(gcs):
    path = epath.Path("gs://bucket/records/a.tfrecord")
    write_records(path, records(5))
    Shards([path])
    index, shard = f"bucket/records/{path.name}.index.npz", "bucket/records/a.tfrecord"
    gcs.put(index, gcs.objects[index][0][:100])
    assert len(Shards([path])) == 5
    gcs.put(shard, gcs.objects[shard][0][:-20])
    with pytest.raises(StageError, match=r"gs://bucket/records/a.tfrecord at byte \d+: expected"):
        Shards([path])


def test_a_shard_in_a_bucket_of_which_only_the_end_was_rewritten_is_indexed_again(gcs, monkeypatch):
    monkeypatch.setattr(shard_index, "_EDGE_BYTES", 20)  # less than a record
    path = epath.Path("gs://bucket/records/a.tfrecord")
    for numbers, largest in (((0, 1), 50), ((0, 2), 51)):  # as long as before
        write_records(path, [records(3)[number] for number in numbers])
        (index,) = load_indexes([path], show_progress=False)
        assert index.largest_token == largest


def test_a_corpus_in_a_bucket_is_read_as_on_a_disk(gcs, tmp_path, monkeypatch):
    import gzip
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(storage, "BLOCK_BYTES", 1 << 15)  # many requests
    rows = [{"id": str(i), "title": "t", "text": f"Text number {i}. " * 50} for i in range(100)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
    (tmp_path / "b.jsonl").write_bytes(lines)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet", row_group_size=50)
    for file in tmp_path.glob("?.*"):
        gcs.put(f"bucket/corpus/{file.name}", file.read_bytes())
    found = []
    for patterns in (["gs://bucket/corpus/*.jsonl*", "gs://bucket/corpus/c.parquet"],
                     [f"{tmp_path}/?.jsonl*", f"{tmp_path}/c.parquet"]):  # fmt: skip
        gcs.fail("GET", "alt=media", "cut", times=2)
        gcs.fail("GET", "alt=media", "503", times=2)
        config = CorpusConfig(files=tuple(patterns))
        shards = plan_shards(config, 30_000)
        documents = [d for shard in shards for d in read_documents(shard, config)]
        described = list(describe_files(config).values())
        found.append(([d._replace(file="") for d in documents], described, len(shards)))
    assert found[0] == found[1] and len(found[0][0]) == 300
