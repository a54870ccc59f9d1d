"""What a sandbox writes of its experiments: claims against measurements, tables, figures, numbers.

Each experiment has NAME.json, NAME.md and NAME.png; `results.json` and `report.md` put together
those that exist, so that experiments may be run one by one.
"""

from collections.abc import Callable, Sequence
import json
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure
import numpy as np
from scipy import stats

from icl_jax.evaluation.bootstrap import draw, interval, mean_of
from icl_jax.evaluation.compare.table import show_p
from icl_jax.files.step_folder import beside, write_json

SURE = 0.05  # five seeds of five have an exact one-sided p of 1/32
RESAMPLES = 10_000
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


class Claim(NamedTuple):
    """Something that was published, and what came of it here."""

    claim: str
    published: str
    measured: str
    holds: bool | None  # None: these measurements cannot tell

    @property
    def verdict(self) -> str:
        """What the table says of it."""
        if self.holds is None:
            return "cannot tell"
        return "holds" if self.holds else "**fails**"


class Finding(NamedTuple):
    """All that is written of one experiment."""

    name: str
    title: str
    text: str  # Markdown: what was done, tables
    claims: Sequence[Claim]
    results: dict  # plain JSON values
    draw: Callable[[Figure], None] | None = None
    size: tuple[float, float] = (9.0, 3.2)  # inches, of the figure


def write_finding(found: Finding, to: Path) -> None:
    """Writes one experiment, and the pages that put all together."""
    if found.draw:
        with matplotlib.rc_context(STYLE), beside(to / f"{found.name}.png") as partial:
            figure = Figure(figsize=found.size, dpi=150, layout="constrained")
            found.draw(figure)
            figure.savefig(partial, format="png", metadata={"Software": None})
    claims = [
        claim._asdict() | {"holds": claim.holds if claim.holds is None else bool(claim.holds)}
        for claim in found.claims
    ]
    write_json(to / f"{found.name}.json", found.results | {"claims": claims})
    with beside(to / f"{found.name}.md") as partial:
        partial.write_text(make_section(found))


def write_together(title: str, names: Sequence[str], to: Path) -> str:
    """Writes `results.json` and `report.md` from the experiments that exist; the report."""
    there = [name for name in names if (to / f"{name}.md").exists()]
    write_json(
        to / "results.json", {name: json.loads((to / f"{name}.json").read_text()) for name in there}
    )
    pages = [(to / f"{name}.md").read_text().strip() for name in there]
    report = "\n\n".join([f"# {title}", *pages]) + "\n"
    with beside(to / "report.md") as partial:
        partial.write_text(report)
    return report


def make_section(found: Finding) -> str:
    """The Markdown of one experiment; a figure is beside it."""
    parts = [f"## {found.name}: {found.title}", found.text.strip()]
    if found.claims:
        parts.append(make_claims(found.claims))
    if found.draw:
        parts.append(f"![{found.title}]({found.name}.png)")
    return "\n\n".join(parts) + "\n"


def make_claims(claims: Sequence[Claim]) -> str:
    """The table of claims."""
    header = ["claim", "published", "measured", "holds?"]
    return make_table([header, *([c.claim, c.published, c.measured, c.verdict] for c in claims)])


def make_table(rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table whose first row is the header."""
    header, *rest = ([str(cell) for cell in row] for row in rows)
    lines = [header, ["---"] * len(header), *rest]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show_spread(values: Sequence[float]) -> str:
    """Median and range of a share over seeds, in percent."""
    low, middle, high = (f"{100 * value:.1f}" for value in np.percentile(values, (0, 50, 100)))
    return middle if low == high else f"{middle} ({low} to {high})"


def paired_p(more: Sequence[float], less: Sequence[float]) -> float:
    """The exact one-sided p that `more` is larger, seed by seed: all signs of the differences."""
    found = stats.permutation_test(
        (np.asarray(more), np.asarray(less)), lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples", alternative="greater", n_resamples=1 << 20, vectorized=True,
    )  # fmt: skip
    return float(found.pvalue)


def compare_seeds(more: Sequence[float], less: Sequence[float]) -> tuple[str, bool]:
    """`more` against `less` in words, and whether it is larger beyond doubt."""
    ahead = sum(a > b for a, b in zip(more, less, strict=True))
    p = paired_p(more, less)
    words = f"{show_spread(more)} against {show_spread(less)}; ahead in {ahead} of {len(more)}"
    return f"{words} seeds, p {show_p(p)}", p < SURE


def mean_with_interval(values: Sequence[float]) -> tuple[float, list[float]]:
    """The mean over seeds, and its 95% interval by resampling them."""
    drawn = draw(mean_of(values), len(values), RESAMPLES, 0)
    return float(np.mean(values)), interval(drawn)
