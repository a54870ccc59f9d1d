"""What the processes of a job tell each other during one piece of work, through the job's store.

Process 0 leads, the others follow; `parallel_hosts` has what they do.
"""

from collections.abc import Iterator
import itertools
import socket

from icl_jax.config import ConfigError, StageError
from icl_jax.workers.hosts_messages import MessageError, decode, encode
from icl_jax.workers.job import job_place, job_size, job_store

_ASK_SECONDS = 2  # the store is asked for so long at a time
_NO_MORE = str(1 << 30)  # more than there are tasks; the store counts in 32 bits


class HostError(StageError):
    """What stopped one process of the job; the text says which."""


class LeftError(HostError):
    """Others of the job wait no longer for a process that failed; its own error says why."""


class BrokenRoundError(RuntimeError):
    """A collective failed in one process: the others hang in it, until this one leaves the job."""


class Session:
    """One piece of work by the leader, in the store's keys that begin with its number."""

    def __init__(self, number: int):
        self._store, self._prefix = job_store(), f"icl_jax/hosts/{number}/"
        self._told = itertools.count()
        self.place, self.others = job_place(), range(1, job_size())
        self.name = f"process {self.place} ({socket.gethostname()})"

    def tell(self, what: object) -> int:
        """By the leader to all; returns the number of what it told."""
        message = encode(what)  # first: the others would wait for a number that is never told
        number = next(self._told)
        self._set(f"told/{number}", message)
        return number

    def hear(self) -> Iterator[tuple[int, object]]:
        """By a follower: all that is told; an error where that means nothing here."""
        for number in itertools.count():
            try:
                told = self.read(f"told/{number}")
            except MessageError as error:
                told = error
            yield number, told

    def write(self, key: str, value: object) -> None:
        """Anything that `hosts_messages` encodes."""
        self._set(key, encode(value))

    def read(self, key: str) -> object:
        """Waits for it, however long that takes."""
        import jax

        while True:
            try:
                found = self._store.blocking_key_value_get_bytes(
                    self._prefix + key, 1000 * _ASK_SECONDS
                )
                return decode(found)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):  # the job is gone
                    raise

    def take(self, step: int) -> int:
        """The next task that nobody has taken."""
        return self._store.key_value_increment(f"{self._prefix}{step}/taken", 1) - 1

    def stop(self, step: int) -> None:
        """Nobody finds a next task any more."""
        self._store.key_value_set(f"{self._prefix}{step}/taken", _NO_MORE, allow_overwrite=True)

    def count(self, step: int, done: int) -> None:
        """How much this process has done of a step."""
        key = f"{self._prefix}{step}/count/{self.place}"
        self._store.key_value_set(key, str(done), allow_overwrite=True)

    def counted(self, step: int) -> int:
        """How much the followers have done of a step."""
        found = self._store.key_value_dir_get(f"{self._prefix}{step}/count/")
        return sum(int(count) for _, count in found)

    def forget(self, step: int) -> None:
        """Empties the store of a step that all have ended."""
        self._store.key_value_delete(f"{self._prefix}{step}/")
        self._store.key_value_delete(f"{self._prefix}told/{step}")

    def delete(self, key: str) -> None:
        """What nobody will read any more."""
        self._store.key_value_delete(self._prefix + key)

    def blame(self, error: BaseException) -> HostError:
        """The error as all processes tell it."""
        if isinstance(error, HostError):
            return error
        expected = isinstance(error, ConfigError | StageError)
        text = str(error) if expected else f"{type(error).__name__}: {error}"
        return HostError(f"{self.name}: {text}")

    def _set(self, key: str, message: bytes) -> None:
        self._store.key_value_set_bytes(self._prefix + key, message)


class Agreement:
    """What all processes of a step tell each other, again and again, each waiting for all."""

    def __init__(self, session: Session, step: int):
        self._session, self._key, self._round = session, f"{step}/agreed", 0
        self._everyone = range(1 + len(session.others))

    def exchange(self, word: object) -> list:
        """What each process says in this round."""
        session, number = self._session, self._say((word, None))
        told = [session.read(f"{self._key}/{number}/{place}") for place in self._everyone]
        if number:  # who speaks in this round has read all of the one before
            session.delete(f"{self._key}/{number - 1}/{session.place}")
        for _, left in told:
            if left is not None:
                raise LeftError(f"{left} failed")
        return [word for word, _ in told]

    def leave(self) -> None:
        """Says in the round to come that this process failed."""
        self._say((None, self._session.name))

    def _say(self, told: tuple[object, str | None]) -> int:
        number, self._round = self._round, self._round + 1
        self._session.write(f"{self._key}/{number}/{self._session.place}", told)
        return number
