"""Where the time of a run went, over all its restarts, and how much went into steps that count.

`goodput.json` has an entry for every checkpoint. A run that continues from a checkpoint has lost
all the time since that entry: steps that must be repeated, and time when nothing ran.
"""

from collections.abc import Callable, Iterator
import contextlib
import json
import time

from etils import epath
import jax

from icl_jax.files.remote import read_text
from icl_jax.files.step_folder import write_json

# What takes time, with its name in the report; `step` is everything else.
PARTS = {
    "step": "steps",
    "start": "start",
    "compile": "compile",
    "input_wait": "waiting for input",
    "checkpoint": "checkpoints",
    "lost": "lost to restarts",
}


class Goodput:
    """The clock of a run. Time belongs to `start` until `begin_steps`, to `step` after it."""

    def __init__(self, workdir: epath.Path, now: Callable[[], float] = time.time):
        self._file, self._now, self._noted = workdir / "goodput.json", now, now()
        self._rest = "start"  # the part that gets all time not counted to another
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._entries: list[dict] = []

    def continue_from(self, step: int) -> None:
        """Restores what the run had spent by the end of step `step`; call it once."""
        held = json.loads(read_text(self._file)) if self._file.exists() else []
        self._entries = [entry for entry in held if entry["step"] <= step]
        if not self._entries:  # work before the first checkpoint can be lost, too
            self.note(step)
            return
        last = self._entries[-1]
        for name in PARTS:
            self._seconds[name] += last[f"seconds_{name}"]
        # The clocks of two machines may differ.
        self._seconds["lost"] += max(0.0, self._noted - last["time"])

    def begin_steps(self) -> None:
        """Marks the end of the start: the step is compiled, the data is ready."""
        self._settle()
        self._rest = "step"

    @contextlib.contextmanager
    def spent_on(self, part: str) -> Iterator[None]:
        """Counts the time of the block towards `part`."""
        start = self._now()
        yield
        self.add(part, self._now() - start)

    def add(self, part: str, seconds: float) -> None:
        """Counts seconds that have just passed towards `part`."""
        self._seconds[part] += seconds
        self._seconds[self._rest] -= seconds

    def numbers(self) -> dict[str, float]:
        """The share of the run's time that went into steps, and seconds in total and by part.

        Steps that were repeated count once; the time of the first try is lost.
        """
        self._settle()
        total = sum(self._seconds.values())
        parts = {f"seconds_{name}": seconds for name, seconds in self._seconds.items()}
        return {"goodput": self._seconds["step"] / max(total, 1e-9), "seconds": total, **parts}

    def note(self, step: int) -> None:
        """Writes what was spent until the checkpoint of `step`; only the first process writes."""
        entry = {"step": step, "time": self._now(), **self.numbers()}
        self._entries = [*(e for e in self._entries if e["step"] < step), entry]
        if jax.process_index() == 0:
            write_json(self._file, self._entries)

    def report(self) -> str:
        """One line for the end of the run."""
        numbers = self.numbers()
        total = max(numbers["seconds"], 1e-9)
        shares = {label: numbers[f"seconds_{name}"] / total for name, label in PARTS.items()}
        parts = ", ".join(f"{label} {x:.1%}" for label, x in shares.items() if x >= 0.0005)
        return f"of {_duration(total)}: {parts}"

    def _settle(self) -> None:
        now = self._now()
        self._seconds[self._rest] += now - self._noted
        self._noted = now


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if hours < 2 else f"{hours:.1f} h"
