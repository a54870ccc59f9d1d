"""Names and words of sentences, and the index of the rare ones: term -> sentences that have it.

Names are runs of capitalised words, and words that are capitalised inside sentences more often than
not. At the beginning of a sentence a capital says nothing: a run counts there without its first
word, and with it only if it also occurs inside another sentence ("Marie Curie", not "The
Ministry"). In scripts without capitals every word may be a name; in those without spaces, pairs of
letters count as words. Terms are identified by 64 bits of their hash.

Map: `index_shard` writes the terms of a shard, sorted. Reduce: `join_part` takes one part of the
hashes from all shards and keeps the rare ones.
"""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icl_jax.corpus.words import UNSPACED
from icl_jax.design.sentences import open_sentences
from icl_jax.files.step_folder import beside

RULES_VERSION = 3  # raise it when a sentence could get other terms
LONGEST_NAME = 5  # words; a longer run is a heading or a slogan
# An ordinary word says less than a name that is as rare ("stations", "Edmonton"): it counts only in
# a quarter as many documents, and then half as much.
WORD_SHARE, NAME_WEIGHT = 4, 2
_BREAK = "|"  # where punctuation separates names


def split_words(texts: pa.Array) -> list[list[str]]:
    """The words of each text as they are written, and `|` where punctuation separates them."""
    texts = pc.utf8_normalize(texts.cast(pa.large_string()), "NFKC")
    texts = pc.replace_substring_regex(texts, "['\u2019\u2010-]", " ")
    texts = pc.replace_substring_regex(texts, r"[^\pL\pM\pN\s]+", f" {_BREAK} ")
    return [text.split() for text in texts.to_pylist()]


def find_terms(words: list[str]) -> dict[str, int]:
    """The terms of a sentence, in lower case; 1: it looks like a name, -1: it does not, 0: unknown.

    Numbers and single letters are none.
    """
    terms: dict[str, int] = {}
    run: list[str] = []
    for place, word in enumerate([*words, _BREAK]):
        lower, capitalised = word.lower(), word[0].isupper()
        if run and not capitalised:
            terms |= _names(run, at_start=place == len(run))
            run = []
        if capitalised:
            run.append(lower)
        if UNSPACED.search(word):
            for part in UNSPACED.findall(word):
                terms |= {part[i : i + 2]: 1 for i in range(len(part) - 1)}
        elif len(word) > 1 and not word.isnumeric():
            caseless = lower == word.upper()
            vote = 1 if caseless or (capitalised and place) else 0 if capitalised else -1
            terms[lower] = max(vote, terms.get(lower, vote))
    return terms


def index_shard(
    workdir: str, fingerprint: str, of_queries: bool, most: int, folder: str, index: int
) -> None:
    """Writes the terms of the sentences of one shard of the corpus (or the queries), sorted.

    Of a term in more than `most` documents of the corpus only enough is kept to show that it is.
    Queries keep all of theirs: the corpus alone decides how rare a term is.
    """
    sentences = open_sentences(workdir, fingerprint)
    table = sentences.queries if of_queries else sentences.corpus
    first, hashes = table.starts[index], {}
    found, votes, sizes = [], [], []
    for words in split_words(table.texts(index)):
        terms = find_terms(words)
        sizes.append(len(terms))
        votes.extend(terms.values())
        for term in terms:
            if term not in hashes:
                digest = hashlib.blake2b(term.encode(), digest_size=8).digest()
                hashes[term] = int.from_bytes(digest, "little")
            found.append(hashes[term])
    terms = np.array(found, np.uint64)
    ids = first + np.repeat(np.arange(len(sizes)), np.array(sizes, np.int64))
    order = np.lexsort((ids, terms))
    terms, ids = terms[order], ids[order]
    documents = table.documents[ids]
    kept = np.ones(len(terms), bool)
    if not of_queries:
        place, count, opens = _count_documents(terms, documents)
        kept = (count <= most) | (opens & (place <= most))
    columns = {"term": terms, "sentence": ids, "document": documents}
    columns["vote"] = np.array(votes, np.int8)[order]
    columns = {name: column[kept] for name, column in columns.items()}
    _write(terms_file(Path(folder), of_queries, index), pa.record_batch(columns))


