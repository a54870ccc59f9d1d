"""From documents to sentences, with rules for what is dropped; every drop is counted by its rule.

A line is a paragraph. sentencex splits it into sentences. White space becomes single spaces.
With `config.clean`, hard-wrapped text is joined up to a blank line, table or list. A text counts as
hard-wrapped if no line is above 120 characters and, of its lines that are followed by another, most
have 50 or more and no end such as `.`, and a third are followed by a lower-case letter.
HTML entities become characters, empty brackets left by a removed template are deleted, WikiText's
` @-@ ` becomes `-`, and these are dropped, in this order:
  title    the first line, if it is the document's title
  table    a line that begins with `|`, `!` or `{|`
  list     a line that begins with a bullet, `1.`, `2)`, `(3)`, `a)`
  heading  `== x ==`; or up to 10 words without an end such as `.` or `?`, unless the document has
           no other line
  markup   a sentence with leftovers of wiki text or HTML: `{{`, `[[`, `||`, `<ref`, `style=`, or
           with wikiextractor's names for what it removed: formula_1, codice_2
  symbols  a sentence of which half or more are digits and ASCII punctuation
  short    a sentence of fewer than 3 words
In languages written without spaces, two characters count as a word.
"""

from collections import Counter
import html
import itertools
import re
import string

import sentencex

from icl_jax.config import CorpusConfig
from icl_jax.corpus.documents import Document

RULES_VERSION = 1  # raise it when a rule changes, so that tables made by old rules are not mixed in
MIN_WORDS = 3
MAX_HEADING_WORDS = 10
MIN_WRAPPED_LINE, MAX_WRAPPED_LINE = 50, 120  # characters
WITHOUT_SPACES = frozenset({"bo", "dz", "ja", "km", "lo", "my", "th", "wuu", "yue", "zh"})

_EMPTY_BRACKETS = re.compile(r"\([ ,;:]*\)|\[ *\]")
_WIKITEXT_JOINT = re.compile(r" @([-.,])@ ")
_WIKI_HEADING = re.compile(r"=.*=")
# A sentence end, then closing quotes or brackets.
_ENDED = re.compile(r"""[.!?…。！？｡．؟۔।॥።։]["'”’»›)\]}」』）\s]*\Z""")  # noqa: RUF001
_LIST = re.compile(r"[#•◦▪‣·●○■□]|\*(?!\*\w)|-+\s|:+\s|\(?(\d{1,3}|[a-z])[.)]\s|\([A-Z]\)\s")
_TABLE = re.compile(r"[|!]|\{\|")
_MARKUP_CHARACTERS = re.compile(r"[{}\[\]<|=_]")  # most sentences have none, and so no markup
_TAGS = "ref|br|poem|nowiki|div|span|table|t[rdh]|su[bp]|small|big|blockquote|gallery|math|code|pre"
_MARKUP = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|\|\||</?(?:" + _TAGS + r")\b"
    r"|\b(?:style|align|colspan|rowspan) ?=|\b(?:formula|codice)_\d",
    re.IGNORECASE,
)
_LETTERS_AND_SPACE = (string.ascii_letters + " ").encode()


def split_document(document: Document, config: CorpusConfig) -> tuple[list[str], Counter]:
    """The sentences of a document in order, and how many each rule dropped."""
    dropped: Counter = Counter()
    lines = [_fold(line) for line in document.text.splitlines()]
    if config.clean:
        lines = _unwrap(lines)
    lines = [line for line in lines if line]
    if config.clean:
        lines = _clean_lines(lines, _fold(document.title), config.language, dropped)
    sentences = []
    for line in lines:
        for sentence in map(str.strip, sentencex.segment(config.language, line)):
            rule = _sentence_rule(sentence, config.language) if config.clean else ""
            if rule:
                dropped[rule] += 1
            elif sentence:
                sentences.append(sentence)
    return sentences, dropped


def _fold(text: str) -> str:
    return " ".join(text.split())


def _unwrap(lines: list[str]) -> list[str]:
    """The lines, or the blocks of a hard-wrapped text."""
    if max(map(len, lines), default=0) > MAX_WRAPPED_LINE:
        return lines
    inside = [pair for pair in itertools.pairwise(lines) if all(pair)]
    open_lines = sum(len(x) >= MIN_WRAPPED_LINE and not _ENDED.search(x) for x, _ in inside)
    continued = sum(y[0].isalpha() and not y[0].isupper() for _, y in inside)
    if 2 * open_lines <= len(inside) or 3 * continued < len(inside):
        return lines
    found = []
    for prose, block in itertools.groupby(lines, key=_is_prose):
        if prose:
            found.append(" ".join(block))
        else:
            found.extend(block)
    return found


def _is_prose(line: str) -> bool:
    return bool(line) and not _LIST.match(line) and not _TABLE.match(line)


def _clean_lines(lines: list[str], title: str, language: str, dropped: Counter) -> list[str]:
    if lines and lines[0] == title:
        dropped["title"] += 1
        lines = lines[1:]
    alone = len(lines) == 1
    kept = []
    for line in lines:
        line = _repair(line)
        rule = _line_rule(line, language, alone)
        if rule:
            dropped[rule] += 1
        elif line:
            kept.append(line)
    return kept


def _repair(line: str) -> str:
    if "&" in line:
        line = _fold(html.unescape(line))
    if "(" in line or "[" in line:
        line = _fold(_EMPTY_BRACKETS.sub("", line))
    if "@" in line:
        line = _WIKITEXT_JOINT.sub(r"\1", line)
    return line


def _line_rule(line: str, language: str, alone: bool) -> str:
    """The rule that drops a line, or ""."""
    if _TABLE.match(line):
        return "table"
    if _LIST.match(line):
        return "list"
    if _WIKI_HEADING.fullmatch(line):
        return "heading"
    if not alone and not _ENDED.search(line) and _words(line, language) <= MAX_HEADING_WORDS:
        return "heading"
    return ""


def _sentence_rule(sentence: str, language: str) -> str:
    """The rule that drops a sentence, or ""."""
    if _MARKUP_CHARACTERS.search(sentence) and _MARKUP.search(sentence):
        return "markup"
    symbols = len(sentence.encode("ascii", "ignore").translate(None, _LETTERS_AND_SPACE))
    if 2 * symbols >= len(sentence) - sentence.count(" "):
        return "symbols"
    return "short" if _words(sentence, language) < MIN_WORDS else ""


def _words(text: str, language: str) -> int:
    without_spaces = language.split("-")[0] in WITHOUT_SPACES  # zh-hans is zh
    return len(text) // 2 if without_spaces else text.count(" ") + 1
