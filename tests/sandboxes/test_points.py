import json
import os

import pytest
from tqdm import tqdm

from icl_jax.config import ConfigError, StageError
from icl_jax.sandboxes.points import ONE_THREAD, Point, is_done, note_progress, run_points, share_of
from icl_jax.workers.local import Runner, run_shards


def square(folder, value):
    with open(folder / "runs.txt", "a") as file:
        file.write("run\n")
    return {"square": value**2, "flags": os.environ.get("XLA_FLAGS", ""), "process": os.getpid()}


def fails(folder, value):
    raise StageError(f"{value} cannot be done")


def points(count=3):
    return [Point(f"M1 value, {n}", square, {"value": n}, 1.0 + n) for n in range(count)]


def test_every_point_runs_once_and_is_not_run_again(tmp_path):
    found = run_points(points(), tmp_path, 1)
    assert [found[f"M1 value, {n}"]["square"] for n in range(3)] == [0, 1, 4]
    again = run_points(points(4), tmp_path, 1)
    assert again["M1 value, 3"]["square"] == 9
    for point in points():
        assert (tmp_path / "points" / point.folder / "runs.txt").read_text() == "run\n"
        assert is_done(point, tmp_path)


def test_points_run_in_other_processes_of_one_thread_each(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    # Processes that another step left waiting have no such flag.
    run_shards(os.getpid, [(), ()], tqdm(disable=True), [0, 0], Runner(2))
    found = run_points(points(), tmp_path, 2).values()
    assert os.getpid() not in {result["process"] for result in found}
    assert all(ONE_THREAD in result["flags"] for result in found)
    assert ONE_THREAD not in os.environ.get("XLA_FLAGS", "")


def test_other_arguments_are_named_and_nothing_is_mixed_up(tmp_path):
    run_points(points(1), tmp_path, 1)
    with pytest.raises(StageError, match="value: 0 there, 5 here"):
        run_points([points(1)[0]._replace(arguments={"value": 5})], tmp_path, 1)


def test_what_was_finished_before_an_error_is_kept(tmp_path):
    wrong = Point("wrong", fails, {"value": 7}, 0.5)  # the shortest goes last
    with pytest.raises(StageError, match="7 cannot be done"):
        run_points([wrong, *points(2)], tmp_path, 1)
    assert [is_done(point, tmp_path) for point in points(2)] == [True, True]
    assert not is_done(wrong, tmp_path)


def test_the_progress_of_a_point_is_what_it_noted_last(tmp_path):
    point = points(1)[0]
    folder = tmp_path / "points" / point.folder
    assert share_of(point, tmp_path) == 0.0
    folder.mkdir(parents=True)
    for share in (0.25, 0.5):
        note_progress(folder, share)
        assert share_of(point, tmp_path) == share
    run_points([point], tmp_path, 1)
    assert share_of(point, tmp_path) == 1.0 and not (folder / "progress").exists()


def test_two_points_of_one_name_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="one name"):
        run_points([*points(1), *points(1)], tmp_path, 1)


def test_folders_have_plain_names_that_differ_even_where_only_marks_do():
    first, second = (Point(name, square, {}, 1.0).folder for name in ("Dyck(4,2)", "Dyck(4.2)"))
    assert first != second
    assert first.startswith("Dyck-4-2-") and second.startswith("Dyck-4-2-")


def test_results_are_in_a_folder_that_says_what_made_them(tmp_path):
    point = points(1)[0]
    run_points([point], tmp_path, 1)
    inputs = json.loads((tmp_path / "points" / point.folder / "inputs.json").read_text())
    assert inputs["arguments"] == {"value": 0}
    assert inputs["work"].endswith("test_points.square")
