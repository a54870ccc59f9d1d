"""The results of sentence similarity as Markdown."""

from icl_jax.evaluation.tasks.sts.files import SUBSETS


def make_table(results: dict) -> str:
    """Correlations x 100 of each set and subset, and in words what they are of."""
    sets = {name: found for name, found in results.items() if _is_set(found)}
    lines = [
        f"Correlation x 100 of cosines with people's scores; vectors: {results['pooling']}.",
        "",
        "| set | pairs | Spearman, all | 95% interval | Spearman, mean | Spearman, wmean "
        "| Pearson, all | Pearson, mean | Pearson, wmean |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in sets.items():
        spearman, pearson = (
            [_number(found.get(group, {}).get(kind)) for group in ("all", "mean", "wmean")]
            for kind in ("spearman", "pearson")
        )
        interval = _interval(found["all"].get("spearman_interval95"))
        cells = [name, found["pairs"], spearman[0], interval, *spearman[1:], *pearson]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    if results["average"] is not None:
        cells = [_number(results["average"]), _interval(results["average_interval95"]), "", ""]
        pearson = [_number(results["average_pearson"]), "", ""]
        lines.append(f"| **average of the seven** |  | {' | '.join([*cells, *pearson])} |")
    lines += [
        "",
        "all: one correlation over the pooled pairs of the subsets; mean: of the subsets' "
        "correlations; wmean: the same weighted by pairs. Interval: percentiles of "
        f"{results['resamples']} resamples of the pairs.",
    ]
    lines += [f"- {note}" for note in _notes(results, sets)]
    if any(found.get("subsets") for found in sets.values()):
        lines += ["", "| set | subset | pairs | Spearman | Pearson |", "|---|---|---|---|---|"]
    for name, found in sets.items():
        for subset, scores in found.get("subsets", {}).items():
            cells = [name, subset, scores["pairs"]]
            cells += [_number(scores["spearman"]), _number(scores["pearson"])]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _notes(results: dict, sets: dict) -> list[str]:
    notes = []
    if results["missing"]:
        notes.append(f"Missing from the data: {', '.join(results['missing'])}.")
    if results["undefined"]:
        notes.append(
            f"No correlation, for all scores or all cosines are equal: "
            f"{', '.join(results['undefined'])}."
        )
    left_out = [name for name in SUBSETS if name not in sets]
    if left_out:
        notes.append(f"Not asked for: {', '.join(left_out)}.")
    if results["average"] is None:
        notes.append(
            f"The average of the seven is withheld: it would be over fewer than {len(SUBSETS)} "
            "whole sets."
        )
    unscored = sum(found["unscored"] for found in sets.values())
    if unscored:
        notes.append(f"Pairs that nobody scored, left out: {unscored:,}.")
    if results["cut"]:
        notes.append(f"Sentences too long for the model, cut on the right: {results['cut']:,}.")
    sources = dict.fromkeys(found["source"] for found in sets.values() if found["source"])
    notes.append(f"Read from {', '.join(sources)}.")
    return notes


def _is_set(value) -> bool:
    return isinstance(value, dict) and "all" in value


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _interval(ends: list[float] | None) -> str:
    return "-" if ends is None else f"{ends[0]:.2f} to {ends[1]:.2f}"
