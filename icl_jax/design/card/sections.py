"""The tables of the data card: inputs, results and costs.

Each section takes the content of `card.json` and gives HTML.
"""

from collections.abc import Mapping
import html
import json

from icl_jax.design.card.charts import figure, histogram
from icl_jax.design.card.tables import (
    Number,
    Text,
    decimal,
    details,
    note,
    percent,
    table,
)
from icl_jax.design.strategies.strategy import Count, open_strategy

_DROPPED = "Lines and sentences that were left out, by rule"
_CANDIDATES = {
    "same_words": "the query itself, or a sentence of the same words",
    "same_document": "of the query's own document",
    "below_threshold": "not above the threshold",
    "near_duplicate_of_query": "nearly the same words as the query",
    "near_duplicate_of_neighbour": "nearly the same words as a nearer neighbour",
}
_INSIDE_SEARCH = ("neighbours_signatures", "neighbours_pool", "neighbours_index")
_RECALL = {
    "candidates": "of the nearest sentences, before any rule",
    "neighbours": "of the neighbours, if there were no threshold",
    "above_threshold": "of the neighbours above the threshold",
}


def arms(card: dict) -> str:
    """One line for each arm, and which of them make a fair comparison."""
    classes = {arm: i for i, members in enumerate(card["same_sentences"]) for arm in members}
    rows = [
        (arm, found["strategy"], found["layout"].replace("_", " "), found["groups"],
         found.get("groups_left_out", 0), found["sentences"], found["tokens"], found["records"],
         found["rows"], percent(found["filled"]), chr(ord("A") + classes[arm]))
        for arm, found in card["arms"].items()
    ]  # fmt: skip
    heads = ("arm", "strategy", "layout", "groups", "left out", "sentences", "tokens", "records",
             "rows", "filled", "same")  # fmt: skip
    return (
        table(heads, rows)
        + note(
            "A group is the sentences that belong together; a record is what training reads; a row "
            "is what the model sees at once. In context, a group is one example, and groups that "
            "are short share a row without seeing each other, unless design.examples.rows is "
            "one_query. In batch, each sentence is an example of its own (rows: as training fills "
            "them), and a group stays in one batch. "
            "Left out: groups that the gain filter did not keep. Filled: the share of a row that "
            "is real tokens, not padding."
        )
        + note(
            "Same: arms with the same letter hold exactly the same sentences, each as often, so "
            "that a comparison between them differs in arrangement alone."
        )
    )


def corpus(card: dict) -> str:
    """From documents to sentences, and what was left out."""
    tables = [("corpus", card["corpus"])] + [("queries", card["queries"])] * bool(card["queries"])
    rows = [
        (name, found["documents"], sum(found["bad_documents"].values()), found["sentences"],
         found["long_split"], found["tokens"], decimal(found["tokens"] / found["sentences"], 1))
        for name, found in tables
    ]  # fmt: skip
    heads = ("", "documents", "skipped", "sentences", "long, split", "tokens", "tokens / sentence")
    parts = [table(heads, rows)]
    parts.append(note("Long sentences are split at design.corpus.max_sentence_tokens."))
    for name, found in tables:
        dropped = table(("rule", "dropped"), found["dropped"].items(), f"{_DROPPED} ({name})")
        reasons = table(
            ("reason", "documents"), found["bad_documents"].items(), f"Documents skipped ({name})"
        )
        shown = [dropped] * bool(found["dropped"]) + [reasons] * bool(found["bad_documents"])
        parts.append(f'<div class="pair">{"".join(shown)}</div>')
        if found["first_bad_documents"]:
            lines = [(bad["place"], Text(bad["file"]), bad["reason"])
                     for bad in found["first_bad_documents"]]  # fmt: skip
            heads = ("place", "file", "reason")
            parts.append(
                details(
                    f"Where they are ({name}; at most {len(lines)} are shown)",
                    table(heads, lines),
                )
            )
    return "".join(parts)


def search(card: dict) -> str:
    """How related sentences were found, what the rules left out, and what was missed."""
    found, others = card["search"], _own_searches(card)
    if not found:
        return others or note("No arm of this build needs related sentences.")
    asked, answered = found["queries"], found["queries_with_neighbours"]
    threshold = card["config"]["search"]["min_similarity"]
    kept = sum(found["similarity_counts"])
    close = sum(n for rule, n in found["candidates_left_out"].items() if "duplicate" in rule)
    facts = [
        ("queries", asked),
        (f"with a neighbour above {threshold:g}", answered),
        ("their share", percent(answered / max(1, asked))),
        ("neighbours of a query, on average", decimal(found["mean_neighbours"])),
        ("queries that needed more candidates", found["asked_again"]),
        ("queries that had too few even then", found["too_few_candidates"]),
        ("sentences searched", found["pool"]),
        ("of these, equal to an earlier one", found["pool_exact_duplicates"]),
        ("of these, without a vector", found["pool_zero_vectors"]),
        ("near duplicates among those near enough", percent(close / max(1, close + kept), 2)),
        ("index", Number(f"{found['engine']}, {found.get('index', '')}")),
    ]
    left_out = [(_CANDIDATES.get(rule, rule.replace("_", " ")), number)
                for rule, number in found["candidates_left_out"].items()]  # fmt: skip
    recall = [(label, percent(found["recall"].get(name))) for name, label in _RECALL.items()]
    sample = f"Recall against brute force, {found['recall'].get('queries', 0):,} random queries"
    chart = histogram(
        found["similarity_edges"], found["similarity_counts"], "cosine to the query",
        f"Similarity of {kept:,} neighbours",
    )  # fmt: skip
    return (
        f'<div class="pair">{table(("search", "number"), facts)}<div>'
        + figure("Similarity of all neighbours found", chart, "Exact float32 cosine.")
        + table(("share found", "recall"), recall, sample)
        + '</div></div><div class="pair">'
        + table(("candidates left out", "number"), left_out)
        + _thresholds(found)
        + others
        + "</div>"
    )


