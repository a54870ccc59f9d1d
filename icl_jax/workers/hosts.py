"""Runs one function on many shards on all hosts of a JAX job: process 0 leads, the others follow.

The leader runs a stage as if it were alone. Where that comes to shards, it tells the step to all,
and every process, itself among them, takes the next shard that nobody has taken, until none is
left. Shards are files, written by whoever made them where all see them; results, counts for the
progress bar and errors go through the job's key-value store. To wait is to ask the store again and
again: a barrier or a collective would time out, for a step may take hours. A process that dies is
noticed by JAX, which ends the others.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import functools
import itertools
import os
from pathlib import Path
import threading
import time
import traceback
import uuid

from tqdm import tqdm

from icl_jax.config import ConfigError, StageError
from icl_jax.files import mirror
from icl_jax.files.remote import is_remote
from icl_jax.files.step_cost import note_worker, peak_of_this_process
from icl_jax.workers.hosts_session import Agreement, BrokenRoundError, HostError, LeftError, Session
from icl_jax.workers.job import job_size
from icl_jax.workers.local import KeptOpen, Runner, run_here

_TELL_SECONDS = 0.5  # between two counts for the progress bar
_LOOK_SECONDS = 5  # a follower looks for a file of the leader
# After these a process does not wait for the tasks of others: Ctrl-C, or they wait for it.
_AT_ONCE = (KeyboardInterrupt, BrokenRoundError)
# Made of `Agreement.exchange`: what each process holds around its tasks, to work with all others.
Company = Callable[[Callable[[object], list]], contextlib.AbstractContextManager]

_sessions = itertools.count()  # in step on all processes: all run the same stages
_leading: Session | None = None
_following = False


def by_leader(work: Callable, *arguments, workdir: os.PathLike | None = None) -> object:
    """Process 0 calls `work`, the others run shards for it; all return what it returns, or stop.

    `workdir`: a folder that all must see. A process that is alone just calls it.
    """
    if job_size() == 1 or leads():
        return work(*arguments)
    import jax

    jax.local_devices()  # opening the devices waits for all processes
    session = Session(next(_sessions))
    if session.place == 0:
        return _lead(session, functools.partial(work, *arguments), workdir)
    return _follow(session, workdir)


def leads() -> bool:
    """Whether shards that this process runs are for all hosts of its job."""
    return _leading is not None


def follows() -> bool:
    """Whether another process leads: what it says, this one need not say again."""
    return _following


def run(
    function: Callable,
    tasks: Sequence[tuple],
    bar: tqdm,
    sizes: Sequence[int],
    runner: Runner,
    whole_host: bool = False,
    company: Company | None = None,
) -> list:
    """As `parallel.run_shards`, by the leader."""
    if not tasks:
        return []
    if not runner.design:
        raise ValueError("Runner.design must be set in a job of several hosts: where they write to")
    call = _Call(function, list(tasks), list(sizes), runner, whole_host, company)
    session = _leading
    step = session.tell(call)
    with _moving(bar, session, step) as count:
        own = _work(session, step, call, count)
        if isinstance(own.error, _AT_ONCE):
            raise own.error
        try:
            ended = [own, *(session.read(f"{step}/ended/{place}") for place in session.others)]
        except KeyboardInterrupt:
            session.stop(step)
            raise
    errors = [part.error for part in ended if part.error is not None]
    if errors:  # a process that failed before one that no longer waits for it
        raise min(errors, key=lambda error: isinstance(error, LeftError))
    _refresh(runner)
    results = own.results
    for part in ended[1:]:
        results |= {index: session.read(f"{step}/result/{index}") for index in part.indices}
    for name, peak in itertools.chain.from_iterable(part.peaks.items() for part in ended):
        note_worker(name, peak)
    session.forget(step)
    return [results[index] for index in range(len(tasks))]


@dataclasses.dataclass
class _Call:
    """What the leader tells: the tasks of one step."""

    function: Callable
    tasks: list[tuple]
    sizes: list[int]
    runner: Runner
    whole_host: bool
    company: Company | None


@dataclasses.dataclass
class _Look:
    """What the leader tells: a file that must be seen in the workdir."""

    name: str


@dataclasses.dataclass
class _End:
    """What the leader tells: what its work returned, or what stopped it."""

    result: object = None
    error: HostError | None = None


@dataclasses.dataclass
class _Ended:
    """What a process made of a step."""

    indices: list[int]  # of the tasks that it ran
    peaks: dict[str, int]  # the memory of its processes
    error: BaseException | None
    results: dict[int, object]  # of the leader's; followers leave theirs in the store


def _lead(session: Session, work: Callable, workdir: os.PathLike | None) -> object:
    global _leading
    try:
        if workdir is not None and not is_remote(workdir):
            _check_seen(session, workdir)
        _leading = session
        result = work()
        session.tell(_End(result))
    except BaseException as error:
        with contextlib.suppress(RuntimeError):  # the store may be what is gone
            session.tell(_End(error=session.blame(error)))
        raise
    finally:
        _leading = None
    return result


def _follow(session: Session, workdir: os.PathLike | None) -> object:
    global _following
    _following = True
    try:
        return _answer(session, workdir)
    finally:
        _following = False


def _answer(session: Session, workdir: os.PathLike | None) -> object:
    """Does what the leader tells, until it has ended."""
    for number, told in session.hear():
        if isinstance(told, _End):
            if told.error is not None:
                raise told.error
            return told.result
        if isinstance(told, _Look):
            sees = _sees(Path(workdir) / told.name)
            session.write(f"{number}/sees/{session.place}", "" if sees else session.name)
            continue
        if isinstance(told, _Call):
            count = _Count(session, number)
            ended = _work(session, number, told, count)
            session.count(number, count.done)
        else:
            ended = _Ended([], {}, told, {})
        blamed = None if ended.error is None else session.blame(ended.error)
        answer = dataclasses.replace(ended, error=blamed)
        session.write(f"{number}/ended/{session.place}", answer)
        if isinstance(ended.error, _AT_ONCE):
            raise ended.error


def _work(session: Session, step: int, call: _Call, count: "_Count") -> _Ended:
    """Takes tasks until there are none; an error is told in what is returned."""
    indices, results, peaks, error = [], {}, {}, None

    def finished(index: int, result: object, peak: tuple[str, int]) -> None:
        if session.place:
            session.write(f"{step}/result/{index}", result)
        else:
            results[index] = result
        indices.append(index)
        peaks[peak[0]] = max(peak[1], peaks.get(peak[0], 0))
        count.end_task(call.sizes[index])

    def taken() -> Iterator[tuple[int, tuple]]:
        while (index := session.take(step)) < len(call.tasks):
            yield index, call.tasks[index]

    try:
        if session.place:
            _refresh(call.runner)
        if call.whole_host:
            with _in_company(call.company, Agreement(session, step)):
                for index, task in taken():
                    result = call.function(*task, count.add)
                    finished(index, result, peak_of_this_process())
        else:
            share = -(-len(call.tasks) // (1 + len(session.others)))
            workers = min(call.runner.threads, share)
            run_here(call.function, taken(), workers, call.runner, finished)
    except BaseException as caught:  # told to all, who then end
        session.stop(step)
        error = caught
        if session.place and not isinstance(caught, ConfigError | StageError | KeyboardInterrupt):
            traceback.print_exc()  # the leader tells only what it says
    finally:
        KeptOpen.close_all()  # what comes next needs the memory
    return _Ended(indices, peaks, error, results)


@contextlib.contextmanager
def _in_company(company: Company | None, agreement: Agreement) -> Iterator[None]:
    """Holds the company, if there is one; who fails in it tells those that would wait for it."""
    try:
        with company(agreement.exchange) if company else contextlib.nullcontext():
            yield
    except LeftError:
        raise
    except BaseException:
        agreement.leave()
        raise


class _Count:
    """How much of a step this process has done; a follower tells it now and then."""

    def __init__(self, session: Session, step: int):
        self._session, self._step = session, step
        self.done = self._of_task = 0
        self._told = -_TELL_SECONDS

    def add(self, count: int) -> None:
        """A part of a task."""
        self._of_task += count
        self._tell()

    def end_task(self, size: int) -> None:
        """All of a task."""
        self.done, self._of_task = self.done + size, 0
        self._tell()

    @property
    def now(self) -> int:
        """With what is done of the task at hand."""
        return self.done + self._of_task

    def _tell(self) -> None:
        if self._session.place and time.monotonic() > self._told + _TELL_SECONDS:
            self._session.count(self._step, self.now)
            self._told = time.monotonic()


@contextlib.contextmanager
def _moving(bar: tqdm, session: Session, step: int):
    """Moves the leader's bar by what all processes do; yields the count of its own."""
    count, stopped, started = _Count(session, step), threading.Event(), bar.n

    def look() -> None:
        bar.update(started + count.now + session.counted(step) - bar.n)

    def poll() -> None:
        while not stopped.wait(_TELL_SECONDS):
            look()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield count
    finally:
        stopped.set()
        thread.join()
    look()


def _check_seen(session: Session, workdir: os.PathLike) -> None:
    """Stops where a host would write its shards to another folder than the leader reads."""
    token = Path(workdir) / f"seen-by-all-{uuid.uuid4().hex}"
    try:
        token.parent.mkdir(parents=True, exist_ok=True)
        token.touch()
    except OSError as error:
        raise ConfigError(f"{workdir} cannot be written to ({error.strerror})") from None
    try:
        number = session.tell(_Look(token.name))
        blind = [session.read(f"{number}/sees/{place}") for place in session.others]
    finally:
        token.unlink()
    if any(blind):
        raise HostError(
            f"{', '.join(filter(None, blind))} cannot see what {session.name} writes to {workdir}; "
            "expected a --workdir on a disk that all hosts share, under the same path"
        )


def _sees(file: Path) -> bool:
    deadline = time.monotonic() + _LOOK_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _refresh(runner: Runner) -> None:
    """Brings what other hosts wrote into sight: a follower before its tasks, the leader after all.

    Opening the folders is enough on a shared disk: NFS may remember for a while which files were
    not there. The local copy of a remote workdir is brought up to date.
    """
    folder = mirror.local_folder(runner.design)
    mirror.pull(folder)
    for _ in os.walk(folder):
        pass
