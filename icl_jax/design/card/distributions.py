"""The charts of the data card: how similarities and lengths are distributed in each arm."""

import itertools
import json

from icl_jax.design.card.charts import bars, figure, histogram
from icl_jax.design.strategies.strategy import open_strategy

_MOST_BARS = 40  # sentences of a group; larger groups are one bar


def distributions(card: dict) -> str:
    """Similarity, sentences and tokens of groups; arms of equal charts share one."""
    parts = []
    kinds = (
        ("Similarity, in the records", "similarity_counts", _similarities),
        ("Sentences of a group", "sentences_per_group", _sizes),
        ("Tokens of a group", "tokens_per_group_counts", _lengths),
    )
    for title, field, draw in kinds:
        alike: dict[str, list[str]] = {}
        for arm, found in card["arms"].items():
            if any(found[field]):
                alike.setdefault(json.dumps(found[field]), []).append(arm)
        charts = [draw(", ".join(names), card["arms"][names[0]]) for names in alike.values()]
        if charts:
            parts.append(f'<h3>{title}</h3><div class="charts">{"".join(charts)}</div>')
    return "".join(parts)


def _similarities(names: str, found: dict) -> str:
    counts = found["similarity_counts"]
    unit = open_strategy(found["strategy"]).score
    chart = histogram(found["similarity_edges"], counts, unit, f"Similarity, {names}")
    return figure(names, chart, f"{sum(counts):,} sentences, the first of each group left out.")


def _sizes(names: str, found: dict) -> str:
    counts = found["sentences_per_group"]
    if len(counts) > _MOST_BARS:
        edges = [i * -(-len(counts) // _MOST_BARS) for i in range(_MOST_BARS + 1)]
        merged = [sum(counts[a:b]) for a, b in itertools.pairwise(edges)]
        chart = histogram(edges, merged, "sentences", f"Sentences of a group, {names}")
    else:
        first = next(i for i, count in enumerate(counts) if count)
        values = range(first, len(counts))
        chart = bars(values, counts[first:], "sentences", f"Sentences of a group, {names}")
    mean = found["sentences"] / max(1, found["groups"])
    return figure(names, chart, f"{found['groups']:,} groups of {mean:.2f} sentences on average.")


def _lengths(names: str, found: dict) -> str:
    edges, counts = found["tokens_per_group_edges"], found["tokens_per_group_counts"]
    chart = histogram(edges, counts, "tokens, special ones included", f"Tokens of a group, {names}")
    mean = found["tokens"] / max(1, found["groups"])
    return figure(names, chart, f"{mean:,.1f} on average; the limit is {edges[-1]:g}.")
