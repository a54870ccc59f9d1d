"""Which sentences say the same: equal words, or nearly equal sets of three consecutive words.

Equal words in equal order are an exact duplicate; the Jaccard index of the sets decides on near
duplicates.
"""

import numpy as np

from icl_jax.retrieval.search.signatures import Signatures

_SORTED_AT_ONCE = 1 << 20  # hashes, about


def near_duplicates(
    a: Signatures, ids_a: np.ndarray, b: Signatures, ids_b: np.ndarray, jaccard: float
) -> np.ndarray:
    """For each pair (ids_a[i] of a, ids_b[i] of b): is the Jaccard index at least `jaccard`?"""
    sizes = a.sizes[ids_a] + b.sizes[ids_b]
    sketch_a, sketch_b = a.sketches[ids_a], b.sketches[ids_b]
    # A bit that only one sketch has stands for a shingle (or more) that only one sentence has, so
    # this many are common at most; so nearly no pair's shingles need to be looked at.
    common = np.minimum(
        a.sizes[ids_a] - np.bitwise_count(sketch_a & ~sketch_b).astype(np.int32),
        b.sizes[ids_b] - np.bitwise_count(sketch_b & ~sketch_a).astype(np.int32),
    )
    close = common / (sizes - common) >= jaccard
    pairs = np.flatnonzero(close)
    if len(pairs):
        common = _count_common(a, ids_a[pairs], b, ids_b[pairs])
        close[pairs] = common / (sizes[pairs] - common) >= jaccard
    return close


def exact_duplicates(
    hashes: np.ndarray, documents: np.ndarray, members: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Among the sentences where `members` holds: the first of each class of equal hashes.

    If a class has sentences in a second document, also (first of the class, first in another
    document): a query in the document of the first takes the other one instead. Ids ascend.
    """
    # Sorted by parts of equal leading bits: all at once would take ten times the memory.
    bits = min(8, max(1, len(hashes) // _SORTED_AT_ONCE).bit_length())
    parts = np.empty(len(hashes), np.uint8)
    for start in range(0, len(hashes), _SORTED_AT_ONCE):
        part = slice(start, start + _SORTED_AT_ONCE)
        parts[part] = hashes[part] >> np.uint64(64 - bits)
    is_first, twins = np.zeros(len(hashes), bool), [np.empty((2, 0), np.int64)]
    for part in range(2**bits):
        ids = np.flatnonzero((parts == part) & members)
        first, of, other = _classes(hashes[ids], documents[ids])
        is_first[ids[first]] = True
        twins.append(np.stack([ids[of], ids[other]]))
    of, other = np.concatenate(twins, axis=1)
    by_id = np.argsort(of)
    return np.flatnonzero(is_first), of[by_id], other[by_id]


def _classes(
    hashes: np.ndarray, documents: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places of the first of each class; of those with a twin elsewhere, and of the twins."""
    order = np.argsort(hashes, kind="stable")
    hashes, documents = hashes[order], documents[order]
    begins = np.append(True, hashes[1:] != hashes[:-1])[: len(order)]
    first = np.flatnonzero(begins)
    group = np.cumsum(begins) - 1
    elsewhere = np.flatnonzero(documents != documents[first[group]])
    groups, earliest = np.unique(group[elsewhere], return_index=True)
    return order[first], order[first[groups]], order[elsewhere[earliest]]


def _count_common(a: Signatures, ids_a: np.ndarray, b: Signatures, ids_b: np.ndarray) -> np.ndarray:
    """The number of common shingles of each pair."""
    keys_a, keys_b = _keys(a, ids_a), _keys(b, ids_b)
    place = np.minimum(np.searchsorted(keys_a, keys_b), len(keys_a) - 1)
    found = keys_b[keys_a[place] == keys_b] >> np.uint64(32)
    return np.bincount(found.astype(np.int64), minlength=len(ids_a))


def _keys(signatures: Signatures, ids: np.ndarray) -> np.ndarray:
    """(pair, shingle) as one number, ascending."""
    pair = np.repeat(np.arange(len(ids), dtype=np.uint64), signatures.sizes[ids])
    return (pair << np.uint64(32)) | signatures.shingles(ids)
