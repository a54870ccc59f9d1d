"""Sentences of different documents that mention the same rare name or term; needs no encoder.

Levine et al. 2022 suggest it for building examples. The score of two sentences is the cosine of
their rare terms weighted by idf: like the similarity of neighbours it is symmetric, in [0, 1], and
falls with everything the two do not share. The output is that of a search for neighbours.
"""

from collections import Counter
from collections.abc import Callable
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from icl_jax.config import DesignConfig, SearchConfig
from icl_jax.corpus.words import RULES_VERSION as WORD_RULES
from icl_jax.design.folders import DesignFolders
from icl_jax.design.groups import Groups
from icl_jax.design.sentences import Sentences, open_sentences
from icl_jax.design.strategies.entity_selection import cut, look_up, score, select
from icl_jax.design.strategies.entity_terms import (
    RULES_VERSION,
    index_shard,
    join_part,
    part_file,
    read_table,
    terms_file,
)
from icl_jax.design.strategies.neighbours import COUNTS, group_related
from icl_jax.design.strategies.strategy import OwnSearch, Strategy
from icl_jax.files.arrays import map_array, save_array
from icl_jax.files.step_folder import StepFolder, read_inputs
from icl_jax.retrieval.neighbours import (
    Neighbours,
    count_neighbours,
    shard_file,
    write_shard,
)
from icl_jax.retrieval.search.search import SearchFolders
from icl_jax.retrieval.search.signatures import Signatures, load_signatures
from icl_jax.workers.local import Runner
from icl_jax.workers.shards import make_shards

if TYPE_CHECKING:
    from icl_jax.design.build import Build
    from icl_jax.design.explain.reasons import Reasons

FOLDER = "entity_neighbours"  # in WORKDIR/design: what is related; its index beside it
_PART_SENTENCES = 500_000  # of the corpus for each part of the index: some 200 MB to sort
_PAIRS = 1 << 22  # of a query and a sentence that are looked at together
_LENGTHS = "lengths.npy"


def make_groups(build: "Build") -> Groups:
    """A group for each query that shares rare terms with enough other sentences."""
    folder = build.folders.path / FOLDER
    make_related_by_entity(
        build.workdir, build.sentences, build.config.design, build.runner, folder
    )
    return group_related(build, "shared_entity", folder)


def why_no_more(reasons: "Reasons", ids: list[int], left: int) -> str:
    """The next sentence did not fit, or no further one was stored."""
    folder, taken = reasons.folders.path / FOLDER, len(ids) - 1
    found, scores = reasons.related(folder, ids[0])
    most = read_inputs(folder)["search"]["neighbours"]
    if len(found) >= most:
        rest = f"all that were stored are here: design.search.neighbours = {most}"
    else:
        rest = (
            f"no further sentence was stored ({len(found)} found): none shares a rare name or "
            "term with the query, or those that do have its words, are in its document, or "
            "nearly repeat it or a sentence that is here"
        )
    return reasons.did_not_fit(found, scores, taken, left) or rest


def make_related_by_entity(
    workdir: str, sentences: Sentences, config: DesignConfig, runner: Runner, folder: Path
) -> Neighbours:
    """The sentences that share rare terms with each query, by score; the index is beside them."""
    search = {
        name: getattr(config.search, name)
        for name in ("neighbours", "same_document", "duplicate_jaccard")
    }
    index = folder.with_name(f"{folder.name}_terms")
    terms = _index_terms(workdir, sentences, config.examples.entity_documents, runner, index)
    made_from = {
        "queries": sentences.query_table.fingerprint,
        "pool": sentences.corpus.fingerprint,
        "entity_documents": config.examples.entity_documents,
        "rules": RULES_VERSION,
        "words": WORD_RULES,
        "search": search,
    }
    step = StepFolder(folder, made_from)
    if step.results is None:
        places = SearchFolders(DesignFolders(workdir).neighbours)
        load_signatures(sentences.corpus, places.signatures, runner)
        if sentences.queries is not None:
            load_signatures(sentences.queries, places.query_signatures, runner)
        table = sentences.query_table
        files = [shard_file(folder, shard) for shard in range(table.num_shards)]
        task = (workdir, sentences.fingerprint, search, terms["parts"], str(index), str(folder))
        _run(find_shard, task, np.diff(table.starts), files, "shared entities", "sentence", runner)
        step.complete(
            lambda: count_neighbours(folder, table.num_shards) | {"rare_terms": terms["rare_terms"]}
        )
    return Neighbours.open(folder)


