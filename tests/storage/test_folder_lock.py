"""A folder at a URL is held by one process of all machines."""

import json
import os
import threading

from etils import epath
import pytest

from icl_jax.config import StageError
from icl_jax.files import folder_lock, mirror
from icl_jax.files import remote as storage
from icl_jax.files.folder_lock import alone_in
from icl_jax.training.train import train
from tests.files.test_folder_lock import start_holder
from tests.training import small

URL = "gs://bucket/run"
ELSEWHERE = {
    "host": "other",
    "process": 7,
    "started": 1,
    "since": "then",
    "machine": "m",
    "id": "x",
}


def holder(gcs) -> dict:
    return json.loads(gcs.content(f"{URL}/lock/{gcs.names(f'{URL}/lock')[-1]}"))


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(folder_lock, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(folder_lock, "DEAD_SECONDS", 0.3)


def test_a_second_training_is_refused_and_a_killed_one_is_not_waited_for(gcs, soon, capsys):
    gcs.put("bucket/run/metrics.jsonl", b"mine\n")
    first = start_holder(URL)
    with pytest.raises(StageError, match=f"{URL} is in use by process {first.pid} on"):
        train(small.experiment(), epath.Path(URL))
    assert gcs.content(f"{URL}/metrics.jsonl") == b"mine\n"
    first.kill()
    first.communicate()
    with alone_in(URL):  # it was a process of this machine
        assert "waiting" not in capsys.readouterr().out
        assert holder(gcs)["process"] == os.getpid()
        assert gcs.names(f"{URL}/lock") == ["000002"]
    assert holder(gcs) == {}
    with alone_in(URL):
        assert gcs.names(f"{URL}/lock") == ["000003"]


def test_one_of_another_machine_is_refused_to_as_long_as_it_gives_signs_of_life(
    gcs, soon, monkeypatch
):
    monkeypatch.setattr(folder_lock, "DEAD_SECONDS", 60)
    with alone_in(URL):
        monkeypatch.setattr(folder_lock, "_machine", lambda: "another")
        with pytest.raises(StageError, match=f"process {os.getpid()} on"), alone_in(URL):
            pass


def test_one_of_another_machine_that_is_dead_is_taken_over(gcs, soon, capsys):
    gcs.put("bucket/run/lock/000004", json.dumps(ELSEWHERE).encode())
    with alone_in(URL):
        assert gcs.names(f"{URL}/lock") == ["000005"]
    assert "in use by process 7 on other, since then" in capsys.readouterr().out


def test_who_was_taken_over_ends_before_it_writes(gcs, soon, monkeypatch):
    told = threading.Event()

    def leave(why: str) -> None:
        told.why = why
        told.set()
        raise StageError(why)  # where the process would end

    monkeypatch.setattr(folder_lock, "_leave", leave)
    with alone_in(URL):
        gcs.put("bucket/run/lock/000002", json.dumps(ELSEWHERE).encode())
        assert told.wait(30) and f"{URL} was taken over" in told.why


def test_of_two_that_are_as_fast_one_gets_the_lock(gcs, monkeypatch):
    """The other has looked before: its number is taken, or was and is no longer the last."""
    real, raced = storage.create, []

    def create(url, content):
        if not raced:
            raced.append(url)
            gcs.put("bucket/run/lock/000009", b"{}")
        return real(url, content)

    monkeypatch.setattr(storage, "create", create)
    with alone_in(URL):
        assert raced == [f"{URL}/lock/000001"] and gcs.names(f"{URL}/lock") == ["000010"]
    assert storage.create(f"{URL}/lock/000010", b"other") is False


def test_a_local_copy_is_held_at_its_url_and_does_not_fetch_the_lock(gcs):
    folder = mirror.local_folder(URL)
    with alone_in(folder):
        assert holder(gcs)["process"] == os.getpid()
        mirror.pull(folder)
        assert (folder / "lock").is_file()
        with pytest.raises(StageError, match=f"{URL} is in use by"), alone_in(URL):
            pass
