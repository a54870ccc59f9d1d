"""What a comparison shows, in sentences that are computed from its numbers."""

from etils import epath

from icl_jax.cli import suggest
from icl_jax.evaluation.compare.cells import LEVEL
from icl_jax.evaluation.compare.table import show_p
from icl_jax.experiment.report.numbers import (
    Headline,
    main_metric,
    show_right,
    show_value,
)
from icl_jax.files.step_folder import absolute

_EVERY = "every other arm"


def say_what_was_seen(comparison: dict, headline: Headline) -> str:
    """One sentence: the values of the arms that matter, and which differences are significant."""
    reference, metric = comparison["reference"], main_metric(comparison, headline)
    cells = {arm: tasks[headline.task][metric] for arm, tasks in comparison["arms"].items()}
    found: dict[str, list[str]] = {"behind": [], "ahead": [], "on these seeds": [], "unclear": []}
    for arm, cell in cells.items():
        if arm != reference:
            found[_outcome(cell)].append(arm)
    parts = [_values(cells, reference, headline, metric)]
    for outcome, arms in found.items():
        if arms:
            every = len(arms) == len(cells) - 1 > 1
            parts.append(_judge(outcome, _EVERY if every else _join(arms),
                                [cells[arm] for arm in arms], headline.kind.unit))  # fmt: skip
    return f"{'; '.join(parts)}."


def say_where_to_look(comparison: dict, workdir: epath.Path, headline: Headline) -> str:
    """One sentence: an example, the design as a whole, and what the reference answered."""
    reference, design, places = comparison["reference"], workdir / "design", []
    arm = reference.partition("-rate")[0]
    if (design / "arms" / arm / "results.json").exists():
        command = suggest("design.explain", workdir=workdir, arm=arm, index=1)
        places.append(f"at an example of {arm} (`{command}`)")
    if (design / "card.html").exists():
        places.append(f"at all arms side by side in {design / 'card.html'}")
    outputs = epath.Path(comparison["evaluations"][reference][0]) / headline.task / "outputs.jsonl"
    if outputs.is_relative_to(absolute(workdir)):  # as the user named the workdir
        outputs = workdir / outputs.relative_to(absolute(workdir))
    places.append(f"at {headline.kind.outputs} of {reference} in {outputs}")
    return f"Look next {_join(places)}."


def _values(cells: dict[str, dict], reference: str, headline: Headline, metric: str) -> str:
    """Those of the reference, of regular training, and of the best of the others."""
    own, kind = cells[reference], headline.kind
    is_counted = metric == kind.counted

    def show(arm: str) -> str:
        return show_right(cells[arm]) if is_counted else show_value(headline, cells[arm])

    values = kind.sentence(headline.task, metric, reference, show(reference), own["items"])
    if len(own["seeds"]) > 1:
        values += f" (mean of {len(own['seeds'])} seeds)"
    others = [arm for arm in cells if arm != reference]
    baseline = "regular" if "regular" in others else others[0]
    sign = 1 if own["better"] == "higher" else -1
    best = max([baseline, *others], key=lambda arm: sign * cells[arm]["value"])
    values += f", {baseline} {show(baseline)}"
    if best != baseline:
        values += f" and {best}, the best of the others, {show(best)}"
    return values


def _outcome(cell: dict) -> str:
    """How an arm compares with the reference."""
    if cell["real"]:
        return "ahead" if (cell["difference"] > 0) == (cell["better"] == "higher") else "behind"
    return "on these seeds" if cell["p_holm"] < LEVEL else "unclear"


def _judge(outcome: str, arms: str, cells: list[dict], items: str) -> str:
    """What can be said about the differences of these arms to the reference."""
    ps = [cell["p_holm"] for cell in cells]
    over_seeds = [cell["p_seeds"] for cell in cells if cell["p_seeds"] is not None]
    largest, smallest = ("largest ", "smallest ") if len(cells) > 1 else ("", "")
    if outcome == "unclear":
        p = f"({smallest}adjusted p {show_p(min(ps))})"
        if arms == _EVERY:
            return f"no difference to any other arm is significant {p}"
        return f"the difference to {arms} is not significant {p}"
    if outcome == "on these seeds":
        why = f"{smallest}p {show_p(min(over_seeds))}" if over_seeds else "an arm's seeds are equal"
        return (
            f"the difference to {arms} is significant on these {items}, but not over seeds ({why})"
        )
    tested, p = f"on these {items}", f"{largest}adjusted p {show_p(max(ps))}"
    if len(over_seeds) == len(cells):
        tested, p = (
            f"{tested} and over seeds",
            f"{p}; over seeds {largest}p {show_p(max(over_seeds))}",
        )
    if outcome == "behind":
        return f"its lead over {arms} is significant {tested} ({p})"
    verb = "are" if " and " in arms else "is"
    return f"{arms} {verb} significantly better {tested} ({p})"


def _join(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
