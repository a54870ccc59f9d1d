"""Whether a short answer is right: exact match and token F1 by the rules of SQuAD.

Both compare texts in lower case, without punctuation and articles, white space folded. One rule is
our own: a gold answer that would be left empty (blood type "A+", the sign "*") is compared as
it is, in lower case; by the rules of SQuAD, saying nothing would be the right answer to it.
"""

from collections import Counter
from collections.abc import Sequence
import re
import string

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Metric options of lm-evaluation-harness's nq_open, version 4.0.
_HARNESS_ARTICLES = re.compile(r"\b(?:The |the |An |A |The |a |an )")


def normalise(text: str) -> str:
    """Lower case, no punctuation, no articles, white space folded."""
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(answer: str, golds: Sequence[str]) -> int:
    """1 if the answer is one of the gold ones, else 0."""
    return max(int(_tokens(answer, gold) == _tokens(gold, gold)) for gold in golds)


def f1(answer: str, golds: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of the answer's tokens, best over the gold answers."""
    return max(_f1(_tokens(answer, gold), _tokens(gold, gold)) for gold in golds)


def harness_exact_match(answer: str, golds: Sequence[str]) -> int:
    """As lm-evaluation-harness scores nq_open: leading articles go, white space is not folded."""
    return int(_harness_text(answer.strip()) in map(_harness_text, golds))


def _tokens(text: str, gold: str) -> list[str]:
    return normalise(text).split() if normalise(gold) else [" ".join(text.lower().split())]


def _f1(answer: list[str], gold: list[str]) -> float:
    common = sum((Counter(answer) & Counter(gold)).values())
    if not common:
        return float(answer == gold)
    return 2 * common / (len(answer) + len(gold))


def _harness_text(text: str) -> str:
    return _HARNESS_ARTICLES.sub("", text).lower().translate(_NO_PUNCTUATION)
