"""The page of the data card, in a real browser: it works, and hostile text is only text."""

import html.parser
import json
import re

import pytest

from icl_jax.config import DesignConfig
from icl_jax.config.tree import to_dict
from icl_jax.design.card.charts import histogram
from icl_jax.design.card.page import render_page
from icl_jax.design.card.sections import cost, strategies
from icl_jax.design.card.tables import table
from tests.design import chromium

HOSTILE = [
    "<script>window.hacked = 1; alert(1)</script>",
    "</script><script>window.hacked = 2</script>",
    "<img src=x onerror='window.hacked = 3'>",
    '"><svg onload=window.hacked=4> &amp; &lt;b&gt; \' "',
    "<!-- <script> --> ]]> \\u003c ${1} `tick` {{x}} %s",
    "line\u2028and\u2029ends \x07\x1b[31m red \x85",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u202eevil\u202c end",
    "emoji \U0001f469\u200d\U0001f52c\U0001f3f3\ufe0f\u200d\U0001f308 e\u0301 \u0130stanbul",
    "w" * 3000,
    "javascript:window.hacked=5",
]
ARMS = {
    "contiguous": ("contiguous", "in_context"),
    "neighbours_in_context": ("neighbours", "in_context"),
    "random_in_batch": ("random", "in_batch"),
}


