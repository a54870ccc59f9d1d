"""The whole design stage under real SIGKILLs: nothing lost, nothing doubled, the same files."""

import json
import os
from pathlib import Path
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from icl_jax.config import ExamplesConfig
from icl_jax.design.folders import DesignFolders
from icl_jax.design.stage import design
from tests.design.small_build import contents
from tests.design.test_find_related import experiment, write_corpus

ROOT = Path(__file__).parents[2]
ARMS = ("contiguous", "neighbours_in_context", "random_in_batch", "document_path", "shared_entity")


# Importing takes longer than all the rest: several runs do it at a time, then wait to begin.
RUN = """
import runpy, sys
import icl_jax.design.stage
if sys.stdin.readline():
    runpy.run_module("icl_jax.main", run_name="__main__", alter_sys=True)
"""


def prepare(file: Path, workdir: Path, workers: int) -> subprocess.Popen:
    arms = "".join(f"'{arm}'," for arm in ARMS)
    command = [
        sys.executable, "-c", RUN, "--config=configs/tiny.py", "--stages=design",
        f"--config.design.corpus.files={file}", "--config.design.tokenizer.vocab_size=300",
        "--config.design.search.min_similarity=0.3", "--config.design.search.neighbours=3",
        "--config.sequence_length=130", "--config.model.context_length=130",
        "--config.design.corpus.max_sentence_tokens=128",
        "--config.design.examples.max_related_share=1.0",
        f"--config.design.examples.arms=({arms})", f"--config.design.workers={workers}",
        "--config.design.shard_megabytes=0.003", f"--workdir={workdir}",
    ]  # fmt: skip
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=ROOT, **pipes)


def begin(run: subprocess.Popen) -> subprocess.Popen:
    run.stdin.write(b"\n")
    run.stdin.flush()
    return run


def run_here(file: Path, workdir: Path) -> None:
    """The same in this process: it has everything imported already."""
    config = experiment(file, examples=ExamplesConfig(arms=ARMS, max_related_share=1.0))
    config.sequence_length = 130
    design(config, workdir)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(file, workdir) of a build that nobody killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    file = write_corpus(folder)
    run_here(file, folder / "run")
    return file, folder / "run"


def assert_same(workdir: Path, expected: Path) -> None:
    a, b = contents(workdir), contents(expected)
    assert a.keys() == b.keys()
    assert [name for name in b if a[name] != b[name]] == []
    assert card_of(workdir) == card_of(expected)


def card_of(workdir: Path) -> dict:
    """What the data card shows, except what is about the run itself."""
    card = json.loads((DesignFolders(workdir).path / "card.json").read_text())
    return {name: card[name] for name in card if name not in ("cost", "config")}


def wait_until(run: subprocess.Popen, there) -> None:
    """Returns as soon as `there()` is true; it must come to be before the run ends."""
    deadline = time.monotonic() + 120
    while not there():
        assert run.poll() is None and time.monotonic() < deadline, run.communicate()[0].decode()
        time.sleep(0.0002)


@pytest.mark.slow
def test_the_second_half_killed_anywhere_continues_to_the_same_files(undisturbed, tmp_path):
    file, expected = undisturbed
    path = DesignFolders(tmp_path / "run").path
    shutil.copytree(expected, tmp_path / "run")
    for made in ("groups", "arms", "entity_neighbours"):
        shutil.rmtree(path / made)
    for card in ("card.json", "card.html"):
        (path / card).unlink()
    marks = {
        "groups/shared_entity/groups-00000.arrow": 1,
        "arms/contiguous/*.tfrecord-00001-of-*": 2,
    }
    runs = [prepare(file, tmp_path / "run", workers) for workers in (2, *marks.values())]
    run = begin(runs[0])
    wait_until(run, lambda: len(workers_of(run.pid)) == 2)
    time.sleep(0.05)  # they have tasks now, and import for longer
    os.kill(int(workers_of(run.pid)[0]), signal.SIGKILL)
    assert "worker processes was killed" in run.communicate(timeout=60)[0].decode()
    assert run.returncode == 2
    for mark, run in zip(marks, runs[1:], strict=True):
        wait_until(begin(run), lambda mark=mark: any(path.glob(mark)))
        run.kill()
        run.communicate()
    run_here(file, tmp_path / "run")
    assert_same(tmp_path / "run", expected)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_kills_at_any_moment_lose_and_double_nothing(undisturbed, tmp_path, workers):
    """With several workers every other kill is that of one worker alone."""
    file, expected = undisturbed
    workdir, draw = tmp_path / "run", random.Random(workers)
    kills, rounds = {"run": 0, "worker": 0}, 0
    while sum(kills.values()) < 13:
        (DesignFolders(workdir).path / "lock").unlink(missing_ok=True)
        run = begin(prepare(file, workdir, workers))
        wait_for_begin(run, workdir)
        kind = "worker" if workers > 1 and sum(kills.values()) % 2 else "run"
        kills[kind] += kill_worker(run, draw) if kind == "worker" else kill_later(run, draw)
        output = run.communicate(timeout=300)[0].decode()
        if run.returncode == 0:
            assert_same(workdir, expected)
            shutil.rmtree(workdir)
            rounds += 1
        elif kind == "worker":
            assert "worker processes was killed" in output
    run_here(file, workdir)
    assert_same(workdir, expected)
    print(f"{kills}, {rounds} rounds to the end between them")


def wait_for_begin(run: subprocess.Popen, workdir: Path) -> None:
    while not (DesignFolders(workdir).path / "lock").exists():
        assert run.poll() is None, run.communicate()[0].decode()
        time.sleep(0.001)


def kill_later(run: subprocess.Popen, draw: random.Random) -> bool:
    time.sleep(draw.choice([0.05, 0.3, 1, 3]) * draw.random())
    ended = run.poll() is not None
    run.kill()
    return not ended


def kill_worker(run: subprocess.Popen, draw: random.Random) -> bool:
    """Kills one worker process at some moment of its life; false if the run ended before."""
    time.sleep(3 * draw.random())
    while run.poll() is None:
        if workers := workers_of(run.pid):
            time.sleep(draw.random())
            return subprocess.run(["kill", "-9", draw.choice(workers)]).returncode == 0
        time.sleep(0.01)
    return False


def workers_of(process: int) -> list[str]:
    """Children that run shards: not the one that keeps track of semaphores."""
    found = []
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            for child in children.read_text().split():
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(child)
        except OSError:
            continue  # it has just ended
    return found
