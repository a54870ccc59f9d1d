"""What each process of the jobs in `tests/workers/test_job.py` runs.

python tests/steps_of_a_job.py FOLDER WORK --coordinator=HOST:PORT --num_processes=N --process_id=I
"""

import os
from pathlib import Path
import signal
import sys
import time
import types

from etils import epath

from icl_jax.cli import ends_in_one_line
from icl_jax.config import ConfigError, ExperimentConfig, StageError
from icl_jax.files import folder_lock
from icl_jax.files.folder_lock import alone_in
from icl_jax.files.step_folder import StepFolder, once, write_json
from icl_jax.workers.job import (
    agree,
    barrier,
    ends_with_job,
    job_place,
    job_size,
    join_job,
    on_first,
)
from icl_jax.workers.local import Runner
from icl_jax.workers.shards import make_shards


def note(text: object) -> None:
    """Unlike `print`, also for a process that is not the first."""
    sys.__stdout__.write(f"{text}\n")
    sys.__stdout__.flush()


def wait_for(there) -> None:
    deadline = time.monotonic() + 30
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def meet(folder: str, number: int) -> None:
    """Waits for a process that does the same, so that both are at work at a time."""
    (Path(folder) / f"of {job_place()}").touch()
    wait_for(lambda: len([*Path(folder).glob("of *")]) == 2)
    write_json(Path(folder) / f"{number}.json", [job_place(), number * number])


def step_of(folder: Path, make, count: int = 5) -> StepFolder:
    """A step of so many shards, which only the first process adds up."""
    step = StepFolder(folder / "step", {"count": count})
    if step.results is None:
        files = [step.path / f"{number}.json" for number in range(count)]
        once(step.path, write_json, step.path / "made once.json", job_place())
        make_shards(
            "shards", step.path, [1] * count, lambda number: files[number].exists(), make,
            lambda number: (str(step.path), number), Runner(1),
        )  # fmt: skip
        step.complete(lambda: {"made": [file.read_text().split() for file in files]})
    return step


def shards(folder: Path) -> None:
    with alone_in(folder):
        step = step_of(folder, meet)
        note([made[1].strip(",") for made in step.results["made"]])
        note([made[2] for made in step.results["made"]])
        note([path.name for path in sorted(step.path.glob("made*"))])
        assert StepFolder(step.path, {"count": 5}).results == step.results


def first(folder: Path) -> None:
    """Also prints are those of the first; inside it is alone, so nothing in there waits."""
    print("printed by one")
    result = on_first("look", lambda: (job_size(), on_first("again", lambda: job_size())))
    note((job_size(), result))


def blind(folder: Path) -> None:
    folder_lock._LOOK_SECONDS = 0.2
    with alone_in(folder if job_place() == 0 else folder / "of another disk"):
        note("never printed")


def other_files(folder: Path) -> None:
    agree("results of the step", job_place() == 0)


def other_inputs(folder: Path) -> None:
    StepFolder(folder / "step", {"count": 5, "files": job_place()})
    note("never printed")


def other_records(folder: Path) -> None:
    from icl_jax.training.run_record import record_run  # takes long, and is needed here alone

    data = types.SimpleNamespace(
        fingerprint=lambda: f"records of {job_place()}", steps_per_epoch=None, plan_version=2
    )
    record_run(ExperimentConfig(), epath.Path(folder), data)


def left_over(folder: Path) -> None:
    """Each has a disk of its own, as for local copies of a bucket."""
    own = folder / f"disk {job_place()}" / "step"
    own.mkdir(parents=True)
    write_json(own / "inputs.json", {"count": 5})
    (own / "shard.json.123.partial").write_text("half")
    StepFolder(own, {"count": 5})
    note([path.name for path in own.iterdir()])


def out_of_step(folder: Path) -> None:
    barrier(f"here is {job_place()}")


def wrong_word(folder: Path) -> None:
    def stop() -> None:
        raise ConfigError("a wrong word")

    on_first("check", stop)


def no_shard(folder: str, number: int) -> None:
    if job_place() == 1:
        raise StageError(f"nothing comes of {number}")
    write_json(Path(folder) / f"{number}.json", [job_place(), number])


def no_process(folder: str, number: int) -> None:
    if job_place() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    write_json(Path(folder) / f"{number}.json", [job_place(), number])


WORK = {
    "shards": shards, "first": first, "blind": blind, "other_files": other_files,
    "other_inputs": other_inputs, "other_records": other_records, "left_over": left_over,
    "out_of_step": out_of_step, "wrong_word": wrong_word,
    "no_shard": lambda folder: step_of(folder, no_shard),
    "no_process": lambda folder: step_of(folder, no_process),
}  # fmt: skip


def main() -> None:
    coordinator, processes, place = (argument.partition("=")[2] for argument in sys.argv[3:])
    with ends_in_one_line():
        join_job(coordinator, int(processes), int(place))
    with ends_with_job(), ends_in_one_line():
        WORK[sys.argv[2]](Path(sys.argv[1]))


if __name__ == "__main__":
    main()
