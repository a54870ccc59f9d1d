"""What is counted in the records of an arm, shard by shard, and the sums that its results tell."""

from collections.abc import Sequence

import numpy as np

from icl_jax.design.records.packing import Piece
from icl_jax.retrieval.neighbours import SIMILARITY_EDGES
from icl_jax.retrieval.search.signatures import mix

_LENGTH_BINS = 32


def count_groups(groups: Sequence[Sequence[Piece]], row_length: int) -> dict:
    """The counts of some groups, each given by its examples."""
    pieces = [piece for group in groups for piece in group]
    ids = [piece.sentence_ids for piece in pieces]
    sizes = [sum(len(piece.sentence_ids) for piece in group) for group in groups]
    tokens = np.array([sum(len(piece.example.tokens) for piece in group) for group in groups])
    first = np.cumsum([0, *sizes[:-1]])  # of each group: its query
    scores = np.delete(np.concatenate([piece.similarities for piece in pieces]), first)
    # Rounding may take a cosine above 1.
    scores = np.clip(scores[~np.isnan(scores)], -1, 1)
    lengths = np.bincount(_length_bin(tokens, row_length), minlength=_LENGTH_BINS)
    return {
        "groups": len(groups),
        "sentences": sum(sizes),
        "tokens": int(tokens.sum()),
        "longest_group": int(tokens.max()),
        "sentence_multiset": multiset(np.concatenate(ids)),
        "sentences_per_group": np.bincount(sizes).tolist(),
        "tokens_per_group": lengths.tolist(),
        "similarities": np.histogram(scores, SIMILARITY_EDGES)[0].tolist(),
    }


def add_up(counts: Sequence[dict], row_length: int) -> dict:
    """The results of an arm from the counts of its shards, `records` and `rows` among them."""
    total = {
        name: sum(shard[name] for shard in counts)
        for name in ("groups", "records", "rows", "sentences", "tokens")
    }
    total["filled"] = round(total["tokens"] / (total["rows"] * row_length), 4)
    total["shards"] = len(counts)
    total["longest_group"] = max(shard["longest_group"] for shard in counts)  # tokens
    checksum = sum(int(shard["sentence_multiset"], 16) for shard in counts) % 2**64
    total["sentence_multiset"] = f"{checksum:016x}"
    # Entry n: groups of n sentences.
    total["sentences_per_group"] = _add_lists([shard["sentences_per_group"] for shard in counts])
    # Bin i: above edge i, up to edge i + 1.
    total["tokens_per_group_edges"] = [
        row_length * i / _LENGTH_BINS for i in range(_LENGTH_BINS + 1)
    ]
    total["tokens_per_group_counts"] = _add_lists([shard["tokens_per_group"] for shard in counts])
    # Of the sentences that were chosen by one: not of queries, nor of running text.
    total["similarity_edges"] = SIMILARITY_EDGES.tolist()
    total["similarity_counts"] = _add_lists([shard["similarities"] for shard in counts])
    return total


def multiset(ids: np.ndarray) -> str:
    """A checksum of ids, each as often as it comes, in any order."""
    mixed = mix(ids.astype(np.uint64))  # sums of plain ids would collide
    return f"{int(mixed.sum(dtype=np.uint64)):016x}"


def _length_bin(tokens: np.ndarray, row_length: int) -> np.ndarray:
    # In batch, each sentence has special tokens of its own: their sum may pass a row.
    return np.minimum((tokens - 1) * _LENGTH_BINS // row_length, _LENGTH_BINS - 1)


def _add_lists(lists: Sequence[list[int]]) -> list[int]:
    total = np.zeros(max(map(len, lists)), np.int64)
    for values in lists:
        total[: len(values)] += values
    return total.tolist()
