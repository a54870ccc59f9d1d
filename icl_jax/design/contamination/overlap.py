"""Which items of evaluation files occur in the corpus (n-gram contamination).

An item overlaps if one of its fields shares `overlap_words` consecutive words with a document; a
shorter field, if all of it occurs there and it has at least 4 words. A run of words may continue
into the next sentence of its document, because running text holds both; the sentence in which it
begins is reported. All sentences are searched, whether or not an arm uses them.
"""

import functools
import os
from pathlib import Path

import numpy as np

from icl_jax.config import CorpusConfig, ExamplesConfig
from icl_jax.corpus.files import describe_files, file_version
from icl_jax.corpus.words import RULES_VERSION as WORD_RULES
from icl_jax.design.contamination.evaluation_items import Item, find_evaluation_files, read_items
from icl_jax.design.contamination.word_runs import MIN_WORDS, Runs, collect_runs, find_runs
from icl_jax.design.folders import DesignFolders
from icl_jax.design.sentences import Sentences, open_sentences
from icl_jax.files.arrays import save_array
from icl_jax.files.step_folder import StepFolder, once
from icl_jax.workers.local import Runner
from icl_jax.workers.shards import make_shards

_RULES_VERSION = 2  # of what an item is; raise it when that changes
_RUNS = "runs.npz"
_SAMPLES = 5  # of each file
_SAMPLE_CHARACTERS = 500


def check_evaluation_files(examples: ExamplesConfig) -> None:
    """Stops if one of the files is missing, or is not readable as text to its end."""
    for file in find_evaluation_files(examples.evaluation_files):
        read_items(file)


def find_overlap(
    workdir: str | os.PathLike, examples: ExamplesConfig, sentences: Sentences, runner: Runner
) -> dict:
    """For each evaluation file: how many items it has, how many overlap, and some of these."""
    folder = DesignFolders(workdir).overlap
    files = find_evaluation_files(examples.evaluation_files)
    step = StepFolder(
        folder,
        {
            "sentences": sentences.fingerprint,
            "files": describe_files(CorpusConfig(files=tuple(files), format="text")),
            "overlap_words": examples.overlap_words,
            "min_words": MIN_WORDS,
            "rules": _RULES_VERSION,
            "words": WORD_RULES,
        },
    )
    if step.results is None:
        read = {file: read_items(file) for file in files}
        fields = [item.fields for items in read.values() for item in items]
        runs = collect_runs(fields, examples.overlap_words)
        once(folder, runs.save, folder / _RUNS)
        num_shards = _search(str(workdir), sentences, runner, folder)

        def compare() -> dict:
            hits = [np.load(_shard_file(folder, index)) for index in range(num_shards)]
            hits = _best_of_each(np.concatenate(hits, axis=1), runs)
            return _results(read, hits, runs, examples.overlap_words)

        step.complete(compare)
    return step.results


def search_shard(
    workdir: str, fingerprint: str, folder: str, index: int, table: int, shard: int
) -> None:
    """Writes which items overlap with one shard: three rows, item, sentence and run."""
    sentences = open_sentences(workdir, fingerprint)
    source = sentences.tables[table]
    first, last = source.starts[shard], source.starts[shard + 1]
    runs_file = str(Path(folder) / _RUNS)
    runs = _open_runs(runs_file, file_version(runs_file))
    run, row = find_runs(runs, source.texts(shard), source.documents[first:last])
    sentence = row + first + (len(sentences.corpus) if table else 0)
    count = runs.offsets[run + 1] - runs.offsets[run]
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    item = runs.items[np.repeat(runs.offsets[run], count) + within]
    hits = np.stack([item, np.repeat(sentence, count), np.repeat(run, count)])
    hits = _best_of_each(hits, runs)
    save_array(_shard_file(Path(folder), index), hits)


def _search(workdir: str, sentences: Sentences, runner: Runner, folder: Path) -> int:
    """Finds the hits in all shards, those of the corpus first; how many shards there are."""
    places = [(t, s) for t, table in enumerate(sentences.tables) for s in range(table.num_shards)]
    sizes = [int(size) for table in sentences.tables for size in np.diff(table.starts)]
    make_shards(
        "overlap", folder, sizes, lambda i: _shard_file(folder, i).exists(), search_shard,
        lambda i: (workdir, sentences.fingerprint, str(folder), i, *places[i]), runner,
    )  # fmt: skip
    return len(places)


def _best_of_each(hits: np.ndarray, runs: Runs) -> np.ndarray:
    """For each item, ascending, the longest run, and the first sentence with one of that length."""
    item, sentence, run = hits
    hits = hits[:, np.lexsort((run, sentence, -runs.length[run], item))]
    return hits[:, np.unique(hits[0], return_index=True)[1]]


@functools.lru_cache(maxsize=1)
def _open_runs(file: str, version: tuple[int, int]) -> Runs:
    """Kept from shard to shard."""
    return Runs.open(Path(file))


def _shard_file(folder: Path, index: int) -> Path:
    return folder / f"overlap-{index:05d}.npy"


def _results(read: dict[str, list[Item]], hits: np.ndarray, runs: Runs, overlap_words: int) -> dict:
    compared = np.unique(runs.items)
    files, first = {}, 0
    for file, items in read.items():
        span = [first, first + len(items)]
        own = hits[:, slice(*np.searchsorted(hits[0], span))]
        num_compared = int(np.diff(np.searchsorted(compared, span))[0])
        found = own.shape[1]
        shown = np.linspace(0, found - 1, min(_SAMPLES, found)).astype(int)
        files[file] = {
            "items": len(items),
            "too_short": len(items) - num_compared,
            "overlapping": found,
            "by_long_run": int((runs.length[own[2]] == overlap_words).sum()),
            "share": round(found / max(1, len(items)), 6),
            "samples": [
                _sample(items[item - first], sentence, runs.text(run))
                for item, sentence, run in own[:, shown].T.tolist()
            ],
        }
        first += len(items)
    return {"overlap_words": overlap_words, "min_words": MIN_WORDS, "files": files}


def _sample(item: Item, sentence: int, words: str) -> dict:
    text = item.text[:_SAMPLE_CHARACTERS]
    return {"place": item.place, "text": text, "sentence": sentence, "words": words}
