"""Writes the queries of kNN-TAPT: sentences of the STS training sets, one per line.

python -m icl_jax.studies.task_sentences --data=DATA --to=FILE.txt [--limit=N] [--unseen]

DATA has SentEval's layout; STS-B and SICK-R are the sets with a training part. Only their text is
used, never a score. Much of that text is in the test sets, too, because STS-B was collected from
STS12-16 and SICK's parts share sentences: --unseen drops it; the paper seems to have kept it.
"""

from pathlib import Path
from typing import NamedTuple

from absl import flags
import numpy as np

from icl_jax.cli import Flag, command, whole
from icl_jax.config import ConfigError, EvaluationConfig
from icl_jax.corpus.words import words_of
from icl_jax.evaluation.tasks.sts.files import PairSet, read_sets, read_training_sets
from icl_jax.files.step_folder import beside

_SEED = 0


class TaskSentences(NamedTuple):
    """The chosen sentences, and what they were chosen from."""

    sentences: list[str]
    counts: dict[str, int]  # set -> its sentences that are in no earlier set
    in_test: int  # how many of all these are in a test set


def task_sentences(data: str, limit: int = 0, unseen: bool = False) -> TaskSentences:
    """Each sentence once, in the order of the files; with a limit, a sample from all sets."""
    found: list[str] = []
    counts = {}
    for held in read_training_sets(data):
        counts[held.name] = -len(found)
        found = list(dict.fromkeys([*found, *_sentences(held)]))
        counts[held.name] += len(found)
    tests = {
        _words(text) for held in read_sets(EvaluationConfig(data=data)) for text in _sentences(held)
    }
    in_test = sum(_words(sentence) in tests for sentence in found)
    if unseen:
        found = [sentence for sentence in found if _words(sentence) not in tests]
    if not found:
        raise ConfigError(
            f"every sentence of the training sets in {data} is in a test set too: --unseen leaves "
            "none; leave it out"
        )
    if limit < 0 or limit > len(found):
        raise ConfigError(f"--limit must be from 1 to {len(found)} here, got {limit}")
    if limit:
        drawn = np.random.RandomState(_SEED).permutation(len(found))[:limit]
        found = [found[place] for place in sorted(drawn)]
    return TaskSentences(found, counts, in_test)


def _sentences(held: PairSet) -> list[str]:
    return [text for pair in held.pairs for text in (pair.sentence1, pair.sentence2)]


def _words(text: str) -> str:
    """The same key for sentences that differ only in capitals and punctuation."""
    return " ".join(words_of(text))


@command(
    Flag("data=FOLDER", "a folder with sts/ and sick/", required=True),
    Flag("to=FILE.txt", "the file to write", Path, required=True),
    Flag("limit=N", "how many, drawn at random; 0 takes all", whole(), 0),
    Flag("unseen", "leave out those that a test set holds", bool, False),
)
def main(given: flags.FlagValues) -> None:
    """Writes the file and says what it holds."""
    chosen = task_sentences(given.data, given.limit, given.unseen)
    given.to.parent.mkdir(parents=True, exist_ok=True)
    with beside(given.to) as partial:
        partial.write_text("".join(f"{sentence}\n" for sentence in chosen.sentences))
    sets = ", ".join(f"{count:,} of {name}" for name, count in chosen.counts.items())
    total = sum(chosen.counts.values())
    print(
        f"{total:,} different sentences ({sets}), {chosen.in_test:,} of them in the test sets "
        f"too{', left out' * given.unseen}; {len(chosen.sentences):,} written to {given.to}"
    )


if __name__ == "__main__":
    main()
