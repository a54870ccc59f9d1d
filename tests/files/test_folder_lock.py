"""One process works in a folder; a second is refused by the name of the first."""

import os
import socket
import subprocess
import sys

from etils import epath
import jax
import pytest

from icl_jax.config import StageError
from icl_jax.files.folder_lock import alone_in
from icl_jax.training.train import train
from tests.training import small

HOLDER = """
import sys
from icl_jax.files.folder_lock import alone_in
with alone_in(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(folder) -> subprocess.Popen:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLDER, str(folder)]
    holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_training_is_refused_by_the_name_of_the_first_and_a_killed_one_is_not_waited_for(
    tmp_path,
):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n' * 9)
    holder = start_holder(tmp_path)
    name = rf"process {holder.pid} on {socket.gethostname()}, since \d{{4}}-.* UTC; wait for it"
    with jax.numpy_dtype_promotion("standard"), pytest.raises(StageError, match=name):
        train(small.experiment(), epath.Path(tmp_path))
    assert metrics.read_text() == '{"step": 1}\n' * 9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "metrics.jsonl"]
    holder.kill()
    holder.communicate()
    with alone_in(tmp_path):
        assert str(os.getpid()) in (tmp_path / "lock").read_text()
    assert (tmp_path / "lock").read_text() == ""


def test_who_is_refused_leaves_the_name_of_the_first(tmp_path):
    with alone_in(tmp_path):
        for _ in range(2):
            with pytest.raises(StageError, match=f"process {os.getpid()} on"), alone_in(tmp_path):
                pass
