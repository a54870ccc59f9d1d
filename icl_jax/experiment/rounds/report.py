"""The results of the rounds of an experiment: one table, one figure, and the numbers."""

import json

from etils import epath

from icl_jax.evaluation.compare.compare import compare
from icl_jax.evaluation.compare.table import show_p
from icl_jax.evaluation.metric import show_metric
from icl_jax.experiment.report.numbers import (
    Headline,
    headlines,
    main_metric,
    make_numbers,
    show_interval95,
    show_value,
)
from icl_jax.experiment.rounds.config import UNCHANGED, round_folder
from icl_jax.experiment.rounds.figure import draw_rounds
from icl_jax.files.remote import read_text
from icl_jax.files.step_folder import beside, write_json

_MISSING = "-"


def report_rounds(workdir: epath.Path, count: int) -> None:
    """Prints the table of the first `count` rounds; writes WORKDIR/rounds.json, .md and .png."""
    rounds = [_read(workdir, number) for number in range(1, count + 1)]
    between = _compare_rounds(rounds, workdir) if count > 1 else None
    text = make_table(rounds, between)
    path = workdir / "rounds"
    write_json(path.with_suffix(".json"), make_summary(rounds, between))
    with beside(path.with_suffix(".png")) as partial:
        draw_rounds(rounds, partial)
    with beside(path.with_suffix(".md")) as partial:
        partial.write_text(f"# Rounds\n\n{text}\n\n{_note(rounds)}\n\n![Rounds](rounds.png)\n")
    print(f"\n{text}\n\n{_note(rounds)}\n\nwritten: {path}.md, .json, .png", flush=True)


def show_rounds(workdir: epath.Path, count: int) -> None:
    """Prints what `report_rounds` found, which is made again only if it is missing."""
    path = workdir / "rounds"
    summary = path.with_suffix(".json")
    if not summary.exists() or len(json.loads(read_text(summary))["rounds"]) != count:
        report_rounds(workdir, count)
        return
    rounds = [_read(workdir, number) for number in range(1, count + 1)]
    between = json.loads(read_text(path / "comparison" / "comparison.json"))
    print(f"\n{make_table(rounds, between)}\n\n{_note(rounds)}\n\nin: {path}.md, .json, .png")


def make_table(rounds: list[dict], between: dict | None) -> str:
    """A column for each round: its arms, then its neighbours."""
    comparisons = [found["comparison"] for found in rounds]
    rows = []
    for headline in headlines(comparisons[0]):
        for metric in headline.metrics:
            arms = dict.fromkeys(arm for compared in comparisons for arm in compared["arms"])
            for arm in arms:
                cells = [compared["arms"].get(arm, {}) for compared in comparisons]
                cells = [held[headline.task][metric] if held else None for held in cells]
                rows.append(
                    [f"{show_metric(metric)}: {arm}", *(_show(headline, cell) for cell in cells)]
                )
        metric, reference = main_metric(comparisons[0], headline), comparisons[0]["reference"]
        if between:
            cells = [between["arms"][name][headline.task][metric] for name in between["arms"]]
            label = f"p of {reference} against round 1"
            rows.append([f"{show_metric(metric)}: {label}", *(_show_p(cell) for cell in cells)])
            cells = [c["arms"].get(UNCHANGED, {}).get(headline.task, {}) for c in comparisons]
            label = f"p of {reference} against {UNCHANGED}"
            rows.append(
                [f"{show_metric(metric)}: {label}", *(_show_p(c.get(metric)) for c in cells)]
            )
    rows += _neighbour_rows(rounds)
    rows.insert(0, ["", *(f"round {found['round']}" for found in rounds)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rules = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(f"| {_pad(row, widths)} |" for row in (rows[0], rules, *rows[1:]))


def make_summary(rounds: list[dict], between: dict | None) -> dict:
    """The same for programs: the neighbours of each round, and arm -> numbers."""
    names = ("round", "workdir", "encoder", "min_similarity", "queries", "queries_with_neighbours",
            "mean_neighbours", "overlap")  # fmt: skip
    summary = [
        {name: found[name] for name in names} | {"arms": make_numbers(found["comparison"])}
        for found in rounds
    ]
    return {
        "reference": rounds[0]["comparison"]["reference"],
        "rounds": summary,
        "reference_against_round_1": between and make_numbers(between),
    }


def _read(workdir: epath.Path, number: int) -> dict:
    """The record of a complete round, with the comparison of its arms."""
    found = json.loads(read_text(round_folder(workdir, number) / "round.json"))
    file = epath.Path(found["workdir"]) / "comparison" / "comparison.json"
    return found | {"comparison": json.loads(read_text(file))}


def _compare_rounds(rounds: list[dict], workdir: epath.Path) -> dict:
    """The reference arms of all rounds, on the same items."""
    evaluations = {
        f"round {found['round']}": [
            epath.Path(f"{folder}.json")
            for folder in found["comparison"]["evaluations"][found["comparison"]["reference"]]
        ]
        for found in rounds
    }
    resamples = rounds[0]["comparison"]["resamples"]
    return compare(evaluations, "round 1", workdir / "rounds" / "comparison", resamples)


def _neighbour_rows(rounds: list[dict]) -> list[list[str]]:
    overlaps = [found["overlap"] or {} for found in rounds]
    return [
        ["neighbours above", *(f"{found['min_similarity']:g}" for found in rounds)],
        ["sentences without any", *(_share_without(found) for found in rounds)],
        ["neighbours of a sentence", *(f"{found['mean_neighbours']:.2f}" for found in rounds)],
        ["of the round before, kept", *(_show_share(o.get("kept")) for o in overlaps)],
        ["same nearest as before", *(_show_share(o.get("same_nearest")) for o in overlaps)],
    ]


def _share_without(found: dict) -> str:
    return _show_share(1 - found["queries_with_neighbours"] / max(1, found["queries"]))


def _note(rounds: list[dict]) -> str:
    seeds = len(next(iter(rounds[0]["comparison"]["evaluations"].values())))
    return (
        "In brackets: the 95% interval over items; p is two-sided, over the same items, and not "
        f"adjusted. {UNCHANGED}: trained as long as the reference and from the same model, with "
        "the examples of the previous round. All arms of a round continue from the reference of "
        f"the previous round{', seed 0 of ' + str(seeds) if seeds > 1 else ''}."
    )


def _show(headline: Headline, cell: dict | None) -> str:
    if not cell:
        return _MISSING
    return f"{show_value(headline, cell)} ({show_interval95(headline, cell)})"


def _show_p(cell: dict | None) -> str:
    return _MISSING if not cell or cell["p"] is None else show_p(cell["p"])


def _show_share(share: float | None) -> str:
    return _MISSING if share is None else f"{share:.1%}"


def _pad(row: list[str], widths: list[int]) -> str:
    name, *values = row
    right = [text.rjust(width) for text, width in zip(values, widths[1:], strict=True)]
    return " | ".join([name.ljust(widths[0]), *right])
