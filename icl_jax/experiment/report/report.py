"""The report of an experiment with branches: main numbers, a table to read, a figure to show."""

from etils import epath

from icl_jax.evaluation.bootstrap import FEW_ITEMS
from icl_jax.evaluation.compare.table import show_p, show_updates, warn_of_updates
from icl_jax.evaluation.metric import SHARE, show_metric
from icl_jax.experiment.report.figure import draw_report
from icl_jax.experiment.report.numbers import (
    Headline,
    headlines,
    main_metric,
    make_numbers,
    show_interval95,
    show_right,
    show_value,
)
from icl_jax.experiment.report.sentences import say_what_was_seen, say_where_to_look
from icl_jax.files.step_folder import beside, write_json


def write_report(comparison: dict, workdir: epath.Path) -> None:
    """Prints what was found, and writes WORKDIR/comparison.json, .md, .png and .svg.

    `comparison` is what `compare` returned; WORKDIR/comparison has all of its metrics and tests.
    """
    text = make_text(comparison, workdir)
    for kind in ("png", "svg"):
        with beside(workdir / f"comparison.{kind}") as partial:
            draw_report(comparison, partial, kind)
    with beside(workdir / "comparison.md") as partial:
        partial.write_text(
            f"# Results by arm\n\n{text}\n\n![The arms compared](comparison.png)\n\n"
            "All metrics and tests: [comparison/comparison.md](comparison/comparison.md)\n"
        )
    write_json(workdir / "comparison.json", make_numbers(comparison))
    print(f"\n{text}\n\nwritten: {workdir}/comparison.md, .json, .png, .svg", flush=True)


def make_text(comparison: dict, workdir: epath.Path) -> str:
    """What was found, then where to look next."""
    where = say_where_to_look(comparison, workdir, headlines(comparison)[0])
    return f"{make_findings(comparison)}\n\n{where}"


def make_findings(comparison: dict, heading: str = "##") -> str:
    """A table for each task and what it shows; before them a warning if arms are not comparable."""
    found, parts = headlines(comparison), list(filter(None, [warn_of_updates(comparison)]))
    for headline in found:
        parts += [f"{heading} {headline.task}"] if len(found) > 1 else []
        parts += [make_table(comparison, headline), _note(comparison, headline)]
        parts.append(say_what_was_seen(comparison, headline))
    return "\n\n".join(parts)


def make_table(comparison: dict, headline: Headline) -> str:
    """A line for each arm; interval and p are those of the main metric."""
    main = main_metric(comparison, headline)
    counted = headline.kind.counted
    trained = bool(comparison.get("updates"))
    columns = ["arm", *["updates"] * trained, *map(show_metric, headline.metrics)]
    columns += ["correct"] * bool(counted)
    rows = [[*columns, "95% interval", "p against reference"]]
    for arm, tasks in comparison["arms"].items():
        cells = tasks[headline.task]
        row = [arm, *[show_updates(comparison, arm)] * trained]
        row += [show_value(headline, cells[metric]) for metric in headline.metrics]
        if counted:
            cell = cells[counted]
            row.append(f"{show_right(cell)} of {cell['items']:,}")
        p = cells[main]["p"]
        row += [show_interval95(headline, cells[main]), "reference" if p is None else show_p(p)]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rules = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(f"| {_pad(row, widths)} |" for row in (rows[0], rules, *rows[1:]))


def _pad(row: list[str], widths: list[int]) -> str:
    """Names to the left, numbers to the right."""
    name, *numbers = row
    right = [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)]
    return " | ".join([name.ljust(widths[0]), *right])


def _note(comparison: dict, headline: Headline) -> str:
    """What the columns are, and what they cover."""
    metric = main_metric(comparison, headline)
    cells = {arm: tasks[headline.task][metric] for arm, tasks in comparison["arms"].items()}
    cell = cells[comparison["reference"]]
    unit = "" if cell["unit"] == SHARE.name else f" ({cell['unit']})"
    tests = sorted({cell["test"] for cell in cells.values()} - {None})
    note = (
        f"Interval and p ({' or '.join(tests)}, not adjusted): {show_metric(metric)}{unit} on the "
        f"same {cell['items']:,} {headline.kind.unit}, {cell['better']} is better. {_seeds(cells)}"
    )
    few = f" With only {cell['items']} {headline.kind.unit}, intervals are too narrow."
    return note + few * (cell["items"] < FEW_ITEMS)


def _seeds(cells: dict[str, dict]) -> str:
    counts = {arm: len(cell["seeds"]) for arm, cell in cells.items()}
    most = max(counts.values())
    if most == 1:
        return "1 seed per arm: results may differ with another seed."
    fewer = "".join(f"; {arm}: {n}" for arm, n in counts.items() if n < most)
    return f"Means of {most} seeds{fewer}."
