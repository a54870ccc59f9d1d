"""Histograms of the data card, as SVG that follows the page's colours."""

from collections.abc import Sequence
import html
import itertools

_WIDTH, _HEIGHT = 420, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 10, 40  # around the bars
_MOST_TICKS = 10
_FEWEST_BARS = 6


def histogram(edges: Sequence[float], counts: Sequence[int], unit: str, label: str) -> str:
    """Bars between edges; empty ranges at both ends are left out."""
    edges, counts = _trim(edges, counts)
    names = [f"{_number(a)} to {_number(b)}" for a, b in itertools.pairwise(edges)]
    width, every = edges[1] - edges[0], _every(len(edges))
    marks = [(i, _number(edge)) for i, edge in enumerate(edges) if round(edge / width) % every == 0]
    return _draw(counts, names, marks, unit, label)


def bars(values: Sequence[int], counts: Sequence[int], unit: str, label: str) -> str:
    """One bar for each value; values are consecutive whole numbers."""
    more = max(0, _FEWEST_BARS - len(values))  # a single bar as wide as the chart says nothing
    values = [*values, *range(values[-1] + 1, values[-1] + 1 + more)]
    counts = [*counts, *[0] * more]
    marks = [(i + 0.5, f"{value:,}") for i, value in enumerate(values)]
    names = [f"{value:,}" for value in values]
    return _draw(counts, names, marks[:: _every(len(marks))], unit, label)


def figure(name: str, chart: str, caption: str) -> str:
    """A chart with its name and a line about it."""
    return (
        f'<figure><div class="name">{html.escape(name)}</div>{chart}'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def _draw(
    counts: Sequence[int],
    names: Sequence[str],
    marks: Sequence[tuple[float, str]],
    unit: str,
    label: str,
) -> str:
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    floor, step = _TOP + height, width / max(1, len(counts))
    ticks = _ticks(max(counts, default=0))
    parts = []
    for value in ticks:
        y = floor - height * value / ticks[-1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + width}" y1="{y:.1f}" '
                     f'y2="{y:.1f}"/><text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
                     f"{value:,}</text>")  # fmt: skip
    for i, (name, count) in enumerate(zip(names, counts)):
        size = height * count / ticks[-1]
        title = html.escape(f"{name}: {count:,}")
        parts.append(f'<rect class="bar" x="{_LEFT + i * step + 0.5:.1f}" y="{floor - size:.1f}" '
                     f'width="{max(0.5, step - 1):.1f}" height="{size:.1f}">'
                     f"<title>{title}</title></rect>")  # fmt: skip
    parts.append(
        f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + width}" y1="{floor}" y2="{floor}"/>'
    )
    for place, name in marks:
        x = _LEFT + place * step
        parts.append(f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{name}</text>')
    middle = _LEFT + width / 2
    parts.append(f'<text x="{middle:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">'
                 f"{html.escape(unit)}</text>")  # fmt: skip
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _trim(edges: Sequence[float], counts: Sequence[int]) -> tuple[list[float], list[int]]:
    """Keeps only one empty bin at either end."""
    filled = [i for i, count in enumerate(counts) if count] or [0]
    first, last = max(0, filled[0] - 1), min(len(counts), filled[-1] + 2)
    return list(edges[first : last + 1]), list(counts[first:last])


def _ticks(largest: int) -> list[int]:
    """From 0 up to at least `largest`, in round steps."""
    step = 1
    while 4 * step < largest:  # 1, 2, 5, 10, 20, 50, ...
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return [step * i for i in range(max(1, -(-largest // step)) + 1)]


def _every(count: int) -> int:
    """1, 2, 4, ...: every how many ticks one is drawn, so that there are not too many."""
    return 1 << max(0, -(-count // _MOST_TICKS) - 1).bit_length()


def _number(value: float) -> str:
    return f"{value:,.10g}"