def made_up_card(texts: list[str]) -> dict:
    """A card with one sample for each text; text i is in document i, of title and file i."""
    count = len(texts)
    sentences = {i: {"text": text, "document": i, "position": i} for i, text in enumerate(texts)}
    documents = {i: {"file": f"folder/{text}", "place": "line 1", "name": text, "title": text}
                 for i, text in enumerate(texts)}  # fmt: skip

    def group(ids, similarities):
        after = [["<|separator|>"]] * (len(ids) - 1) + [["<|endoftext|>"]]
        return {"group": ids[0], "ids": ids, "similarities": similarities, "tokens": 12 * len(ids),
                "before": [], "lengths": [11] * len(ids), "after": after, "kept": True,
                "elsewhere": False}  # fmt: skip

    samples = [
        {
            "sentence": i,
            "groups": {
                "contiguous": group([i], [None]),
                "neighbours": group([i, (i + 1) % count], [1.0, 0.875]),
                "random": group([i, (i + 2) % count], [1.0, -0.031]),
            },
        }
        for i in range(count)
    ]
    del samples[-1]["groups"]["random"]
    arms = {
        name: {
            "strategy": strategy, "layout": layout, "groups": 1234, "groups_left_out": 0,
            "sentences": 5678, "tokens": 9012345, "records": 1000, "rows": 1000, "filled": 0.9512,
            "sentence_multiset": strategy, "sentences_per_group": [0, 3, 2],
            "tokens_per_group_edges": [0, 8, 16], "tokens_per_group_counts": [1, 4],
            "similarity_edges": [-1, 0, 1], "similarity_counts": [2, 3],
        }
        for name, (strategy, layout) in ARMS.items()
    }  # fmt: skip
    hostile_counts = {text: i for i, text in enumerate(texts)}
    return {
        "corpus": {
            "documents": count, "bad_documents": hostile_counts, "sentences": 27356,
            "tokens": 824310, "dropped": hostile_counts, "long_split": 1,
            "first_bad_documents": [{"file": t, "place": t, "reason": t, "count": 1}
                                    for t in texts],
        },
        "queries": None, "entity_search": None,
        "search": {
            "queries": 10, "queries_with_neighbours": 5, "mean_neighbours": 0.5, "asked_again": 1,
            "too_few_candidates": 0, "pool": 10, "pool_exact_duplicates": 1, "engine": texts[0],
            "index": texts[-1], "pool_zero_vectors": 0, "candidates_left_out": hostile_counts,
            "recall": {"queries": 5, "candidates": 1.0, "neighbours": 0.5, "above_threshold": None},
            "similarity_edges": [-1, 0, 1], "similarity_counts": [0, 5],
            "share_at_threshold": {"0.9": 0.25},
        },
        "strategies": {"neighbours": {"groups": 1234, "shards": 1}},
        "arms": arms,
        "same_sentences": [[name] for name in arms],
        "overlap": {
            "overlap_words": 13, "min_words": 4,
            "files": {text: {"items": 3, "too_short": 1, "overlapping": 1, "share": 0.3,
                             "by_long_run": 0,
                             "samples": [{"place": "line 1", "text": text, "words": text,
                                          "sentence": i}]}
                      for i, text in enumerate(texts)},
        },
        "cost": [{"step": texts[0], "seconds": 1.5, "peak_memory_gigabytes": 0.5}],
        "versions": {"numpy": texts[0]},
        "inputs": {"corpus files": {t: {"bytes": 1, "checksum": t} for t in texts},
                   "tokenizer": {"fingerprint": texts[1]}},
        "config": to_dict(DesignConfig()) | {"note": texts},
        "samples": samples, "sentences": sentences, "documents": documents,
        "marks": {"begin": None, "separator": "<|separator|>", "end": "<|endoftext|>"},
    }  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if chromium.BINARY is None:
        pytest.skip("needs chromium, Debian's package of that name")
    page = chromium.Page(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.fixture(scope="module")
def card_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("card") / "card.html"
    file.write_text(render_page(made_up_card(HOSTILE)), encoding="utf-8")
    return file


@pytest.fixture
def page(browser, card_file):
    browser.open(card_file)
    yield browser
    assert browser.trouble == []
    assert browser.evaluate("window.hacked") is None


def column(page, arm: str) -> str:
    return page.evaluate(f"document.querySelector('article[aria-label={arm}]').textContent")


def test_hostile_text_shows_as_text_everywhere(page):
    for kind, count in (("script", 2), ("img", 0), ("svg[onload]", 0)):
        assert page.evaluate(f"document.querySelectorAll('{kind}').length") == count
    for number, text in enumerate(HOSTILE):
        page.evaluate(f"show({number})")
        shown = "[...document.querySelectorAll('.chosen .words')].map(e => e.textContent)"
        in_arms = 3 if number < len(HOSTILE) - 1 else 2
        assert page.evaluate(shown) == [text] * in_arms
        title = "document.querySelector('.chosen .from bdi').textContent"
        assert page.evaluate(title) == text
    cells = page.evaluate("[...document.querySelectorAll('th, td')].map(e => e.textContent)")
    for text in HOSTILE:
        assert text in cells


def test_nothing_but_the_page_s_own_script_may_run(page):
    page.evaluate("""document.body.insertAdjacentHTML('beforeend',
        '<img id="probe" src="data:image/png;base64,AA" onerror="window.hacked=1">')""")
    page.evaluate("""{const s = document.createElement('script');
        s.textContent = 'window.hacked = 2'; document.body.append(s)}""")
    assert page.evaluate("window.hacked") is None
    refused = [entry["params"]["entry"]["text"] for entry in page.trouble]
    assert len(refused) >= 2 and all("Content Security Policy" in text for text in refused)
    page.trouble = []


def test_the_arms_stand_side_by_side_with_scores_documents_and_separators(browser, tmp_path):
    file = tmp_path / "card.html"
    file.write_text(render_page(made_up_card(["Apples grow.", "Pears grow.", "Rain falls."])))
    browser.open(file)
    names = "[...document.querySelectorAll('article.arm h3')].map(e => e.textContent)"
    assert browser.evaluate(names) == list(ARMS)
    neighbours = column(browser, "neighbours_in_context")
    assert neighbours.index("Apples grow.") < neighbours.index("query")
    assert neighbours.index("<|separator|>") < neighbours.index("Pears grow.") < (
        neighbours.index("0.875")) < neighbours.index("<|endoftext|>")  # fmt: skip
    assert "-0.031" in column(browser, "random_in_batch")
    contexts = "document.querySelectorAll('article[aria-label={}] .context').length"
    assert browser.evaluate(contexts.format("neighbours_in_context")) == 1
    assert browser.evaluate(contexts.format("random_in_batch")) == 2  # each its own example
    assert "<|separator|>" not in column(browser, "random_in_batch")
    browser.evaluate("show(2)")
    assert "no group in this arm" in column(browser, "random_in_batch")
    browser.evaluate("document.getElementById('show-contiguous').click()")
    assert browser.evaluate(names) == list(ARMS)[1:]
    assert browser.trouble == []


def test_every_sentence_names_its_document(browser, tmp_path):
    card = made_up_card(["Apples grow.", "Pears grow.", "Rain falls."])
    for sentence in card["sentences"].values():
        sentence["document"] = 0  # also where the one before is of the same
    for title, long, short in (("Fruit", "Fruitfruit.txt, line 1", "Fruit"),
                               ("", "fruit.txt, line 1", "fruit.txt")):  # fmt: skip
        card["documents"][0] |= {"title": title, "file": "folder/fruit.txt"}
        file = tmp_path / "card.html"
        file.write_text(render_page(card))
        browser.open(file)
        names = """[...document.querySelectorAll('.sentence')].map(
            e => [...e.querySelectorAll('.from bdi')].map(b => b.textContent).join(''))"""
        assert browser.evaluate(names) == [long, long, short, long, short]


def test_browsing_by_buttons_number_keys_and_address(browser, card_file):
    def number():
        return int(browser.evaluate("document.getElementById('number').value"))

    last = len(HOSTILE)
    browser.open(card_file)
    assert number() == 1 and browser.evaluate("location.hash") == ""
    browser.evaluate("document.getElementById('next').click()")
    assert number() == 2 and browser.evaluate("location.hash") == "#sample=2"
    for expected in (1, last):  # goes round
        browser.evaluate("document.getElementById('previous').click()")
        assert number() == expected
    set_number = "{{const e = document.getElementById('number'); e.value = {}; \
        e.dispatchEvent(new Event('change'))}}"
    for asked, expected in ((4, 4), (999, last), (0, 1)):
        browser.evaluate(set_number.format(asked))
        assert number() == expected
    browser.evaluate("document.getElementById('next').focus()")
    browser.press("ArrowRight")
    assert number() == 2
    browser.press("ArrowLeft")
    assert number() == 1
    browser.open(card_file, "#sample=3")
    assert number() == 3
    assert browser.evaluate("document.querySelector('.chosen .words').textContent") == HOSTILE[2]
    assert browser.trouble == []


def test_search_finds_marks_and_steps_through_matches(browser, tmp_path):
    file = tmp_path / "card.html"
    texts = [
        "Apples grow.",
        "Rain <b>falls</b>.",
        "Pears grow.",
        "Snow melts.",
        "\u0130zmir grows.",
    ]
    file.write_text(render_page(made_up_card(texts)))
    browser.open(file)

    def search(wanted):
        browser.evaluate(f"""{{const e = document.getElementById('search');
            e.value = {json.dumps(wanted)}; e.dispatchEvent(new Event('input'))}}""")
        return browser.evaluate("document.getElementById('found').textContent")

    assert search("<B>FALLS") == "in 2 of 5 examples"  # as itself, or beside another
    marks = "[...document.querySelectorAll('mark')].map(e => e.textContent)"
    assert browser.evaluate(marks) and set(browser.evaluate(marks)) == {"<b>falls"}
    seen = []
    for _ in range(4):
        seen.append(int(browser.evaluate("document.getElementById('number').value")))
        browser.evaluate("document.getElementById('next').click()")
    assert seen == [1, 2, 1, 2]
    assert search("nowhere") == "in 0 of 5 examples"
    assert search("") == "" and browser.evaluate(marks) == []
    assert search("\u0130zmir").startswith("in ")
    assert browser.trouble == []


def test_the_page_is_one_file_without_addresses_of_others():
    text = render_page(made_up_card(HOSTILE))
    attributes = []
    parser = html.parser.HTMLParser()
    parser.handle_starttag = lambda tag, attrs: attributes.extend(attrs)
    parser.feed(text)
    assert {value[0] for name, value in attributes if name == "href"} == {"#"}
    assert not [name for name, _ in attributes if name in ("src", "style") or name[:2] == "on"]
    assert re.search(r"default-src 'none'; style-src 'sha256-[^']+'; script-src 'sha256-", text)
    data = re.search(r'(?s)<script type="application/json" id="samples">(.*?)</script>', text)[1]
    assert not set("<>&\u2028\u2029") & set(data)
    held = json.loads(data)
    assert [held["sentences"][str(i)]["text"] for i in range(len(HOSTILE))] == HOSTILE


def test_what_was_dealt_again_is_reported_in_words():
    card = made_up_card(["a", "b"])
    card["strategies"]["random"] = {
        "shards": 1, "groups": 400, "dealt": 4321, "still_related": 2, "same_length_groups": 300,
    }  # fmt: skip
    text = re.sub("<[^>]+>", " ", strategies(card))
    for told in ("dealt again 4,321", "because no other was possible 2",
                 "with their neighbours 300 their share 75.0%"):  # fmt: skip
        assert told in " ".join(text.split())


def test_time_that_two_steps_count_is_in_the_sum_once():
    steps = {"corpus": 5, "neighbours_signatures/pool": 1, "neighbours_index": 2, "neighbours": 20}
    card = {"cost": [{"step": step, "seconds": seconds} for step, seconds in steps.items()]}
    assert ">25 seconds in all" in cost(card)


def test_numbers_have_separators_and_bars_tell_their_counts():
    assert ">1,234,567<" in table(("step", "number"), [("a", 1234567)])
    assert "&lt;b&gt;" in table(("<i>",), [("<b>",)]) and "<i>" not in table(("<i>",), [("<b>",)])
    chart = histogram([0, 0.5, 1, 1.5, 2], [0, 0, 12345, 0], "<unit>", 'a "label"')
    assert "<title>1 to 1.5: 12,345</title>" in chart and "&lt;unit&gt;" in chart
    assert chart.count("<rect") == 3  # one empty bin at each side is left
    assert 'aria-label="a &quot;label&quot;"' in chart
