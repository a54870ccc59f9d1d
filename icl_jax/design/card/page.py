"""The data card as one HTML page that needs no network and runs no script but its own.

Tables and charts are made here, escaped. The browser of examples (`card.js`) reads the samples from
JSON in the page. The page's policy allows only the hashes of its one style and one script: even if
text of a corpus got through as HTML, it would not run.
"""

import base64
import hashlib
import html
import json
from pathlib import Path

from icl_jax.design.arms import has_queries
from icl_jax.design.card import sections
from icl_jax.design.card.distributions import distributions
from icl_jax.design.strategies.strategy import Strategy, open_strategy

_SECTIONS = {  # title, its short form for the menu, and what makes the content
    "arms": ("Arms", "Arms", sections.arms),
    "corpus": ("Documents and sentences", "Documents", sections.corpus),
    "search": ("Related sentences", "Search", sections.search),
    "strategies": ("Groups by strategy", "Groups", sections.strategies),
    "distributions": ("What is in the groups", "Distributions", distributions),
    "overlap": ("Overlap with evaluation sets", "Overlap", sections.overlap),
    "cost": ("Time and memory", "Cost", sections.cost),
    "origin": ("Versions and inputs", "Origin", sections.origin),
}
# Inside <script> these could end it, or end a line for older parsers of JavaScript.
_UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def render_page(card: dict) -> str:
    """The page of a card; `card` is what `card.json` holds."""
    card = json.loads(json.dumps(card))  # keys of ids as the file has them
    style, script = (_read(name) for name in ("card.css", "card.js"))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    links = [(name, short) for name, (_, short, _) in _SECTIONS.items()]
    links.insert(1, ("browser", "Examples"))
    menu = "".join(f'<li><a href="#{name}">{short}</a></li>' for name, short in links)
    body = [_section(name, title, make(card)) for name, (title, _, make) in _SECTIONS.items()]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Data card: training examples</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<header><h1>Data card</h1>{_summary(card)}</header>\n<nav aria-label="Sections">'
        f"<ul>{menu}</ul></nav>\n<main>\n{body[0]}\n{_browser(card)}\n{''.join(body[1:])}\n"
        f'</main>\n<script type="application/json" id="samples">{_samples(card)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _summary(card: dict) -> str:
    corpus, search = card["corpus"], card["search"]
    numbers = [
        ("documents", f"{corpus['documents']:,}"),
        ("sentences", f"{corpus['sentences']:,}"),
        ("tokens", f"{corpus['tokens']:,}"),
        ("arms", f"{len(card['arms']):,}"),
    ]
    if search:
        share = search["queries_with_neighbours"] / max(1, search["queries"])
        recall = search["recall"].get("neighbours")
        numbers.append(("of queries have a neighbour", f"{share:.1%}"))
        if recall is not None:
            numbers.append(("recall of the search", f"{recall:.1%}"))
    least = min(found["filled"] for found in card["arms"].values())
    numbers.append(("of a row is real tokens, at least", f"{least:.1%}"))
    tiles = "".join(f"<div><dt>{name}</dt><dd>{number}</dd></div>" for name, number in numbers)
    return (
        "<p>Which sentences share a training example in each arm, and how the examples were made. "
        "All numbers are in <code>card.json</code> too.</p>"
        f'<dl class="numbers">{tiles}</dl>'
    )


def _browser(card: dict) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" id="show-{arm}" checked>{arm}</label>'
        for arm in map(html.escape, card["arms"])
    )
    count = len(card["samples"])
    content = (
        "<p>The same sentence, highlighted, as each arm places it. What is beside one line is "
        "one context, special tokens included. The number below a sentence is its "
        f"{html.escape(_scores(card))}.</p>"
        '<div class="controls"><span><button type="button" id="previous">← Previous</button>'
        '<button type="button" id="next">Next →</button></span>'
        '<span><label for="number">Example</label><input type="number" id="number" min="1" '
        f'max="{count}" value="1"> of {count:,}</span>'
        '<span><label for="search">Search</label><input type="search" id="search" '
        'autocomplete="off" spellcheck="false"> <span id="found" role="status" class="soft"></span>'
        f"</span></div><fieldset><legend>Show</legend>{boxes}</fieldset>"
        '<p id="status" role="status" class="unseen"></p><div id="arms-of-example"></div>'
        "<noscript><p>Browsing the examples needs JavaScript; they are in card.json too.</p>"
        "</noscript>"
    )
    return _section("browser", "Examples, arms side by side", content)


def _scores(card: dict) -> str:
    """What the similarity of a sentence is, in general and in the strategies where it differs."""
    usual = Strategy.score
    names = dict.fromkeys(found["strategy"] for found in card["arms"].values())
    scores = {name: open_strategy(name).score for name in names}
    others = [
        f"; in {name}, the {score}" for name, score in scores.items() if score not in ("", usual)
    ]
    return usual + "".join(others)


def _section(name: str, title: str, content: str) -> str:
    return (
        f'<section id="{name}" aria-labelledby="{name}-title">'
        f'<h2 id="{name}-title">{title}</h2>{content}</section>\n'
    )


def _samples(card: dict) -> str:
    """What the browser shows, as JSON that cannot end its script element."""
    names = ("samples", "sentences", "documents", "marks")
    shown = {name: card[name] for name in names}
    shown["arms"] = [
        {"name": arm, "strategy": found["strategy"], "layout": found["layout"]}
        for arm, found in card["arms"].items()
    ]
    used = dict.fromkeys(arm["strategy"] for arm in shown["arms"])
    shown["with_query"] = [strategy for strategy in used if has_queries(strategy)]
    text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_UNSAFE)


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
