"""Which lines and sentences stay, and by which rule the others go."""

import os
from pathlib import Path

import pytest

from icl_jax.config import CorpusConfig
from icl_jax.corpus.documents import Document
from icl_jax.corpus.sentences import split_document
from tests.corpus import corpora

STAYS = "The otter swims in the river. It is said that Dr. Brown saw it there."


def split(text: str, title: str = "", **fields):
    return split_document(Document(text, title, "", "", ""), CorpusConfig(**fields))


def test_lines_are_cut_into_sentences_with_white_space_folded():
    sentences, dropped = split(
        "One sentence\tis  here. Mr. Smith wrote\u00a0another one!\r\nA third?"
    )
    assert sentences == ["One sentence is here.", "Mr. Smith wrote another one!"]
    assert dropped == {"short": 1}


def test_hard_wrapped_text_is_put_together_again():
    wrapped = (
        "It was the third of May, and Dr. Brown went down to the river to look at the\n"
        "otter again. She had seen it twice.\n\nCHAPTER II\n\n"
        "It was gone, and with it went the whole of that long summer, of which nobody\n"
        "spoke.\n"
    )
    sentences, dropped = split(wrapped)
    assert sentences == [
        "It was the third of May, and Dr. Brown went down to the river to look at the otter again.",
        "She had seen it twice.",
        "It was gone, and with it went the whole of that long summer, of which nobody spoke.",
    ]
    assert dropped == {"heading": 1}


def test_tables_and_lists_in_wrapped_text_stay_lines_of_their_own():
    wrapped = (
        "It was the third of May, and Dr. Brown went down to the river to look at the\n"
        "otter again, with a net and a lamp and all that one needs on such a night:\n"
        "- a net of which nobody knew whether it would hold the otter when it came to\n"
        "| a lamp | 12\n"
        "She had seen it twice, and both times it was gone before she could light the\n"
        "lamp.\n"
    )
    sentences, dropped = split(wrapped)
    assert dropped == {"list": 1, "table": 1} and sentences[0].endswith("on such a night:")
    assert sentences[-1].endswith("before she could light the lamp.")
    assert wrapped.splitlines()[0] in split(wrapped, clean=False)[0]


def test_headlines_one_to_a_line_are_not_put_together():
    headlines = [
        "Otters return to the river after forty years of absence and much debate",
        "Minister says that the new bridge will be open before the end of summer",
        "Three hundred herons counted at the lake in one morning by a lone walker",
        "Badgers blamed for the collapse of a garden wall in the north of the town",
    ]
    assert split("\n".join(headlines))[0] == headlines


def test_a_paragraph_that_begins_in_bold_is_no_list():
    assert split(f"**Otters** swim in the river.\n{STAYS}")[0][0] == "**Otters** swim in the river."


def test_lines_that_are_paragraphs_or_verse_stay_apart():
    verse = "The river ran\nand the otter swam\nunder the moon\nas it always had"
    assert split(verse, clean=False)[0] == verse.splitlines()
    assert len(split(f"{STAYS}\n{STAYS}")[0]) == 4


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("title", "Anarchism (book)"),
        ("heading", "== History =="),
        ("heading", " = = Early life and what came after . = = "),
        ("heading", "Early life"),
        ("heading", "These are the best known novels:"),
        ("list", "* An item that is a whole sentence."),
        ("list", "- An item that is a whole sentence."),
        ("list", "• An item that is a whole sentence."),
        ("list", "# An item that is a whole sentence."),
        ("list", "12. An item that is a whole sentence."),
        ("list", "(b) An item that is a whole sentence."),
        ("table", '! style="background:#e9e9e9" | Party of the people.'),
        ("table", "| 1994 || 12 seats in the house."),
        ("markup", "It was {{convert|12|km}} long and wide."),
        ("markup", "See [[File:Otter.jpg|thumb]] for more about it."),
        ("markup", "It was said<ref name='x'>Brown</ref> long ago."),
        ("markup", "It was said&lt;br&gt; long ago by Brown."),
        ("markup", "The set formula_12 has more than two parts."),
        ("symbols", "(12.5%), (13.5%), 14.7 - 19.2, 1,234 + 2 = x."),
        ("short", "And so."),
    ],
)  # fmt: skip
def test_each_rule_drops_its_kind_and_nothing_else(rule, line):
    sentences, dropped = split(f"{line}\n{STAYS}", title="Anarchism (book)")
    assert dropped == {rule: 1}
    assert sentences == ["The otter swims in the river.", "It is said that Dr. Brown saw it there."]
    assert line.split()[-1] in " ".join(split(line + "\n" + STAYS, clean=False)[0])


@pytest.mark.parametrize(
    "line",
    [
        "J. Smith and his brother were the first to see it.",
        "... my way is to divide half a sheet of paper by a line.",
        '"Where is the otter?" he asked, "and who has seen it?"',
        "He said that it was so (and he was right.)",
        "A line of more than ten words that has lost its end somewhere on the way",
        "In 1995 the price was 12.5% higher than in 1994.",
        "The word <unk> stands for a rare word in this text.",
    ],
)
def test_prose_stays_whole(line):
    sentences, dropped = split(f"{line}\n{STAYS}")
    assert " ".join(sentences) == f"{line} {STAYS}" and not dropped


def test_a_document_of_one_line_has_no_heading():
    assert split("A man is playing the guitar")[0] == ["A man is playing the guitar"]
    assert split("Titles go\nA man is playing the guitar", "Titles go")[0][0].startswith("A man")


def test_what_templates_and_tokenised_text_left_is_repaired():
    assert split("Athens () is a city (; ) of 3 @.@ 5 million people , well @-@ known .")[0] == [
        "Athens is a city of 3.5 million people , well-known ."
    ]


def test_languages_without_spaces_keep_their_sentences():
    text = "他是一名住在城里的医生。\n她每天都去河边看水獭。"
    assert len(split(text, language="zh")[0]) == len(split(text, language="zh-hans")[0]) == 2
    assert split(text, language="en")[0] == []


@pytest.mark.skipif("ICL_JAX_TRIAL_DATA" not in os.environ, reason="ICL_JAX_TRIAL_DATA is not set")
def test_real_wikipedia_loses_few_lines_to_the_rules():
    file = Path(os.environ["ICL_JAX_TRIAL_DATA"], "wikitext103", "wiki.valid.tokens")
    config = CorpusConfig(files=(str(file),))
    (document,) = corpora.read_all(config)
    sentences, dropped = split_document(document, config)
    assert 7_500 < len(sentences) < 10_000
    assert dropped.total() - dropped["heading"] < 0.02 * len(sentences)
