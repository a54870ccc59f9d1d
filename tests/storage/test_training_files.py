"""What a training run writes to a bucket: checkpoints, metrics, TensorBoard."""

import json
import logging
import types

from etils import epath
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.files import growing as live_files
from icl_jax.files import remote as storage
from icl_jax.training import checkpoint
from icl_jax.training.goodput import Goodput
from icl_jax.training.metrics import MetricsLog
from icl_jax.training.run_record import last_step
from icl_jax.training.train_state import TrainState
from tests.training import small

URL = epath.Path("gs://bucket/mine")


def state_of(step: int) -> TrainState:
    return TrainState(jnp.int32(step), {"w": jnp.arange(6.0) + step}, {"m": jnp.ones(3)}, None)


def log_steps(first: int, steps, url=URL) -> None:
    with MetricsLog(small.experiment(log_every=1), url, first, 9, Goodput(url)) as log:
        for step in steps:
            told = {"loss": step / 2, "learning_rate": 0.1, "grad_norm": 1.0, "tokens": 8}
            log.push(step, {name: jnp.float32(x) for name, x in told.items()}, 0.0)
        log.flush()
        log.keep()


def steps_told(gcs) -> list[int]:
    lines = gcs.content(f"{URL}/metrics.jsonl").decode().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_a_checkpoint_is_saved_and_read_although_requests_fail(gcs):
    config, batches = small.experiment(keep_last=1), types.SimpleNamespace(get_state=dict)
    with checkpoint.open_checkpoints(URL, config.training) as manager:
        gcs.fail("POST", "uploadType=media", "503")  # tensorstore, an array
        gcs.fail("POST", "uploadType=resumable", "503", times=2)  # gcsfs, what belongs to it
        checkpoint.save(manager, config, state_of(1), batches)
        checkpoint.save(manager, config, state_of(2), batches)
        manager.wait_until_finished()
    assert checkpoint.finished_steps(URL / "checkpoints") == [2] == [last_step(URL)]
    # One that was killed while it saved the next: all is there but the file that is written last.
    for name in gcs.names(f"{URL}/checkpoints/2/"):
        if name != "commit_success.txt":
            gcs.put(f"bucket/mine/checkpoints/3/{name}", b"half")
    assert checkpoint.find(str(URL)) == (URL / "checkpoints", 2) and last_step(URL) == 2
    with pytest.raises(ConfigError, match="no finished checkpoint"):
        checkpoint.find(f"{URL}/checkpoints/3")
    gcs.fail("GET", "checkpoints/2/params.*alt=media", "503")
    with checkpoint.open_checkpoints(URL, config.training) as manager:
        assert manager.latest_step() == 2
        found = checkpoint.restore(manager, 2, state_of(0))
    np.testing.assert_array_equal(found.params["w"], np.arange(6.0) + 2)
    assert not gcs.names(f"{URL}/checkpoints/3")  # the half one is gone


def test_metrics_continue_after_the_last_checkpoint_in_a_store_that_cannot_append(gcs):
    log_steps(0, (1, 2, 3))
    assert steps_told(gcs) == [1, 2, 3]
    held = gcs.content(f"{URL}/metrics.jsonl")
    gcs.put("bucket/mine/metrics.jsonl", held + b'{"step": 4, "lo')  # as no upload leaves it
    log_steps(2, (3, 4))
    assert steps_told(gcs) == [1, 2, 3, 4]
    events = [name for name in gcs.names(f"{URL}/tensorboard") if "tfevents" in name]
    assert events and all(gcs.content(f"{URL}/tensorboard/{name.lstrip('/')}") for name in events)


def test_lines_are_there_with_the_checkpoint_and_a_failure_does_not_stop_the_run(gcs, caplog):
    folder = live_files.LiveFolder(URL)
    file = folder.fetch("metrics.jsonl").open("a")
    file.write("one\n")
    file.flush()
    met = gcs.fail("POST", "metrics.jsonl", "503", times=6)
    caplog.set_level(logging.WARNING)
    for told in ("6 tries failed", None):
        folder.keep()
        while told and told not in caplog.text:
            pass
    while "bucket/mine/metrics.jsonl" not in gcs.objects:
        pass
    assert gcs.content(f"{URL}/metrics.jsonl") == b"one\n" and len(met.requests) == 6
    file.write("two\n")
    file.close()
    gcs.fail("POST", "metrics.jsonl", "403", times=99)
    with pytest.raises((storage.StorageError, PermissionError)):
        folder.close()
    assert not folder.path.exists()


def test_in_a_local_folder_nothing_is_copied(tmp_path):
    folder = live_files.LiveFolder(epath.Path(tmp_path))
    folder.keep()
    folder.close()
    assert folder.fetch("metrics.jsonl") == tmp_path / "metrics.jsonl" and folder.path == tmp_path
