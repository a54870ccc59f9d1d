"""Why a group holds no further sentence: what would have come next, and what kept it out.

Each strategy gives the reasons for its own groups; here is what several of them need for it.
"""

import functools
from pathlib import Path
import textwrap
from typing import NamedTuple

import numpy as np

from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.design.folders import DesignFolders
from icl_jax.design.records.layout import Marks
from icl_jax.design.sentences import Sentences
from icl_jax.design.strategies.strategy import open_strategy
from icl_jax.files.step_folder import read_inputs
from icl_jax.retrieval.neighbours import Neighbours
from icl_jax.retrieval.search.duplicates import near_duplicates
from icl_jax.retrieval.search.search import SearchFolders
from icl_jax.retrieval.search.signatures import Signatures
from icl_jax.retrieval.show import nearest, plain
from icl_jax.retrieval.vectors import Vectors

_CANDIDATES = 2048  # nearest sentences to look at: as many as the search takes at most
_ROUNDING = 1e-5  # of cosines that are computed in another order
_SHOWN = 60  # characters of a sentence


class Reasons:
    """The reasons for the groups of one strategy."""

    def __init__(self, workdir: str, strategy: str, sentences: Sentences):
        self.workdir, self.folders, self.sentences = workdir, DesignFolders(workdir), sentences
        self.strategy = open_strategy(strategy)
        self.limit = read_inputs(self.folders.groups / strategy)["limit"]  # tokens of an example
        self.tokenizer = Tokenizer.open(self.folders.tokenizer)
        self.marks = Marks.of(self.tokenizer)

    def explain(self, ids: np.ndarray, num_tokens: int) -> str:
        """For a group of these sentences, which in context is an example of so many tokens."""
        return self.strategy.why_no_more(self, ids.tolist(), self.limit - num_tokens)

    def related(self, folder: Path, query: int) -> tuple[np.ndarray, np.ndarray]:
        """The sentences that a search stored for a query, and their scores."""
        return Neighbours.open(folder).of(query - self.sentences.first_query)

    def did_not_fit(self, found: np.ndarray, scores: np.ndarray, taken: int, left: int) -> str:
        """The next that was stored did not fit; empty if all are here."""
        if taken == len(found):
            return ""
        length = int(self.sentences.lengths_of(found[taken]))
        return (
            f"the next neighbour #{found[taken]} ({scores[taken]:.3f}) has {length} tokens and a "
            f"separator, but only {left} of {self.limit} were left"
        )

    @functools.cached_property
    def nearby(self) -> "Nearby":
        return Nearby(self.folders, self.sentences)


class Candidate(NamedTuple):
    """A sentence of the corpus, and its cosine to the query."""

    id: int
    cosine: float


class Nearby:
    """What is near a query and yet no neighbour of it, by brute force over the whole corpus."""

    def __init__(self, folders: DesignFolders, sentences: Sentences):
        self.sentences, own_queries = sentences, sentences.queries is not None
        self.neighbours = Neighbours.open(folders.neighbours)
        self.search = read_inputs(folders.neighbours)["search"]
        self.documents, self.own_queries = sentences.corpus.documents, own_queries
        places = SearchFolders(folders.neighbours)
        self.pool = self.queries = Signatures.open(places.signatures)
        self.vectors = self.query_vectors = Vectors.open(folders.corpus_vectors)
        if own_queries:
            self.queries = Signatures.open(places.query_signatures)
            self.query_vectors = Vectors.open(folders.query_vectors)

    def around(self, query: int, taken: int) -> tuple[list[Candidate], Candidate | None]:
        """What is nearer to a query than the last neighbour it has taken, and what comes next.

        Sentences that were stored as its neighbours do not count.
        """
        row = query - self.sentences.first_query
        found, cosines = self.neighbours.of(row)
        last = cosines[taken - 1] if taken else np.inf
        vector = self.query_vectors.take(np.array([row]))[0]
        ids, scores = nearest(self.vectors, vector, _CANDIDATES)
        others = ~np.isin(ids, found if self.own_queries else np.append(found, row))
        candidates = [Candidate(*pair) for pair in zip(ids[others].tolist(), scores[others])]
        nearer = [candidate for candidate in candidates if candidate.cosine > last + _ROUNDING]
        return nearer, next(iter(candidates[len(nearer) :]), None)

    def describe(self, query: int, candidate: Candidate) -> str:
        """A candidate, and the rule that left it out."""
        text = plain(self.sentences.text(candidate.id))
        text = textwrap.shorten(text, _SHOWN, placeholder="...")
        rule = self.rule(query - self.sentences.first_query, candidate)
        return f'#{candidate.id} ({candidate.cosine:.3f}, "{text}"), {rule}'

    def rule(self, row: int, candidate: Candidate) -> str:
        """The rule of the search by which a candidate is no neighbour of a query.

        `row` is the query's place in its table.
        """
        id, cosine = candidate
        found, cosines = self.neighbours.of(row)
        if cosine <= self.search["min_similarity"] + _ROUNDING:
            threshold = self.search["min_similarity"]
            return f"is not above design.search.min_similarity = {threshold:g}"
        if self.pool.hashes[id] == self.queries.hashes[row]:
            return "has the same words as the query"
        elsewhere = self.own_queries or self.documents[id] != self.documents[row]
        if not (elsewhere or self.search["same_document"]):
            return "is in the query's own document"
        if self._is_near(self.queries, np.array([row]), id).any():
            return "is a near duplicate of the query"
        same = found[self.pool.hashes[found] == self.pool.hashes[id]]
        if len(same):
            return f"has the same words as the neighbour #{same[0]}"
        nearer = found[cosines >= cosine - _ROUNDING]
        near = nearer[self._is_near(self.pool, nearer, id)]
        if len(near):
            return f"is a near duplicate of the nearer neighbour #{near[0]}"
        if len(nearer) >= self.search["neighbours"]:
            return f"is one more than design.search.neighbours = {self.search['neighbours']}"
        recall = self.neighbours.results["recall"].get("neighbours")
        measured = "not measured" if recall is None else f"{recall:.1%}"
        return f"was not found by the search, which is approximate (recall {measured})"

    def _is_near(self, signatures: Signatures, ids: np.ndarray, id: int) -> np.ndarray:
        others = np.full(len(ids), id)
        return near_duplicates(signatures, ids, self.pool, others, self.search["duplicate_jaccard"])