def join_part(
    folder: str, num_shards: int, num_documents: int, least: int, most: int, parts: int, index: int
) -> None:
    """Writes the names of one part that `least` to `most` documents have, and its rarer words."""
    shards = [read_table(terms_file(Path(folder), False, shard)) for shard in range(num_shards)]
    slices = [shard.slice(*_slice(shard["term"], parts, index)) for shard in shards]
    joined = pa.Table.from_batches(slices)
    columns = [joined[name].to_numpy() for name in ("term", "sentence", "document", "vote")]
    order = np.argsort(columns[0], kind="stable")  # sentences ascend from shard to shard
    terms, ids, documents, votes = (column[order] for column in columns)
    _, count, _ = _count_documents(terms, documents)
    _, first, size = np.unique(terms, return_index=True, return_counts=True)
    if len(first):
        known = np.repeat(np.bitwise_or.reduceat(votes, first) != 0, size)
        named = np.repeat(np.add.reduceat(votes.astype(np.int64), first) > 0, size)
    else:
        known = named = np.zeros(0, bool)
    rare = (count >= least) & (count <= np.where(named, most, max(least, most // WORD_SHARE)))
    rare &= known
    terms, first = np.unique(terms[rare], return_index=True)
    offsets = pa.array(np.append(first, rare.sum()))
    lists = [pa.LargeListArray.from_arrays(offsets, pa.array(x[rare])) for x in (ids, documents)]
    weights = np.log(1 + num_documents / count[rare][first])  # smoothed: never 0
    weights *= np.where(named[rare][first], NAME_WEIGHT, 1)
    columns = {"term": terms, "weight": weights, "sentences": lists[0], "documents": lists[1]}
    _write(part_file(Path(folder), index), pa.record_batch(columns))


def part_of(terms: np.ndarray, parts: int) -> np.ndarray:
    """Which part each term is in; parts ascend with the terms."""
    return ((terms >> np.uint64(32)) * np.uint64(parts)) >> np.uint64(32)


def terms_file(folder: Path, of_queries: bool, index: int) -> Path:
    """The file of the terms of a shard."""
    return folder / f"{'query_terms' if of_queries else 'terms'}-{index:05d}.arrow"


def part_file(folder: Path, index: int) -> Path:
    """The file of the rare terms of a part."""
    return folder / f"rare-{index:05d}.arrow"


def read_table(file: Path) -> pa.RecordBatch:
    """One of these files, memory-mapped."""
    with pa.memory_map(str(file)) as mapped:  # what is mapped stays when it is closed
        return pa.ipc.open_file(mapped).get_batch(0)


def _names(run: list[str], at_start: bool) -> dict[str, int]:
    runs = [(run, 0), (run[1:], 1)] if at_start else [(run, 1)]
    return {" ".join(name): vote for name, vote in runs if 1 < len(name) <= LONGEST_NAME}


def _count_documents(
    terms: np.ndarray, documents: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each entry: which document of its term it is in, of how many, whether its first there.

    Equal terms are adjacent, and the documents of each ascend.
    """
    new_term = np.append(True, terms[1:] != terms[:-1])[: len(terms)]
    opens = new_term | np.append(True, documents[1:] != documents[:-1])[: len(terms)]
    term, seen = np.cumsum(new_term) - 1, np.cumsum(opens) - 1
    place = seen - seen[new_term][term]
    last = np.append(np.flatnonzero(new_term)[1:], len(terms)) - 1 if len(terms) else term
    return place, place[last][term] + 1, opens


def _slice(terms: pa.Array, parts: int, index: int) -> tuple[int, int]:
    """The place of a part among ascending terms: (first, how many)."""
    terms, ends = terms.to_numpy(), []
    for part in (index, index + 1):
        bound = -(-(part << 32) // parts) << 32  # the first term that `part_of` puts there
        ends.append(int(np.searchsorted(terms, np.uint64(bound))) if part < parts else len(terms))
    return ends[0], ends[1] - ends[0]


def _write(file: Path, batch: pa.RecordBatch) -> None:
    with beside(file) as partial, pa.ipc.new_file(str(partial), batch.schema) as writer:
        writer.write_batch(batch)