def find_shard(
    workdir: str, fingerprint: str, search: dict, parts: int, index: str, folder: str, shard: int
) -> None:
    """Writes what is related to the sentences of one shard of the queries."""
    sentences = open_sentences(workdir, fingerprint)
    config, table = SearchConfig(**search), sentences.query_table
    own_queries = sentences.queries is not None
    pool, queries = _open_signatures(workdir, fingerprint, own_queries)
    first, count = int(table.starts[shard]), int(table.starts[shard + 1] - table.starts[shard])
    documents = None
    if not own_queries and not config.same_document:
        documents = table.documents[first : first + count]
    rare = [read_table(part_file(Path(index), part)) for part in range(parts)]
    lengths = map_array(Path(index) / _LENGTHS)
    matches = look_up(read_table(terms_file(Path(index), own_queries, shard)), first, rare)
    counts, ids, scores, left_out = [], [], [], Counter()
    for start, end, block in cut(matches, count, _PAIRS):
        pairs = score(block, rare, lengths, documents)
        found = select(pairs, start, end, first, queries, pool, config)
        counts.append(found[0])
        ids.append(found[1])
        scores.append(found[2])
        left_out.update(found[3])
    write_shard(
        Path(folder),
        shard,
        np.concatenate([np.empty(0, np.int64), *counts]),
        np.concatenate([np.empty(0, np.int64), *ids]),
        np.concatenate([np.empty(0, np.float32), *scores]),
        dict(left_out),
    )


def _index_terms(
    workdir: str, sentences: Sentences, most: int, runner: Runner, folder: Path
) -> dict:
    """Makes the index of rare terms; its results."""
    made_from = {"sentences": sentences.fingerprint, "entity_documents": most}
    step = StepFolder(folder, made_from | {"rules": RULES_VERSION})
    if step.results is None:
        corpus, place = sentences.corpus, str(folder)
        for number, table in enumerate(sentences.tables):
            shards = [terms_file(folder, number == 1, shard) for shard in range(table.num_shards)]
            task = (workdir, sentences.fingerprint, number == 1, most, place)
            _run(index_shard, task, np.diff(table.starts), shards, "terms", "sentence", runner)
        parts = max(1, len(corpus) // _PART_SENTENCES)
        # The query's document is one of those that have the term; its own table is not indexed.
        least = 2 if sentences.queries is None else 1
        files = [part_file(folder, part) for part in range(parts)]
        task = (place, corpus.num_shards, corpus.num_documents, least, most, parts)
        _run(join_part, task, np.ones(parts, int), files, "rare terms", "part", runner)
        step.complete(lambda: _measure_sentences(files, len(corpus), folder))
    return step.results


def _measure_sentences(files: list[Path], count: int, folder: Path) -> dict:
    """Stores, of every sentence, the squared length of its weighted terms."""
    lengths, terms = np.zeros(count), 0
    for file in files:
        rare = read_table(file)
        sizes = np.diff(rare["sentences"].offsets.to_numpy())
        weights = np.repeat(rare["weight"].to_numpy() ** 2, sizes)
        np.add.at(lengths, rare["sentences"].values.to_numpy(), weights)
        terms += len(rare)
    save_array(folder / _LENGTHS, lengths)
    return {"parts": len(files), "rare_terms": terms}


def _run(
    function: Callable,
    task: tuple,
    sizes: np.ndarray,
    files: list[Path],
    label: str,
    unit: str,
    runner: Runner,
) -> None:
    """`function(*task, i)` for every i whose file is missing."""
    make_shards(
        label, files[0].parent, sizes, lambda i: files[i].exists(), function,
        lambda i: (*task, i), runner, unit,
    )  # fmt: skip


@functools.lru_cache(maxsize=1)
def _open_signatures(
    workdir: str, fingerprint: str, own_queries: bool
) -> tuple[Signatures, Signatures]:
    """Those of the corpus and of the queries; kept from shard to shard, as `open_sentences`."""
    places = SearchFolders(DesignFolders(workdir).neighbours)
    pool = Signatures.open(places.signatures)
    return pool, Signatures.open(places.query_signatures) if own_queries else pool


STRATEGY = Strategy(
    make_groups,
    why_no_more,
    own_search=OwnSearch(FOLDER, "entity_search", "by shared names and terms"),
    steps=(
        f"{FOLDER}_terms", "neighbours_signatures/pool", "neighbours_signatures/queries", FOLDER
    ),
    score="cosine of the rare terms",
    counts=COUNTS,
)  # fmt: skip
