"""Which source each row of a batch comes from, and how far along that source it is.

Pure arithmetic: any step can be computed directly.
"""

from collections.abc import Sequence
from fractions import Fraction
import math

import numpy as np

from icl_jax.config import ConfigError

Phases = Sequence[tuple[int, Sequence[float]]]


class Mixture:
    """Rows of each source in every batch, from `DataConfig.phases`; source after source.

    `counts` (phases, sources) holds numbers of rows.
    """

    def __init__(self, phases: Phases, num_sources: int, batch_size: int):
        phases = phases or ((0, (1,) * num_sources),)
        self._firsts = np.array([first for first, _ in phases], np.int64)
        counts, problems = [], []
        for first, weights in phases:
            rows = rows_of_sources(weights, batch_size)
            counts.append(rows)
            problems += [
                f"from step {first} on, sources[{i}] with weight {weights[i]} of {sum(weights)} "
                f"gets 0 of the {batch_size} rows of a batch; raise its weight or batch_size, "
                "or set the weight to 0"
                for i in range(num_sources)
                if weights[i] > 0 and rows[i] == 0
            ]
        if problems:
            raise ConfigError("; ".join(problems))
        self.counts = np.array(counts, np.int64)
        used = np.diff(self._firsts)[:, None] * self.counts[:-1]
        self._used_before = np.concatenate([0 * self.counts[:1], np.cumsum(used, axis=0)])

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """For each row of batch `step`: its source, and its number in the stream of that source."""
        phase = int(np.searchsorted(self._firsts, step, side="right")) - 1
        counts = self.counts[phase]
        start = self._used_before[phase] + (step - self._firsts[phase]) * counts
        source = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
        return source, start[source] + within

    def rows_together(self, source: int) -> int:
        """The largest number of rows that divides this source's share of every batch."""
        return math.gcd(*self.counts[:, source].tolist()) or 1


def rows_of_sources(weights: Sequence[float], batch_size: int) -> list[int]:
    """Shares out `batch_size` rows by weight: rounded down, the rest by largest remainder."""
    total = sum(Fraction(weight) for weight in weights)
    shares = [Fraction(weight) * batch_size / total for weight in weights]
    rows = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(rows)), key=lambda i: rows[i] - shares[i])  # ties: the first
    for i in by_remainder[: batch_size - sum(rows)]:
        rows[i] += 1
    return rows
