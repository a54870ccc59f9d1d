"""What a step costs: its wall time, and the most memory that this process and its workers took."""

import contextlib
import os
import resource
import socket
import sys
import time
import weakref

_open: "weakref.WeakSet[StepCost]" = weakref.WeakSet()  # of steps that are at work


class StepCost:
    """Counts from its making on."""

    def __init__(self):
        _look()  # what was taken until now belongs to the steps around this one
        self._started, self._inside = time.perf_counter(), 0.0
        self._own = 0
        self._workers: dict[str, int] = {}
        forget_peak()
        _open.add(self)

    def end(self, resumed: bool) -> dict:
        """The content of `cost.json`; steps that ended inside this one are not in its seconds."""
        _look()
        _open.discard(self)
        seconds = time.perf_counter() - self._started - self._inside
        for around in _open:
            around._inside += seconds
        processes = [self._own, *self._workers.values()]
        return {
            "seconds": round(seconds, 2),
            "peak_memory_gigabytes": round(sum(processes) / 1e9, 3),
            "largest_process_gigabytes": round(max(processes) / 1e9, 3),
            "resumed": resumed,  # what was made before is not counted
        }


def forget_peak() -> None:
    """On Linux, the peak of this process starts again at what is taken now."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_of_this_process() -> tuple[str, int]:
    """(its name, bytes): what a worker reports with every result."""
    name = f"{socket.gethostname()} {os.getpid()}"
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return name, 1024 * int(line.split()[1])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return name, most if sys.platform == "darwin" else 1024 * most


def note_worker(name: str, peak: int) -> None:
    """Counts a worker's memory for the steps that are at work."""
    if name != peak_of_this_process()[0]:
        for step in _open:
            step._workers[name] = max(peak, step._workers.get(name, 0))


def _look() -> None:
    _, peak = peak_of_this_process()
    for step in _open:
        step._own = max(peak, step._own)
