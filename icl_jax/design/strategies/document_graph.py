"""Which documents are related, and how much: a graph made from the neighbours of their sentences.

The weight of two documents is the mean, over the sentences of both, of the similarity of a
sentence's nearest neighbour in the other one; a sentence that has none there counts 0. A plain sum
would tie everything to the longest documents; this one is symmetric and never leaves [0, 1].
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from icl_jax.design.sentences import open_sentences
from icl_jax.files.arrays import map_array, save_array
from icl_jax.retrieval.neighbours import read_shard

MOST_RELATED = 32  # kept of each document, the strongest: the graph must fit into memory
_EDGE = np.dtype([("document", "<i8"), ("other", "<i8"), ("weight", "<f4")])


class Graph:
    """Every edge from both sides: those of document i are at offsets[i] to offsets[i + 1]."""

    def __init__(self, offsets: np.ndarray, others: np.ndarray, weights: np.ndarray):
        self.offsets, self.others, self.weights = offsets, others, weights

    @classmethod
    def of(cls, documents: np.ndarray, others: np.ndarray, weights: np.ndarray, count: int):
        """From edges in any order, each from one side or from both: the largest weight counts.

        With E edges it takes about 80 E bytes for a moment, and keeps 24 E at most.
        """
        keys = np.concatenate([documents * count + others, others * count + documents])
        order = np.argsort(keys, kind="stable")
        keys, weights = keys[order], np.concatenate([weights, weights])[order]
        first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
        weights = np.maximum.reduceat(weights, first) if len(first) else weights
        offsets = np.searchsorted(keys[first], np.arange(count + 1) * count)
        return cls(offsets, keys[first] % count, weights.astype(np.float32))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def degrees(self) -> np.ndarray:
        """How many others each document is related to."""
        return np.diff(self.offsets)

    def related(self, document: int) -> tuple[np.ndarray, np.ndarray]:
        """The documents related to one, ascending, and their weights."""
        part = slice(self.offsets[document], self.offsets[document + 1])
        return self.others[part], self.weights[part]


def relate_shard(workdir: str, fingerprint: str, neighbours: str, folder: str, index: int) -> None:
    """Writes what the sentences of one shard add to the weights; `neighbours` is a folder."""
    corpus = open_sentences(workdir, fingerprint).corpus
    found = read_shard(Path(neighbours), index)
    first, documents = corpus.starts[index], corpus.documents
    sentence = first + np.repeat(np.arange(len(found)), np.diff(found["ids"].offsets.to_numpy()))
    other = documents[found["ids"].values.to_numpy()]
    similarity = np.maximum(found["similarities"].values.to_numpy(), 0).astype(np.float64)
    elsewhere = documents[sentence] != other
    sentence, other, similarity = (x[elsewhere] for x in (sentence, other, similarity))

    order = np.lexsort((-similarity, other, sentence))
    sentence, other, similarity = (x[order] for x in (sentence, other, similarity))
    nearest = np.ones(len(order), bool)
    nearest[1:] = (sentence[1:] != sentence[:-1]) | (other[1:] != other[:-1])
    document, other, similarity = documents[sentence[nearest]], other[nearest], similarity[nearest]

    order = np.lexsort((other, document))
    document, other, similarity = (x[order] for x in (document, other, similarity))
    begins = np.ones(len(order), bool)
    begins[1:] = (document[1:] != document[:-1]) | (other[1:] != other[:-1])
    edges = np.empty(begins.sum(), _EDGE)
    edges["document"], edges["other"] = document[begins], other[begins]
    if len(edges):
        sums = np.add.reduceat(similarity, np.flatnonzero(begins))
        sizes = [_sizes(documents, edges[side]) for side in ("document", "other")]
        edges["weight"] = sums / (sizes[0] + sizes[1])
    order = np.lexsort((edges["document"], edges["other"]))
    save_array(_side_file(Path(folder), index), edges[order])


def add_sides(workdir: str, fingerprint: str, folder: str, index: int) -> None:
    """Writes the strongest edges of the documents of one shard, with what both sides add to them.

    Every shard must have been related first: edges cut off earlier would have one side only.
    """
    corpus = open_sentences(workdir, fingerprint).corpus
    documents = corpus.document_starts[index : index + 2]
    parts = [np.load(_side_file(Path(folder), index))]
    for shard in range(corpus.num_shards):
        sides = map_array(_side_file(Path(folder), shard))
        found = np.array(sides[slice(*np.searchsorted(sides["other"], documents))])
        found["document"], found["other"] = found["other"].copy(), found["document"].copy()
        parts.append(found)
    edges = _concatenate(parts)
    edges = edges[np.lexsort((edges["other"], edges["document"]))]
    begins = np.ones(len(edges), bool)
    begins[1:] = (edges["document"][1:] != edges["document"][:-1]) | (
        edges["other"][1:] != edges["other"][:-1]
    )
    joined = edges[begins]
    if len(joined):
        joined["weight"] = np.add.reduceat(edges["weight"], np.flatnonzero(begins))
    save_array(_edge_file(Path(folder), index), _strongest(joined))


def has_sides(folder: Path, index: int) -> bool:
    """Whether a shard is related."""
    return _side_file(folder, index).exists()


def has_edges(folder: Path, index: int) -> bool:
    """Whether the edges of a shard are whole."""
    return _edge_file(folder, index).exists()


def join_shards(folder: Path, num_shards: int, members: np.ndarray, count: int) -> Graph:
    """The graph of `count` documents, with edges between `members` only."""
    edges = _concatenate([np.load(_edge_file(folder, index)) for index in range(num_shards)])
    is_member = np.zeros(count, bool)
    is_member[members] = True
    edges = edges[is_member[edges["document"]] & is_member[edges["other"]]]
    return Graph.of(edges["document"], edges["other"], edges["weight"], count)


def _strongest(edges: np.ndarray) -> np.ndarray:
    order = np.lexsort((edges["other"], -edges["weight"], edges["document"]))
    edges = edges[order]
    rank = np.arange(len(edges)) - np.searchsorted(edges["document"], edges["document"])
    return edges[rank < MOST_RELATED]


def _sizes(documents: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """How many sentences the `wanted` documents have; `documents` are those of all sentences."""
    return np.searchsorted(documents, wanted, "right") - np.searchsorted(documents, wanted)


def _concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, _EDGE), *parts])


def _side_file(folder: Path, index: int) -> Path:
    return folder / f"sides-{index:05d}.npy"


def _edge_file(folder: Path, index: int) -> Path:
    return folder / f"edges-{index:05d}.npy"
