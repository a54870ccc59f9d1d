# ruff: noqa: RUF001 (characters that look alike are what it is about)
"""What counts as a word, in every script."""

import unicodedata

import numpy as np
import pyarrow as pa
import pytest

from icl_jax.corpus.words import split_words, words_of

TEXTS = {
    "The cat, SAT (twice).": ["the", "cat", "sat", "twice"],
    "C++ and C# vs. C": ["c++", "and", "c#", "vs", "c"],
    "a+b, U+0041": ["a", "b", "u", "0041"],
    "-5 and (−5) but 1990-95, f(x)-2, Rome--5": [
        "-5", "and", "-5", "but", "1990", "95", "f", "x", "2", "rome", "5",
    ],
    "$5 -$5 5€ 3.5 1,000,000 1.2.3 50% U.S.": [
        "$5", "-$5", "5€", "3.5", "1,000,000", "1.2.3", "50%", "u", "s",
    ],
    "Ünïcode “quotes” … don’t": ["ünïcode", "quotes", "don", "t"],
    "ＡＢＣ１２ ﬁne Straße co\u00adop": ["abc12", "fine", "strasse", "coop"],
    "10² 5½ Intel™ ´a": ["10²", "5½", "intel", "a"],
    "हिन्दी में": ["हिन्दी", "में"],
    "": [],
    "… ?!": [],
}  # fmt: skip

UNSPACED = {
    "Han": "天气很好",
    "Hiragana": "ひらがな",
    "Katakana": "カタカナ",
    "Thai": "ภาษาไทย",
    "Lao": "ພາສາລາວ",
    "Khmer": "ភាសាខ្មែរ",
    "Myanmar": "မြန်မာဘာသာ",
}


@pytest.mark.parametrize("text", TEXTS)
def test_words_keep_what_makes_another_thing_of_them(text):
    assert words_of(text) == TEXTS[text]


@pytest.mark.parametrize("script", UNSPACED)
def test_where_a_script_has_no_spaces_pairs_of_characters_are_words(script):
    run = unicodedata.normalize("NFKC", UNSPACED[script])
    pairs = [run[i : i + 2] for i in range(len(run) - 1)]
    assert words_of(f"{run}, 2020 ABC{run[0]}") == [*pairs, "2020", "abc", run[0]]


@pytest.mark.parametrize("text", ["École Ångström", "ｶﾞｷﾞ", "Việt", "한국어"])
def test_every_normal_form_gives_the_same_words(text):
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")]
    assert len({tuple(words_of(form)) for form in forms}) == 1


def test_the_words_of_many_texts_are_those_of_each():
    texts = [*TEXTS, *UNSPACED.values(), "the cat sat", "", "一 二\u3000三\u00a0four"]
    for array in (pa.array(texts), pa.array(["cut off", *texts]).slice(1)):
        vocabulary, ids, lengths = split_words(array)
        words = np.array(vocabulary.to_pylist(), object)
        ends = np.cumsum(lengths)
        found = [words[ids[a:b]].tolist() for a, b in zip(ends - lengths, ends, strict=True)]
        assert found == [words_of(text) for text in texts]
        assert words[0] == "" and len(set(words)) == len(words) and 0 not in ids
    assert len(split_words(pa.array([], pa.string())).lengths) == 0
