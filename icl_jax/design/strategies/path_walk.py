"""The greedy walk over a graph of documents: step by step, in a single process.

A step takes about 20 microseconds, with diversity 50 to 160 (short documents): 6 million documents
take 2 minutes, or 5 to 16. Their graph with 20 edges from each takes 3 GB, and 10 while it is made.
"""

from collections.abc import Callable

import numpy as np

from icl_jax.design.groups import NO_SCORE
from icl_jax.design.strategies.document_graph import Graph


def walk(
    graph: Graph,
    members: np.ndarray,
    tokens: np.ndarray,
    limit: int,
    diversity: float,
    seed: int,
    progress: Callable[[int], None] = lambda count: None,
) -> tuple[np.ndarray, np.ndarray]:
    """All `members` in the order of the path, and the weight of the edge that led to each.

    From a document the walk continues to the unvisited one of largest

        weight(current, next) - diversity * max weight(next, documents of the context before),

    ties to the lower id. Contexts have `limit` of the `tokens` of the documents. The weight is
    NaN where the walk starts again.
    """
    degrees = graph.degrees[members]
    by_degree = members[np.argsort(degrees, kind="stable")]
    linked = by_degree[np.count_nonzero(degrees == 0) :]
    alone = np.random.RandomState(seed % 2**32).permutation(members[degrees == 0])
    visited = np.zeros(len(graph), bool)
    starts, path, weights = iter(linked.tolist()), _Path(graph, tokens, limit), []
    for _ in range(len(linked)):
        document, weight = path.step(visited, diversity)
        if document is None:
            document, weight = next(start for start in starts if not visited[start]), NO_SCORE
        visited[document] = True
        path.add(document)
        weights.append(weight)
        progress(1)
    progress(len(alone))
    order = np.concatenate([np.array(path.documents, np.int64), alone.astype(np.int64)])
    return order, np.append(weights, np.full(len(alone), NO_SCORE)).astype(np.float32)


class _Path:
    """The documents so far, and where in it contexts begin and end."""

    def __init__(self, graph: Graph, tokens: np.ndarray, limit: int):
        self.graph, self.tokens, self.limit = graph, tokens, limit
        self.documents: list[int] = []
        self.ends: list[int] = [0]  # tokens of the path before each document, and of all
        self.first = self.last = 0  # documents of the context before

    def add(self, document: int) -> None:
        self.documents.append(document)
        self.ends.append(self.ends[-1] + int(self.tokens[document]))

    def step(self, visited: np.ndarray, diversity: float) -> tuple[int | None, np.float32]:
        """The next document and the weight that leads to it; None: no related one is left."""
        if not self.documents:
            return None, NO_SCORE
        others, weights = self.graph.related(self.documents[-1])
        free = ~visited[others]
        others, weights = others[free], weights[free]
        if not len(others):
            return None, NO_SCORE
        scores = weights - diversity * self._likeness(others) if diversity else weights
        best = int(np.argmax(scores))
        return int(others[best]), weights[best]

    def _likeness(self, candidates: np.ndarray) -> np.ndarray:
        """The largest weight of each candidate with a document of the context before."""
        largest = np.zeros(len(candidates), np.float32)
        for document in self._context_before():
            others, weights = self.graph.related(document)
            place = np.minimum(np.searchsorted(others, candidates), len(others) - 1)
            related = others[place] == candidates
            largest[related] = np.maximum(largest[related], weights[place[related]])
        return largest

    def _context_before(self) -> list[int]:
        """The documents of the context before the one in which the next document will begin.

        The current document does not count, or the walk would avoid what it looks for; if it fills
        that context alone, the document before it counts instead.
        """
        begin = self.ends[-1] // self.limit * self.limit
        while self.ends[self.first + 1] <= begin - self.limit:
            self.first += 1
        while self.last < len(self.documents) and self.ends[self.last] < begin:
            self.last += 1
        current = len(self.documents) - 1
        return self.documents[min(self.first, max(0, current - 1)) : min(self.last, current)]
