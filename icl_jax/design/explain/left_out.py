"""Which sentences are near a query and yet no neighbours of it, and the rule that left them out."""

from typing import NamedTuple

import numpy as np

from icl_jax.corpus.sentence_table import SentenceTable
from icl_jax.design.folders import DesignFolders
from icl_jax.files.step_folder import read_inputs
from icl_jax.retrieval.neighbours import Neighbours
from icl_jax.retrieval.search.duplicates import near_duplicates
from icl_jax.retrieval.search.search import SearchFolders
from icl_jax.retrieval.search.signatures import Signatures
from icl_jax.retrieval.show import nearest
from icl_jax.retrieval.vectors import Vectors

_CANDIDATES = 2048  # nearest sentences that are looked at, as many as by the search at most
_ROUNDING = 1e-5  # of cosines that were computed in another order


class Candidate(NamedTuple):
    """A sentence of the corpus, and its cosine to the query."""

    id: int
    cosine: float


class LeftOut:
    """Looks for them by brute force, among all vectors of the corpus."""

    def __init__(self, folders: DesignFolders, corpus: SentenceTable, own_queries: bool):
        self.neighbours = Neighbours.open(folders.neighbours)
        self.search = read_inputs(folders.neighbours)["search"]
        self.documents, self.own_queries = corpus.documents, own_queries
        places = SearchFolders(folders.neighbours)
        self.pool = self.queries = Signatures.open(places.signatures)
        self.vectors = self.query_vectors = Vectors.open(folders.corpus_vectors)
        if own_queries:
            self.queries = Signatures.open(places.query_signatures)
            self.query_vectors = Vectors.open(folders.query_vectors)

    def around(self, row: int, taken: int) -> tuple[list[Candidate], Candidate | None]:
        """What is nearer to a query than the last neighbour it has taken, and what comes next.

        `row` is the query's place in its table. Sentences that were stored as its neighbours do not
        count.
        """
        found, cosines = self.neighbours.of(row)
        last = cosines[taken - 1] if taken else np.inf
        query = self.query_vectors.take(np.array([row]))[0]
        ids, scores = nearest(self.vectors, query, _CANDIDATES)
        others = ~np.isin(ids, found if self.own_queries else np.append(found, row))
        candidates = [Candidate(*pair) for pair in zip(ids[others].tolist(), scores[others])]
        nearer = [candidate for candidate in candidates if candidate.cosine > last + _ROUNDING]
        return nearer, next(iter(candidates[len(nearer) :]), None)

    def rule(self, row: int, candidate: Candidate) -> str:
        """The rule of the search by which a candidate is no neighbour of a query."""
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
        told = "not measured" if recall is None else f"{recall:.1%}"
        return f"was not found by the search, which is approximate (recall {told})"

    def _is_near(self, signatures: Signatures, ids: np.ndarray, id: int) -> np.ndarray:
        others = np.full(len(ids), id)
        return near_duplicates(signatures, ids, self.pool, others, self.search["duplicate_jaccard"])
