"""The words that sentences are compared by, for near duplicates, TF-IDF and overlap alike.

A word is a run of letters, marks and digits. In scripts without spaces (Chinese, Japanese, Thai,
Lao, Khmer, Burmese), each pair of neighbouring characters is a word. Signs that change what a word
means belong to it: `C++`, `C#`, `-5`, `3.5`, `1,000`, `$5`, `5%`. All others only separate words.

Text is folded by NFKC and case. NFC would join an accent to its letter, but keep full-width forms,
half-width kana, ligatures and presentation forms, which look the same to a reader. Powers and
fractions are kept, because NFKC turns 10² into 102 and 5½ into 51/2.
"""

from collections.abc import Iterator
import functools
import re
from typing import NamedTuple
import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

RULES_VERSION = 1  # raise it when a text could get other words; older results are then refused

# Letters and marks; digits, punctuation and currency signs of these scripts are treated as usual.
_UNSPACED_CLASS = (
    "\u0e01-\u0e3a\u0e40-\u0e4e"  # Thai
    "\u0e81-\u0ecf\u0edc-\u0edf"  # Lao
    "\u1000-\u103f\u1050-\u108f\u109a-\u109d\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa7f"  # Burmese
    "\u1780-\u17d3\u17dc\u17dd"  # Khmer
    "\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Japanese
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # Chinese
)
UNSPACED = re.compile(f"[{_UNSPACED_CLASS}]+")

_INVISIBLE = str.maketrans(dict.fromkeys("\xad\u200b\u200c\u200d\u2060\ufeff", ""))
_FOLDABLE = re.compile("[^¹²³¼-¾⁰-\u209f⅐-⅟↉™℠]+")
_MONEY = "$\u00a2-\u00a5\u0e3f\u17db\u20a0-\u20cf"
_PLAIN = re.compile("[a-z0-9]+")
_SIGNS = re.compile(r"[+#$%]|-[0-9]|[0-9][.,][0-9]")  # texts that need more than plain runs
_SIMPLE_CHUNK = r"^[a-z]+[.,;:!?)\]\"]*$"


class Words(NamedTuple):
    """The words of many texts, in sequence."""

    vocabulary: pa.Array  # large strings, each once; the first is empty and not a word
    ids: np.ndarray  # int64: the place of each word in the vocabulary
    lengths: np.ndarray  # int64: the number of words of each text


def words_of(text: str) -> list[str]:
    """The words of one text, in order."""
    if text.isascii():
        text = text.lower()
        return (_ascii_words() if _SIGNS.search(text) else _PLAIN).findall(text)
    return list(_all_words(_fold(text)))


def split_words(texts: pa.Array) -> Words:
    """`words_of` for many texts; each distinct chunk between two spaces is analysed once."""
    lists = pc.utf8_split_whitespace(texts.cast(pa.large_string()))
    chunks = lists.flatten().dictionary_encode()
    simple, others = _look_at(chunks.dictionary)

    # The words of every chunk, as places in the vocabulary.
    parts = [words_of(chunk) for chunk in others.to_pylist()]
    flat = pa.array([word for words in parts for word in words], pa.large_string())
    empty = pa.array([""], pa.large_string())
    encoded = pa.concat_arrays([empty, simple.drop_null(), flat]).dictionary_encode()
    numbers = encoded.indices.to_numpy().astype(np.int64)[1:]
    is_simple = simple.is_valid().to_numpy(zero_copy_only=False)
    count = np.ones(len(simple), np.int64)
    count[~is_simple] = [len(words) for words in parts]
    first = np.where(is_simple, np.cumsum(is_simple) - 1, 0)
    first[~is_simple] = is_simple.sum() + np.cumsum(count[~is_simple]) - count[~is_simple]

    chunk = chunks.indices.to_numpy()
    size = count[chunk]
    ends = np.append(0, np.cumsum(size))
    place = np.arange(ends[-1]) - np.repeat(ends[:-1] - first[chunk], size)
    text_ends = ends[lists.offsets.to_numpy() - lists.offsets[0].as_py()]
    return Words(encoded.dictionary, numbers[place], np.diff(text_ends))


def _look_at(chunks: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The words of chunks that are one word, perhaps with a comma (else null); other chunks."""
    lower = pc.ascii_lower(chunks)
    is_simple = pc.match_substring_regex(lower, _SIMPLE_CHUNK)
    words = pc.ascii_rtrim(lower, '.,;:!?)]"')
    return pc.if_else(is_simple, words, None), chunks.filter(pc.invert(is_simple))


def _all_words(text: str) -> Iterator[str]:
    place = 0
    for run in UNSPACED.finditer(text):
        yield from _unicode_words().findall(text[place : run.start()])
        characters = run[0]
        yield from (characters[i : i + 2] for i in range(max(1, len(characters) - 1)))
        place = run.end()
    yield from _unicode_words().findall(text[place:])


def _fold(text: str) -> str:
    text = _nfkc(text.translate(_INVISIBLE)).casefold()
    return _nfkc(text).replace("\u2212", "-")  # the minus sign


def _nfkc(text: str) -> str:
    return _FOLDABLE.sub(lambda part: unicodedata.normalize("NFKC", part[0]), text)


@functools.cache
def _ascii_words() -> re.Pattern:
    return _word_pattern("[a-z0-9]", "[a-z0-9]", "$")


@functools.cache
def _unicode_words() -> re.Pattern:
    """The pattern of words between spaces; Python's `\\w` lacks marks."""
    codes = (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0))
    marks = {code for code in codes if unicodedata.category(chr(code))[0] == "M"}
    starts = sorted(code for code in marks if code - 1 not in marks)
    ends = sorted(code for code in marks if code + 1 not in marks)
    ranges = "".join(f"{chr(a)}-{chr(b)}" for a, b in zip(starts, ends, strict=True))
    return _word_pattern(r"[^\W_]", rf"(?:[^\W_]|[{ranges}])", _MONEY)


def _word_pattern(first: str, following: str, money: str) -> re.Pattern:
    before = r"(?<![\w)\]-])"
    return re.compile(
        rf"(?:(?:{before}-[{money}]?|[{money}]-?)(?=\d))?"
        rf"{first}{following}*(?:(?<=\d)[.,](?=\d){following}+)*"
        rf"(?:[+#]+(?!\w)|(?<=\d)[%\u2030{money}](?!\w))?"
    )