def _own_searches(card: dict) -> str:
    """A table for each search that only one strategy needs."""
    searches = [open_strategy(name).own_search for name in card["strategies"]]
    return "".join(
        table((search.title, "number"), _counts(card[search.card_key], {}))
        for search in searches
        if search
    )


def _thresholds(found: dict) -> str:
    shares = found.get("share_at_threshold") or {}
    rows = [(Number(threshold), percent(share)) for threshold, share in shares.items()]
    caption = "At other thresholds: queries with at least one neighbour"
    if "threshold_sample" in found:
        caption += f", of {found['threshold_sample']:,} random ones"
    return table(("cosine above", "share of queries"), rows, caption) if rows else ""


def strategies(card: dict) -> str:
    """What each strategy counted while it grouped."""
    parts, charts = [], []
    for name, found in card["strategies"].items():
        parts.append(table((name, "number"), _counts(found, open_strategy(name).counts)))
        gain = found.get("gain")
        if gain:
            chart = histogram(gain["gain_edges"], gain["gain_counts"], "nats a token", "Gain")
            caption = (
                f"{gain['kept']:,} of {gain['groups']:,} groups kept. The bars at both ends also "
                f"count what is beyond them. {gain['not_compared']:,} groups have nothing to "
                "compare and are kept."
            )
            charts.append(figure(f"Gain by context, {name}", chart, caption))
    shown = f'<div class="charts">{"".join(charts)}</div>' if charts else ""
    return f'<div class="pair">{"".join(parts)}</div>{shown}'


def _counts(found: dict, labels: Mapping[str, Count]) -> list[tuple[str, int | Number]]:
    """All whole numbers of some results with their labels; those that all strategies have first."""
    counts = {name: found[name] for name in ("groups", "sentences") if name in found} | found
    rows = []
    for field, value in counts.items():
        if not isinstance(value, int) or field == "shards":
            continue
        count = labels.get(field) or Count(field.replace("_", " "))
        rows.append((count.label, value))
        if count.share:
            rows.append((count.share_label, percent(count.share(found), count.share_digits)))
    return rows


def overlap(card: dict) -> str:
    """Items of evaluation files that occur in the corpus."""
    found = card["overlap"]
    if not found:
        return note("No evaluation files were given (design.examples.evaluation_files).")
    rows, samples = [], []
    for file, counts in found["files"].items():
        rows.append((file, counts["items"], counts["too_short"], counts["overlapping"],
                     percent(counts["share"], 2), counts["by_long_run"]))  # fmt: skip
        samples += [(f"{file}, {sample['place']}", Text(sample["text"]), Text(sample["words"]),
                     Text(card["sentences"][str(sample["sentence"])]["text"]))
                    for sample in counts["samples"]]  # fmt: skip
    words, least = found["overlap_words"], found["min_words"]
    heads = ("file", "items", "too short", "overlap", "share", f"by {words} words")
    text = (
        f"An item overlaps if one of its fields shares {words} consecutive words with a document "
        f"of the corpus or of the queries; a shorter field, if all of it occurs there and "
        f"it has at least {least} words (these are often just common phrases: see the last "
        "column). Case and punctuation do not count. All sentences are searched, even those that "
        "no arm uses."
    )
    shown = table(("item", "its text", "words in common", "found in"), samples)
    return (
        table(heads, rows) + note(text) + details("Some items that overlap", shown) * bool(samples)
    )


def cost(card: dict) -> str:
    """Time and memory of each step."""
    rows = [(step["step"], decimal(step["seconds"], 1),
             decimal(step.get("peak_memory_gigabytes"), 2), "yes" if step.get("resumed") else "")
            for step in card["cost"]]  # fmt: skip
    if not rows:
        return note("Not measured.")
    total = sum(step["seconds"] for step in card["cost"] if not _is_inside(step["step"]))
    heads = ("step", "seconds", "peak memory, GB", "resumed")
    return table(heads, rows) + note(
        f"{total:,.0f} seconds in all. The time of neighbours includes its signatures, pool and "
        "index; the time of groups includes the folders inside, but not gain. Memory is that of "
        "the process and its workers together. A resumed step counts only its last run."
    )


def _is_inside(step: str) -> bool:
    """Whether the time of a step is counted by another one too."""
    of_groups = step.startswith("groups/") and step.count("/") > 1 and not step.endswith("/gain")
    return of_groups or step.startswith(_INSIDE_SEARCH)


def origin(card: dict) -> str:
    """Versions, input files and fingerprints, and the whole config."""
    files, prints = [], []
    for name, value in card["inputs"].items():
        if name.endswith(" files"):
            files += [(name.removesuffix(" files"), Text(file), _size(facts), _checksum(facts))
                      for file, facts in (value or {}).items()]  # fmt: skip
        elif value:
            value = value if isinstance(value, str) else json.dumps(value)
            prints.append((name, Text(value)))
    config = html.escape(json.dumps(card["config"], indent=2))
    return (
        table(("input", "file", "bytes", "CRC-32C"), files)
        + f'<div class="pair">{table(("made or taken", "fingerprint"), prints)}'
        + table(("package", "version"), card["versions"].items())
        + "</div>"
        + details("The config of the design stage", f"<pre>{config}</pre>")
    )


def _size(facts: dict) -> int | str:
    return facts.get("bytes", "-")


def _checksum(facts: dict) -> str:
    return facts.get("checksum") or json.dumps(facts)
