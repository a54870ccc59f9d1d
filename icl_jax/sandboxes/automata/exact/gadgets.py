"""What a feed-forward layer is written with: linear forms, tables of one value, and ANDs.

Liu 2024, lemmas 10 to 12. A hidden unit is a form too, so gadgets nest; units that compute the same
are kept once.
"""

from collections.abc import Iterable, Sequence
import math
from typing import NamedTuple

import numpy as np

Unit = tuple[int, int]  # (hidden layer, from 1; its place there)


class Form:
    """A linear form: a constant, and coefficients of channels (names) and of hidden units."""

    __slots__ = ("constant", "terms")

    def __init__(self, terms: dict[str | Unit, float] | None = None, constant: float = 0.0):
        self.terms, self.constant = terms or {}, float(constant)

    def __add__(self, other: "Form | float") -> "Form":
        return combine([(1.0, self), (1.0, other)])

    def __sub__(self, other: "Form | float") -> "Form":
        return combine([(1.0, self), (-1.0, other)])

    def __mul__(self, factor: float) -> "Form":
        return combine([(factor, self)])

    __radd__, __rmul__ = __add__, __mul__

    @property
    def level(self) -> int:
        """The hidden layer it reads: 0 is the residual stream."""
        return max((key[0] for key in self.terms if isinstance(key, tuple)), default=0)


def combine(parts: Iterable[tuple[float, Form | float]]) -> Form:
    """The sum of factors times forms."""
    terms: dict[str | Unit, float] = {}
    constant = 0.0
    for factor, form in parts:
        if not isinstance(form, Form):
            constant += factor * form
            continue
        constant += factor * form.constant
        for key, value in form.terms.items():
            terms[key] = terms.get(key, 0.0) + factor * value
    return Form({key: value for key, value in terms.items() if value}, constant)


class Margin(NamedTuple):
    """A place where rounding could go wrong: `magnitude` x epsilon must be at most `allowed`."""

    what: str
    magnitude: float
    allowed: float


class FeedForward:
    """One feed-forward layer: hidden units by level, and what is added to each channel."""

    def __init__(self):
        self.levels: list[list[Form]] = []
        self.outputs: dict[str, Form] = {}
        self.margins: list[Margin] = []
        self._known: dict[tuple, Form] = {}

    def relu(self, form: Form) -> Form:
        """A hidden unit. Channels and units of earlier levels that it reads are carried along."""
        level = form.level + 1
        form = self.lift(form, level - 1)
        known = (level, form.constant, frozenset(form.terms.items()))
        if known not in self._known:
            while len(self.levels) < level:
                self.levels.append([])
            self.levels[level - 1].append(form)
            self._known[known] = Form({(level, len(self.levels[level - 1]) - 1): 1.0})
        return self._known[known]

    def lift(self, form: Form, level: int) -> Form:
        """The same form of units of one level; what is carried there must not be negative."""
        while any(_level(key) < level for key in form.terms):
            parts = [(value, Form({key: 1.0})) for key, value in form.terms.items()]
            carried = [(v, self.relu(x) if x.level < level else x) for v, x in parts]
            form = combine([*carried, (1.0, form.constant)])
        return form

    def add(self, channel: Form, form: Form) -> None:
        """Adds a form to a channel."""
        (name,) = channel.terms
        self.outputs[name] = self.outputs.get(name, Form()) + form

    def overwrite(self, channel: Form, form: Form | float) -> None:
        """Puts a form in place of what a channel holds, which must not be negative."""
        self.add(channel, Form() + form - self.relu(channel))

    def interpolate(
        self, x: Form, table: Sequence[float], *, low: int = 0, tolerance: float = 0.125
    ) -> Form:
        """A table of the whole numbers from `low` on: one hinge each, exact at each (lemma 10).

        `x` may be off by rounding only; the result may be off by `tolerance`.
        """
        table = np.asarray(table, float)
        bends = np.diff(table, n=2, prepend=table[0])  # how the slope changes at low, low + 1, ...
        kinks = [(float(bend), low + place) for place, bend in enumerate(bends) if bend]
        high = low + len(table) - 1
        largest = max(abs(low), abs(high))
        terms = sum(abs(bend) * (high - place) for bend, place in kinks)
        slope = np.abs(np.diff(table)).max(initial=0.0)
        self.margins.append(Margin("a table", terms + 4 * slope * largest, tolerance))
        return combine((bend, self.relu(x - place)) for bend, place in kinks) + table[0]

    def staircase(self, x: Form, table: Sequence[float], *, low: int = 0) -> Form:
        """A table of whole numbers, two hinges a step: flat within 1/4 of each (lemma 10)."""
        steps = [
            (float(rise), low + 1 + n)
            for n, rise in enumerate(np.diff(np.asarray(table, float)))
            if rise
        ]
        return combine((rise, self.step(x, place)) for rise, place in steps) + float(table[0])

    def step(self, x: Form, place: float) -> Form:
        """0 up to `place` - 3/4, 1 from `place` - 1/4 on (lemma 12)."""
        return self.relu(2 * x + (1.5 - 2 * place)) - self.relu(2 * x + (0.5 - 2 * place))

    def both(self, conditions: Sequence[Form]) -> Form:
        """1 if all of some conditions, each 0 or 1, are 1 (lemma 11; the bias is 1 - n, not -n)."""
        if len(conditions) == 1:
            return conditions[0]
        return self.relu(combine((1.0, condition) for condition in conditions)
                         - (len(conditions) - 1.0))  # fmt: skip


def is_value(value: int, size: int) -> np.ndarray:
    """The table that is 1 at one of the numbers below `size`."""
    return (np.arange(size) == value).astype(float)


def turned(cosine: Form, sine: Form, angle: float) -> list[Form]:
    """The cosine and sine of a further angle."""
    c, s = math.cos(angle), math.sin(angle)
    return [c * cosine - s * sine, c * sine + s * cosine]


def _level(key: str | Unit) -> int:
    return key[0] if isinstance(key, tuple) else 0
