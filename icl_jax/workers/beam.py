"""Runs one function on many shards by Apache Beam, on any of its runners (extra `beam`).

Launcher and workers share nothing but files, because a worker of a cluster can return nothing else:
it writes its shard, and then its result, into a folder that both see. A task may run twice (runners
repeat tasks that failed or are slow); both times it writes the same. Results are JSON, which runs
nothing when the launcher reads it.
"""

from collections.abc import Callable, Sequence
import contextlib
import io
import json
import os
from pathlib import Path
import pickle
import shutil
import threading
import uuid

from tqdm import tqdm

from icl_jax.config import ConfigError, StageError
from icl_jax.files.remote import read_bytes
from icl_jax.files.step_folder import beside, note_worker, peak_of_this_process
from icl_jax.workers.local import Runner

# Beam's runner in this process; its DirectRunner would download a program that it runs instead.
LOCAL_RUNNER = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_POLL_SECONDS = 0.5
_ERROR = "error"
_STOPS = {kind.__name__: kind for kind in (ConfigError, StageError)}


def run(
    function: Callable, tasks: Sequence[tuple], bar: tqdm, sizes: Sequence[int], runner: Runner
) -> list:
    """As `local.run_shards`. Without a --runner among its options Beam runs in this process."""
    if not tasks:
        return []
    if not runner.folder:
        raise ValueError("Runner.folder must be set for Beam: where its workers leave results")
    shutil.rmtree(runner.folder, ignore_errors=True)  # of a run that was killed
    folder = Path(runner.folder).absolute() / uuid.uuid4().hex
    folder.mkdir(parents=True)
    here = os.getcwd()
    calls = [
        pickle.dumps((function, task, str(folder / str(index)), here))
        for index, task in enumerate(tasks)
    ]
    try:
        with _progress(folder, sizes, bar):
            _run_pipeline(calls, runner.options)
        return _collect(folder, len(tasks))
    finally:
        shutil.rmtree(runner.folder, ignore_errors=True)


def check(options: Sequence[str]) -> None:
    """Stops if Beam is not installed, or does not know these options."""
    _make_pipeline(options)


def _make_pipeline(options: Sequence[str]):
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise ConfigError(
            f"design.runner 'beam' needs Apache Beam ({error}); pip install 'icl_jax[beam]', or "
            "set design.runner to 'local'"
        ) from error
    if not any(option.partition("=")[0] == "--runner" for option in options):
        options = (LOCAL_RUNNER, *options)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            parsed = PipelineOptions(list(options))
            parsed.get_all_options()
        return beam.Pipeline(options=parsed)
    except (ValueError, ImportError, SystemExit) as error:  # argparse prints, and exits
        reason = printed.getvalue().strip().splitlines()[-1:] or [error]
        raise ConfigError(
            f"design.beam_options must be options of Apache Beam, got {list(options)}: {reason[0]}"
        ) from None


def _run_pipeline(calls: list[bytes], options: Sequence[str]) -> None:
    pipeline = _make_pipeline(options)
    import apache_beam as beam

    # Without the reshuffle a runner would join all steps into one, on one worker.
    pipeline | beam.Create(calls) | beam.Reshuffle() | beam.Map(call)
    try:
        state = pipeline.run().wait_until_finish()
    except Exception as error:  # runners have no common one
        raise StageError(
            f"Beam could not run the pipeline ({type(error).__name__}: {error}); what was finished "
            "is kept. Look at the log of the runner, and rerun the command"
        ) from error
    if state not in (None, "DONE"):
        raise StageError(
            f"Beam ended the pipeline as {state}; what was finished is kept. Look at the log of "
            "the runner, and rerun the command"
        )


def call(pickled: bytes) -> None:
    """In a worker: runs one task and leaves its result, or what stops the whole run, in a file."""
    function, task, file, folder = pickle.loads(pickled)
    file = Path(file)
    error = file.with_name(_ERROR)
    if file.exists() or error.exists():
        return
    try:
        if os.getcwd() != folder:  # paths of a config may be relative
            _enter(folder)
        result = function(*task)
    except (ConfigError, StageError) as stop:  # Beam would try again, and wrap it
        kind = next(name for name, kind in _STOPS.items() if isinstance(stop, kind))
        _write(error, {"error": kind, "text": str(stop)})
        return
    worker, peak = peak_of_this_process()
    _write(file, {"result": result, "worker": worker, "peak": peak})


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise StageError(
            f"a worker of Beam cannot enter {folder}, where the command was given ({error}); "
            "corpus and --workdir must be where every worker sees them, under the same path"
        ) from error


def _write(file: Path, value: dict) -> None:
    text = json.dumps(value)
    if json.loads(text) != value:  # a tuple, or numbers as keys
        raise TypeError(f"a worker of Beam can only return what JSON keeps as it is, got {value}")
    with beside(file) as partial:
        partial.write_text(text)


def _read(file: Path, **kinds: type) -> tuple:
    """The fields that a worker wrote, in this order; whatever else is there stops the run."""
    try:
        held = json.loads(read_bytes(file))
    except (ValueError, RecursionError):
        held = None
    right = isinstance(held, dict) and held.keys() == kinds.keys()
    if not right or not all(isinstance(held[name], kind) for name, kind in kinds.items()):
        raise StageError(
            f"{file} was not written by a worker of Beam (expected JSON with "
            f"{', '.join(kinds)}); it was not used. Run the same version of icl_jax on all "
            "workers, let nobody else write into that folder, and rerun the command"
        )
    return tuple(held[name] for name in kinds)


def _collect(folder: Path, count: int) -> list:
    error = folder / _ERROR
    if error.exists():
        kind, text = _read(error, error=str, text=str)
        raise _STOPS.get(kind, StageError)(text)
    missing = [index for index in range(count) if not (folder / str(index)).exists()]
    if missing:
        raise StageError(
            f"Beam finished, but the results of {len(missing)} of {count} shards are not in "
            f"{folder}; --workdir must be where every worker of Beam sees it"
        )
    results = []
    for index in range(count):
        result, worker, peak = _read(folder / str(index), result=object, worker=str, peak=int)
        note_worker(worker, peak)
        results.append(result)
    return results


@contextlib.contextmanager
def _progress(folder: Path, sizes: Sequence[int], bar: tqdm):
    """Moves the bar as results appear."""
    left, stopped = set(range(len(sizes))), threading.Event()

    def look() -> None:
        for index in [i for i in left if (folder / str(i)).exists()]:
            left.remove(index)
            bar.update(sizes[index])

    def poll() -> None:
        while not stopped.wait(_POLL_SECONDS):
            look()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        look()
