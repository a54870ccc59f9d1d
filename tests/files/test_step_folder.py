"""A step's folder belongs to its inputs, and holds whole files only."""

import errno
import json
from pathlib import Path
import time

import numpy as np
import pytest

from icl_jax.config import StageError
from icl_jax.files.step_folder import (
    StepFolder,
    absolute,
    beside,
    read_results,
    require_space,
    write_json,
)
from icl_jax.workers.local import Runner, progress_bar, run_shards


def test_a_folder_is_taken_up_again_by_the_same_inputs(tmp_path):
    inputs = {"files": {"a.txt": {"bytes": 3}}, "limits": (1, 2)}  # a tuple comes back as a list
    StepFolder(tmp_path / "step", inputs)
    assert StepFolder(tmp_path / "step", inputs).results is None
    StepFolder(tmp_path / "step", inputs).complete({"count": 7})
    assert StepFolder(tmp_path / "step", inputs).results == {"count": 7}
    assert read_results(tmp_path / "none") is None


def test_a_complete_step_reports_its_time_and_its_peak_of_memory(tmp_path):
    started = time.perf_counter()
    around = StepFolder(tmp_path / "around", {})
    large = np.ones(60_000_000, np.uint8)
    step = StepFolder(tmp_path / "step", {})
    larger = np.ones(200_000_000, np.uint8)
    del large, larger
    time.sleep(0.2)
    step.complete({})
    after = StepFolder(tmp_path / "after", {})
    after.complete({})
    around.complete({})
    whole = time.perf_counter() - started
    cost = {
        name: json.loads((tmp_path / name / "cost.json").read_text())
        for name in ("around", "step", "after")
    }
    assert cost["step"]["seconds"] >= 0.2 and not cost["step"]["resumed"]
    assert sum(each["seconds"] for each in cost.values()) < whole + 0.02  # nothing counted twice
    assert cost["around"]["peak_memory_gigabytes"] >= cost["step"]["peak_memory_gigabytes"]
    if Path("/proc/self/clear_refs").exists():
        more = cost["step"]["peak_memory_gigabytes"] - cost["after"]["peak_memory_gigabytes"]
        assert 0.2 < more < 0.4


def test_the_memory_of_workers_is_counted(tmp_path):
    step = StepFolder(tmp_path, {})
    with progress_bar(disable=True) as bar:
        run_shards(take_memory, [(0,), (1,)], bar, [1, 1], Runner(2))
    step.complete({})
    cost = json.loads((tmp_path / "cost.json").read_text())
    assert cost["peak_memory_gigabytes"] > cost["largest_process_gigabytes"] > 0.3


def take_memory(number: int) -> int:
    return len(b"x" * 300_000_000)


def test_a_step_that_went_on_says_so_and_a_complete_one_keeps_what_it_said(tmp_path):
    StepFolder(tmp_path, {})
    (tmp_path / "shard").write_text("made before")
    StepFolder(tmp_path, {}).complete({})
    told = (tmp_path / "cost.json").read_text()
    assert json.loads(told)["resumed"]
    StepFolder(tmp_path, {})
    assert (tmp_path / "cost.json").read_text() == told


def test_other_inputs_are_refused_and_named(tmp_path):
    StepFolder(tmp_path / "step", {"files": {"a.txt": {"bytes": 3}}}).complete({})
    with pytest.raises(StageError, match=r"files\.a\.txt\.bytes: 3 there, 4 here.*--workdir"):
        StepFolder(tmp_path / "step", {"files": {"a.txt": {"bytes": 4}}})
    with pytest.raises(StageError, match=r"files\.b\.txt: 'absent' there"):
        StepFolder(tmp_path / "step", {"files": {"a.txt": {"bytes": 3}, "b.txt": {"bytes": 1}}})


def test_many_differences_make_a_short_message(tmp_path):
    StepFolder(tmp_path, {str(n): 0 for n in range(1000)}).complete({})
    with pytest.raises(StageError, match=r"and 995 more") as refused:
        StepFolder(tmp_path, {str(n): 1 for n in range(1000)})
    assert len(str(refused.value)) < 1000


def test_a_step_that_made_nothing_can_be_begun_with_other_inputs(tmp_path):
    StepFolder(tmp_path, {"vocab_size": 5000})
    StepFolder(tmp_path, {"vocab_size": 300}).complete({})
    with pytest.raises(StageError, match="vocab_size: 300 there"):
        StepFolder(tmp_path, {"vocab_size": 5000})


def test_a_file_that_was_not_finished_is_never_there(tmp_path):
    with pytest.raises(ZeroDivisionError), beside(tmp_path / "file") as partial:
        partial.write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with beside(tmp_path / "file") as partial:
        partial.write_text("whole")
        assert not (tmp_path / "file").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_run_left_half_written_is_cleared_away(tmp_path):
    StepFolder(tmp_path, {})
    (tmp_path / "shard.arrow.123.partial").write_text("half")
    write_json(tmp_path / "shard.json", {"kept": True})
    StepFolder(tmp_path, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inputs.json", "shard.json"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported_and_finished_files_stay(tmp_path, code):
    write_json(tmp_path / "finished.json", {"kept": True})
    told = pytest.raises(StageError, match=r"disk is full.*next.*What was finished is kept")
    with told, beside(tmp_path / "next") as partial:
        partial.write_text("half")
        raise OSError(code, "No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["finished.json"]
    assert json.loads((tmp_path / "finished.json").read_text()) == {"kept": True}


def test_another_error_is_not_taken_for_a_full_disk(tmp_path):
    with pytest.raises(PermissionError), beside(tmp_path / "next"):
        raise PermissionError(errno.EACCES, "no")


def test_work_whose_result_cannot_fit_does_not_begin(tmp_path):
    require_space(tmp_path, 1, "a byte")
    with pytest.raises(StageError, match=r"the vectors will take 1000000\.0 GB .* GB free"):
        require_space(tmp_path, 10**15, "the vectors")


def test_a_remote_path_stays_remote(tmp_path, monkeypatch):
    """Else a run on a pod would write its checkpoints to the disk of each host."""
    monkeypatch.chdir(tmp_path)
    assert str(absolute("gs://bucket/run/checkpoints")) == "gs://bucket/run/checkpoints"
    assert str(absolute("run")) == str(tmp_path / "run")
