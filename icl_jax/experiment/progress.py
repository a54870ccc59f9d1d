"""Which of several runs this is, and how long the rest of them may take."""

from collections.abc import Iterator, Sequence
import time

from icl_jax.experiment.branches import Branch

_SECONDS = 5.0  # a run that takes less was there already, and says nothing about the others


def one_by_one(branches: Sequence[Branch], doing: str) -> Iterator[Branch]:
    """Each in turn, with a line that tells its place, its name and about how long is left."""
    longest = 0.0
    for number, branch in enumerate(branches, 1):
        left = longest * (len(branches) - number + 1)
        told = f"; about {show_time(left)} left" if longest > _SECONDS else ""
        print(f"\n{doing} {number} of {len(branches)}: {branch.name}{told}", flush=True)
        begun = time.monotonic()
        yield branch
        longest = max(longest, time.monotonic() - begun)


def show_time(seconds: float) -> str:
    """Seconds below two minutes, minutes below two hours, then hours."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
