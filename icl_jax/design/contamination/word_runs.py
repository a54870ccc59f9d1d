"""Runs of consecutive words, and where they occur in other text.

`corpus/words.py` says what a word is.
"""

from collections.abc import Sequence
import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icl_jax.corpus.words import split_words
from icl_jax.files.step_folder import beside

MIN_WORDS = 4  # of a field that counts although it is shorter than a run
_FACTORS = np.array([0x9E3779B97F4A7C15, 0x165667B19E3779F9], np.uint64)


@dataclasses.dataclass
class Runs:
    """The runs to look for, each once, by length and hash; their words are numbered."""

    words: list[str]
    stream: np.ndarray  # int32: word numbers of all fields, one after the other
    start: np.ndarray  # int64: of each run, in `stream`
    length: np.ndarray  # int32: of each run, ascending
    hash: np.ndarray  # uint64: of each run, ascending within a length
    offsets: np.ndarray  # int64: run i is in items[offsets[i] : offsets[i + 1]]
    items: np.ndarray  # int64

    def save(self, file: Path) -> None:
        """Writes all as one file."""
        values = dataclasses.asdict(self)
        values["words"] = np.frombuffer("\n".join(self.words).encode(), np.uint8)
        with beside(file) as partial, partial.open("wb") as opened:
            np.savez(opened, **values)

    @classmethod
    def open(cls, file: Path) -> "Runs":
        """What `save` wrote."""
        with np.load(file, allow_pickle=False) as stored:
            values = dict(stored)
        words = values.pop("words").tobytes().decode()
        return cls(words.split("\n") if words else [], **values)

    def text(self, run: int) -> str:
        """The words of a run."""
        part = self.stream[self.start[run] : self.start[run] + self.length[run]]
        return " ".join(self.words[word] for word in part)


def collect_runs(items: Sequence[Sequence[str]], size: int) -> Runs:
    """Every run of `size` words of every field of every item; a shorter field is one run."""
    fields = pa.array([field for item in items for field in item], pa.large_string())
    vocabulary, ids, lengths = split_words(fields)
    stream = ids.astype(np.int32)
    item_of = np.repeat(np.arange(len(items)), [len(item) for item in items])

    run_length = np.minimum(lengths, size).astype(np.int32)
    count = np.where(run_length >= min(MIN_WORDS, size), lengths - run_length + 1, 0)
    field = np.repeat(np.arange(len(lengths)), count)
    start = (np.cumsum(lengths) - lengths)[field] + _count_up(count)
    length, item = run_length[field], item_of[field]
    hashes = np.zeros(len(start), np.uint64)
    for k in range(size):
        longer = np.flatnonzero(length > k)
        hashes[longer] = _add_word(hashes[longer], stream[start[longer] + k])

    order = np.lexsort((item, hashes, length))
    start, length, hashes, item = (x[order] for x in (start, length, hashes, item))
    new = (length[1:] != length[:-1]) | (hashes[1:] != hashes[:-1])
    begin = np.flatnonzero(np.append(True, new)[: len(order)])
    return Runs(
        vocabulary.to_pylist(), stream, start[begin], length[begin], hashes[begin],
        np.append(begin, len(order)), item,
    )  # fmt: skip


def find_runs(runs: Runs, texts: pa.Array, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The runs that occur in some sentences, and the row of the one in which each first begins.

    A run may continue into the next sentence of its document.
    """
    vocabulary, ids, lengths = split_words(texts)
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    known = pc.index_in(vocabulary, pa.array(runs.words, pa.large_string()))
    word = known.fill_null(-1).to_numpy()[ids]
    left = _words_left(word, documents[sentence])
    place = np.flatnonzero(left >= runs.length.min(initial=np.iinfo(np.int32).max))
    hashes = np.zeros(len(place), np.uint64)
    found = [np.empty((2, 0), np.int64)]
    for size in range(1, runs.length.max(initial=0) + 1):
        long_enough = left[place] >= size
        place, hashes = place[long_enough], hashes[long_enough]
        hashes = _add_word(hashes, word[place + size - 1])
        of_size = slice(*np.searchsorted(runs.length, [size, size + 1]))
        run, at = _join(runs.hash[of_size], hashes)
        run, at, span = run + of_size.start, place[at], np.arange(size)
        # Equal hashes are not enough: the words decide.
        same = runs.stream[runs.start[run][:, None] + span] == word[at[:, None] + span]
        found.append(np.stack([run, at])[:, same.all(axis=1)])
    run, at = np.concatenate(found, axis=1)
    return run, sentence[at]


def _words_left(word: np.ndarray, document: np.ndarray) -> np.ndarray:
    """How many words follow from each place up to an unknown one or the document's end."""
    place = np.arange(len(word))
    ends = np.append(document[1:] != document[:-1], True)[: len(word)]
    stop = np.where(word < 0, place, np.where(ends, place + 1, len(word)))
    return np.minimum.accumulate(stop[::-1])[::-1] - place


def _join(wanted: np.ndarray, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (place in `wanted`, first place in `hashes`) of equal values; `wanted` ascends."""
    values, first = np.unique(hashes, return_index=True)
    _, in_wanted, in_values = np.intersect1d(
        wanted, values, assume_unique=True, return_indices=True
    )
    return in_wanted, first[in_values]


def _add_word(hashes: np.ndarray, word: np.ndarray) -> np.ndarray:
    """The hashes of runs that are one word longer."""
    mixed = (word.astype(np.uint64) + np.uint64(1)) * _FACTORS[0]
    return hashes * _FACTORS[1] + (mixed ^ (mixed >> np.uint64(29)))


def _count_up(counts: np.ndarray) -> np.ndarray:
    """0, 1, ... for each count, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
