"""Short TF-IDF vectors: they need nothing but the corpus, and know words, not meanings.

The leading directions of the weighted words are kept exactly (SVD), and the rest by random signs:
a truncated SVD alone forgets names, because each of them is rare. A sentence
without a known word (only stop words, say) is a zero row and has no neighbours. What a word is,
`corpus/words.py` says; those of one letter are left out, unless their script has no spaces.
"""

from collections.abc import Callable, Iterable, Sequence
import hashlib
import json
from pathlib import Path
import random

import numpy as np
import pyarrow as pa
import scipy.sparse
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer
from sklearn.preprocessing import normalize
from sklearn.utils.extmath import randomized_svd
from threadpoolctl import threadpool_limits

from icl_jax.config import EncoderConfig, StageError
from icl_jax.corpus.words import RULES_VERSION, UNSPACED, split_words, words_of
from icl_jax.files.arrays import save_array
from icl_jax.files.mirror import fetch
from icl_jax.files.step_folder import beside, write_json

MAX_SAMPLE = 200_000  # sentences that it is fitted on
MAX_TERMS = 100_000  # the most frequent ones
# Chosen on 80,000 sentences of Wikipedia, measured on 80,000 others, 256 dimensions: the sentence
# nearest to "What is known about TITLE?" is of that article for 90% of 400 titles (all 256 by SVD,
# plain idf: 10%; none by SVD: 91%, but then neighbours are less related by a MiniLM's cosine).
IDF_POWER = 2.0  # rare words count more than in a search engine, where queries are short
# Where all directions fit, names need no such help against the noise of random signs: on 80,012
# sentences of Wikipedia 82% of 400 titles are found with 1.5 and 83% with 2, but by 256 dimensions
# 59% and 84%. The other words then count for more: what is said about somebody, not only the name.
IDF_POWER_EXACT = 1.5
SVD_SHARE = 1 / 8  # of the dimensions, where not all directions fit
REST_WEIGHT = 0.5  # of what the SVD leaves
_CHUNK = 8192  # sentences weighted at a time


def fit_tfidf(
    texts: Iterable[str], config: EncoderConfig, folder: Path, seed: int, language: str = "en"
) -> None:
    """Fits the encoder on a sample of the texts and writes it; `tfidf.json` comes last."""
    sample = _sample(texts, seed)
    counter = _counter(language)
    try:
        counts = counter.fit_transform(sample)
    except ValueError:
        raise StageError(
            f"TF-IDF found no word in {len(sample):,} sentences; expected text with words of two "
            "letters or more, other than stop words: check the corpus, or name an encoder.folder"
        ) from None
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    power = IDF_POWER_EXACT if _all_fit(counts, config.tfidf_dim) else IDF_POWER
    idf = (np.log((1 + len(sample)) / (1 + frequency)) + 1).astype(np.float32) ** power
    with threadpool_limits(1):  # the sums of more threads would differ in the last bits
        components = _components(_weigh(counts, idf), config.tfidf_dim, seed)
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in {"idf": idf, "components": components}.items():
        save_array(folder / f"{name}.npy", array)
    with beside(folder / "terms.json") as partial:
        partial.write_text(json.dumps(counter.get_feature_names_out().tolist()))
    settings = {"language": language, "sentences": len(sample), "words": RULES_VERSION}
    write_json(folder / "tfidf.json", settings)


class TfidfEncoder:
    """The encoder that `fit_tfidf` wrote into a folder."""

    def __init__(self, folder: Path):
        fetch(folder)
        if not (folder / "tfidf.json").exists():
            raise StageError(f"{folder} holds no fitted TF-IDF; run --stages=design to its end")
        settings = json.loads((folder / "tfidf.json").read_text())
        terms = json.loads((folder / "terms.json").read_text())
        self._columns = {term: column for column, term in enumerate(terms)}
        self._idf = np.load(folder / "idf.npy")
        self._components = np.load(folder / "components.npy")
        self.width = self._components.shape[1]
        digest = hashlib.sha256((folder / "terms.json").read_bytes())
        digest.update(self._idf.tobytes())
        digest.update(self._components.tobytes())
        self.identity = {"kind": "tfidf", "checksum": digest.hexdigest(), **settings}

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        """Float32 (n, width) in the order of the texts; `progress` hears of each part's size."""
        vectors = np.zeros((len(texts), self.width), np.float32)
        for start in range(0, len(texts), _CHUNK):
            part = texts[start : start + _CHUNK]
            weighted = _weigh(_count(part, self._columns), self._idf)
            vectors[start : start + len(part)] = weighted @ self._components
            if progress:
                progress(len(part))
        return vectors


def _counter(language: str) -> CountVectorizer:
    stop_words = ENGLISH_STOP_WORDS if language == "en" else frozenset()

    def terms(text: str) -> list[str]:
        found = [word for word in words_of(text) if len(word) > 1 or UNSPACED.fullmatch(word)]
        return [word for word in found if word not in stop_words]

    return CountVectorizer(analyzer=terms, max_features=MAX_TERMS, dtype=np.float32)


def _count(texts: Sequence[str], columns: dict[str, int]) -> scipy.sparse.csr_matrix:
    """(texts, terms): how often each occurs, faster than the vectoriser does it."""
    vocabulary, ids, lengths = split_words(pa.array(texts, pa.large_string()))
    column = np.array([columns.get(word, -1) for word in vocabulary.to_pylist()], np.int32)[ids]
    known = column >= 0
    place = np.repeat(np.arange(len(texts), dtype=np.int32), lengths)[known], column[known]
    ones = np.ones(len(place[0]), np.float32)
    return scipy.sparse.csr_matrix((ones, place), (len(texts), len(columns)))


def _weigh(counts: scipy.sparse.csr_matrix, idf: np.ndarray) -> scipy.sparse.csr_matrix:
    """(1 + log count) * idf, rows of length 1."""
    counts.data = (1 + np.log(counts.data)) * idf[counts.indices]
    return normalize(counts, copy=False)


def _all_fit(counts: scipy.sparse.csr_matrix, width: int) -> bool:
    return min(counts.shape) <= width


def _components(weighted: scipy.sparse.csr_matrix, width: int, seed: int) -> np.ndarray:
    """(terms, width); where all directions fit, nothing is lost."""
    all_fit = _all_fit(weighted, width)
    exact = min(weighted.shape) if all_fit else max(1, round(width * SVD_SHARE))
    _, values, directions = randomized_svd(weighted, exact, n_iter=4, random_state=seed % 2**32)
    leading = directions[values > values[0] * 1e-5].T.astype(np.float32)
    if all_fit:
        return leading
    signs = np.random.RandomState(seed % 2**32).choice([-1, 1], (weighted.shape[1], width - exact))
    signs = signs.astype(np.float32) * np.float32(REST_WEIGHT / (width - exact) ** 0.5)
    return np.hstack([leading, signs - leading @ (leading.T @ signs)])


def _sample(texts: Iterable[str], seed: int) -> list[str]:
    """All texts, or a uniform sample of them in the order of the corpus."""
    draw, kept = random.Random(seed).random, []
    for place, text in enumerate(texts):
        if place < MAX_SAMPLE:
            kept.append((place, text))
        elif (slot := int(draw() * (place + 1))) < MAX_SAMPLE:
            kept[slot] = (place, text)
    return [text for _, text in sorted(kept)]
