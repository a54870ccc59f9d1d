"""Tables and notes of the data card as HTML; every text is escaped here."""

from collections.abc import Iterable, Sequence
import html


class Number(str):
    """A number as readers see it, aligned to the right of its cell."""


class Text(str):
    """A longer text, in a wide cell."""


def percent(share: float | None, digits: int = 1) -> Number:
    """A share of 1 as a percentage."""
    return Number("-" if share is None else f"{share:.{digits}%}")


def decimal(value: float | None, digits: int = 2) -> Number:
    """A number with a fixed number of digits."""
    return Number("-" if value is None else f"{value:,.{digits}f}")


def table(heads: Sequence[str], rows: Iterable[Sequence], caption: str = "") -> str:
    """Rows of whole numbers, `Number`s and texts; the first cell of a row is its head."""
    rows = list(rows)
    right = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(heads))]
    head = "".join(
        f'<th scope="col"{_class("n" if at_right else "")}>{html.escape(name)}</th>'
        for name, at_right in zip(heads, right)
    )
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows)
    text = note(caption) if caption else ""  # wider than the table
    label = html.escape(caption or ", ".join(heads))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{text}<table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def note(text: str) -> str:
    """A line of explanation."""
    return f'<p class="note">{html.escape(text)}</p>'


def details(summary: str, content: str) -> str:
    """HTML that is shown on demand."""
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"


def _row(row: Sequence) -> str:
    first, *others = row
    kind = "n" if _is_number(first) else ""
    cells = [f'<th scope="row"{_class(kind)}>{_show(first)}</th>']
    for value in others:
        kind = "n" if _is_number(value) else "text" if isinstance(value, Text) else ""
        cells.append(f"<td{_class(kind)}>{_show(value)}</td>")
    return "".join(cells)


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | Number)


def _show(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    text = html.escape(str(value))
    return f'<span dir="auto">{text}</span>' if isinstance(value, Text) else text
