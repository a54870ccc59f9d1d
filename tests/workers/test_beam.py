"""Shards run by Apache Beam: as in this process, with the same errors."""

from importlib.util import find_spec
import os
from pathlib import Path
import pickle
import subprocess
import sys

import pytest

from icl_jax.config import ConfigError, StageError
from icl_jax.workers import beam as parallel_beam
from icl_jax.workers.beam import check
from icl_jax.workers.local import Runner, progress_bar, run_shards

HAS_BEAM = find_spec("apache_beam") is not None
needs_beam = pytest.mark.skipif(not HAS_BEAM, reason="needs the extra beam")


def square(number: int, notes: str = "") -> int:
    if number < 0:
        raise StageError(f"{number} is below 0")
    if notes:
        (Path(notes) / str(number)).write_text("was here")
    return number * number


def runner(tmp_path, *options: str) -> Runner:
    return Runner(kind="beam", options=options, folder=str(tmp_path / "beam"))


@needs_beam
def test_results_come_in_the_order_of_the_tasks_and_progress_counts_their_sizes(tmp_path):
    with progress_bar(total=10, initial=4, file=open(os.devnull, "w")) as bar:
        found = run_shards(square, [(3,), (1,), (2,)], bar, [3, 1, 2], runner(tmp_path))
        assert bar.n == 10
    assert found == [9, 1, 4]
    assert list(tmp_path.iterdir()) == []  # nothing is left


@needs_beam
def test_the_error_of_a_shard_reaches_the_caller_as_it_is_and_ends_the_rest(tmp_path):
    tasks = [(-1, str(tmp_path)), *((n, str(tmp_path)) for n in range(40))]
    with progress_bar(disable=True) as bar, pytest.raises(StageError, match=r"^-1 is below 0$"):
        run_shards(square, tasks, bar, [1] * len(tasks), runner(tmp_path))
    assert len(list(tmp_path.iterdir())) < 40  # which run before it, Beam decides


@needs_beam
def test_other_errors_are_left_to_beam(tmp_path):
    with progress_bar(disable=True) as bar, pytest.raises(Exception, match="not supported between"):
        run_shards(square, [(None,)], bar, [1], runner(tmp_path))
    assert list(tmp_path.iterdir()) == []


@needs_beam
@pytest.mark.parametrize("option", ["--runner=NoSuchRunner", "--direct_running_mode=on_the_moon"])
def test_options_are_those_of_beam(tmp_path, option):
    with progress_bar(disable=True) as bar, pytest.raises(ConfigError, match=option):
        run_shards(square, [(1,)], bar, [1], runner(tmp_path, option))


@needs_beam
@pytest.mark.slow
def test_workers_in_processes_of_their_own_take_relative_paths(tmp_path):
    """As on a cluster: nothing is shared but files."""
    code = (
        "from icl_jax.workers.local import *; from icl_jax.workers.beam import LOCAL_RUNNER\n"
        "from tests.workers.test_beam import square\n"
        "options = (LOCAL_RUNNER, '--direct_num_workers=2', "
        "'--direct_running_mode=multi_processing')\n"
        "with progress_bar(disable=True) as bar:\n"
        "    print(run_shards(square, [(2, 'notes'), (3, 'notes')], bar, [1, 1], "
        "Runner(kind='beam', options=options, folder='beam')))\n"
    )
    (tmp_path / "notes").mkdir()
    root = str(Path(__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": root},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "[4, 9]" in run.stdout
    assert sorted(file.name for file in (tmp_path / "notes").iterdir()) == ["2", "3"]


def test_without_beam_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with progress_bar(disable=True) as bar, pytest.raises(ConfigError, match=r"icl_jax\[beam\]"):
        run_shards(square, [(1,)], bar, [1], runner(tmp_path))
    assert list(tmp_path.iterdir()) == []


@needs_beam
def test_what_beam_does_not_know_is_reported_before_any_work():
    with pytest.raises(ConfigError, match=r"beam_options.*NoSuchRunner"):
        check(("--runner=NoSuchRunner",))
    check(("--direct_num_workers=1",))


def fail_oddly(number: int) -> None:
    raise RuntimeError("a fault of the code")


@needs_beam
def test_a_pipeline_that_fails_is_reported_in_our_words(tmp_path):
    with (
        progress_bar(disable=True) as bar,
        pytest.raises(StageError, match=r"Beam could not run(.|\n)*a fault of the code"),
    ):
        run_shards(fail_oddly, [(1,)], bar, [1], runner(tmp_path))


class _Foreign:
    """What runs when it is unpickled."""

    def __init__(self, made: Path):
        self.made = str(made)

    def __reduce__(self):
        return os.mkdir, (self.made,)


@pytest.mark.parametrize("name", ["0", "error"])
@pytest.mark.parametrize(
    "content",
    [None, b"", b"\xff\xfe", b"[" * 9999, b"7", b'{"result": 4}', b'{"error": 1, "text": 2}'],
)
def test_what_no_worker_wrote_is_refused_and_runs_nothing(tmp_path, monkeypatch, name, content):
    def write(calls, options):
        (folder,) = (tmp_path / "beam").iterdir()
        foreign = pickle.dumps(_Foreign(tmp_path / "made")) if content is None else content
        (folder / name).write_bytes(foreign)

    monkeypatch.setattr(parallel_beam, "_run_pipeline", write)
    with progress_bar(disable=True) as bar, pytest.raises(StageError, match="was not written by a"):
        run_shards(square, [(1,)], bar, [1], runner(tmp_path))
    assert list(tmp_path.iterdir()) == []


class _OwnError(StageError):
    def __init__(self, number: int, why: str):
        super().__init__(f"{number}: {why}")


def give(what: object) -> object:
    if what == "config":
        raise ConfigError("of a config")
    if what == "own":
        raise _OwnError(7, "of its own kind")
    return what


def run_here(monkeypatch, tmp_path, what):
    def run(calls, options):
        for pickled in calls:
            parallel_beam.call(pickled)

    monkeypatch.setattr(parallel_beam, "_run_pipeline", run)
    with progress_bar(disable=True) as bar:
        return run_shards(give, [(what,)], bar, [1], runner(tmp_path))


@pytest.mark.parametrize("result", [None, 3, [True, False], {"a": [1, "b"]}])
def test_results_come_back_as_they_were(tmp_path, monkeypatch, result):
    assert run_here(monkeypatch, tmp_path, result) == [result]


@pytest.mark.parametrize("result", [(1, 2), {1: 2}, {1}, Path("a")])
def test_a_result_that_would_come_back_as_something_else_is_refused(tmp_path, monkeypatch, result):
    with pytest.raises(TypeError, match="JSON"):
        run_here(monkeypatch, tmp_path, result)


def test_errors_come_back_with_their_kind_and_text(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"^of a config$"):
        run_here(monkeypatch, tmp_path, "config")
    with pytest.raises(StageError, match=r"^7: of its own kind$"):
        run_here(monkeypatch, tmp_path, "own")
