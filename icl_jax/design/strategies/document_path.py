"""In-Context Pretraining: whole documents in the order of a walk over related ones, each once.

After Shi et al., ICLR 2024: from an unvisited document of smallest degree, the walk continues to
the unvisited related one of largest weight; if there is none, it starts again. Documents related
to none come last, in random order. The path is cut into contexts at ends of sentences.
"""

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from icl_jax.config import ConfigError, ExamplesConfig
from icl_jax.corpus.tokenizers import Tokenizer, open_tokenizer
from icl_jax.design.folders import DesignFolders
from icl_jax.design.groups import (
    Groups,
    GroupShard,
    group_file,
    read_counts,
    write_groups,
)
from icl_jax.design.records.layout import Marks
from icl_jax.design.sentences import Sentences, open_sentences
from icl_jax.design.strategies.document_duplicates import find_repeated, has_sketch, sketch_shard
from icl_jax.design.strategies.document_graph import (
    add_sides,
    has_edges,
    has_sides,
    join_shards,
    relate_shard,
)
from icl_jax.design.strategies.path_walk import walk
from icl_jax.design.strategies.running_text import (
    check_room,
    running_tokens,
    sentence_does_not_fit,
    sentence_tokens,
)
from icl_jax.design.strategies.strategy import Count, Strategy
from icl_jax.files.arrays import save_array
from icl_jax.files.step_folder import StepFolder, read_inputs
from icl_jax.workers.local import Runner, progress_bar
from icl_jax.workers.shards import add_up, make_shards

if TYPE_CHECKING:
    from icl_jax.design.build import Build
    from icl_jax.design.explain.reasons import Reasons

_STOP = np.dtype(  # a document of the path, its sentences, and the weight that led to it
    [("document", "<i8"), ("first", "<i8"), ("last", "<i8"), ("weight", "<f4")]
)
_SHOWN = 100  # near duplicates named in the results; `near_duplicates.npy` holds all


def make_groups(build: "Build") -> Groups:
    """The contexts of the path."""
    jaccard = build.config.design.search.duplicate_jaccard
    return make_document_path(
        build.workdir, build.sentences, build.examples, jaccard, build.limit, build.config.seed,
        build.runner, build.folders.groups / "document_path",
    )  # fmt: skip


def why_no_more(reasons: "Reasons", ids: list[int], left: int) -> str:
    """The path or a part of it ends, or its next sentence is too long."""
    last, documents = ids[-1], reasons.sentences.corpus.documents
    if last + 1 < len(documents) and documents[last + 1] == documents[last]:
        return sentence_does_not_fit(reasons, "the next sentence of the document", last + 1, left)
    path = np.load(_path_file(reasons.folders.groups / "document_path"), mmap_mode="r")
    place = int(np.flatnonzero(path["document"] == documents[last])[0])
    if place + 1 == len(path):
        return "the path ends here"
    first = int(path["first"][place + 1])
    # A separator comes between documents, in place of the end that was counted, if there is one.
    room = left if reasons.marks.begin is None else left - 1
    if sum(sentence_tokens(reasons, first)) <= room:
        return "a part of the path ends here: each part is cut into contexts by itself"
    what = "the first sentence of the next document of the path"
    return sentence_does_not_fit(reasons, what, first, room)


def check_queries(has_queries: bool) -> None:
    """Stops if the queries are those of a task: the path needs neighbours within the corpus."""
    if has_queries:
        raise ConfigError(
            "design.examples.arms: document_path walks over the neighbours of the corpus's own "
            "sentences, but here the sentences of design.queries are the queries; leave "
            "design.queries.files empty, or that arm out"
        )


def make_document_path(
    workdir: str,
    sentences: Sentences,
    examples: ExamplesConfig,
    duplicate_jaccard: float,
    limit: int,
    seed: int,
    runner: Runner,
    folder: Path,
) -> Groups:
    """The contexts of the path through all documents of the corpus except near duplicates."""
    corpus, folders = sentences.corpus, DesignFolders(workdir)
    check_queries(sentences.queries is not None)
    made_from = {
        "sentences": sentences.fingerprint,
        "tokenizer": Tokenizer.open(folders.tokenizer).fingerprint,
        "neighbours": read_inputs(folders.neighbours),
        "duplicate_jaccard": duplicate_jaccard,
        "path_diversity": examples.path_diversity,
        "limit": limit,
        "seed": seed,
    }
    step = StepFolder(folder, made_from)
    if step.results is None:
        options = {"duplicate_jaccard": duplicate_jaccard, "limit": limit, "seed": seed}
        options["path_diversity"] = examples.path_diversity
        results = _find_path(workdir, sentences, options, runner, folder / "path")
        _cut_path(workdir, sentences, made_from["tokenizer"], limit, runner, folder)
        results = {"shards": corpus.num_shards, "groups": 0, "sentences": 0, **results}
        shards = range(corpus.num_shards)
        step.complete(lambda: results | add_up(read_counts(folder, index) for index in shards))
    return Groups.open(folder)


def write_part(
    workdir: str,
    fingerprint: str,
    tokenizer: str,
    limit: int,
    folder: str,
    index: int,
    first: int,
    last: int,
) -> None:
    """Writes the contexts of the documents from place `first` of the path to before `last`.

    `tokenizer` is the fingerprint of the workdir's.
    """
    corpus = open_sentences(workdir, fingerprint).corpus
    reader = open_tokenizer(str(DesignFolders(workdir).tokenizer), tokenizer)
    marks = Marks.of(reader)
    path = np.load(_path_file(Path(folder)), mmap_mode="r")[first:last]
    encoded = [running_tokens(corpus, stop["first"], stop["last"], reader) for stop in path]
    tokens = np.concatenate([np.empty(0, np.int32), *(found for found, _ in encoded)])
    lengths = np.concatenate([np.empty(0, np.int64), *(np.diff(starts) for _, starts in encoded)])
    sizes = path["last"] - path["first"]
    ids = np.repeat(path["first"] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    ends_document = np.zeros(len(ids), bool)
    ends_document[np.cumsum(sizes) - 1] = True
    offsets = cut(lengths, ends_document, limit, marks)

    ends_context = np.zeros(len(ids), bool)
    ends_context[offsets[1:] - 1] = True
    marked = ends_document & (~ends_context if marks.begin is not None else True)
    after = np.cumsum(lengths)[marked]
    tokens = np.insert(tokens, after, np.where(ends_context, marks.end, marks.separator)[marked])
    starts = np.append(0, np.cumsum(lengths + marked))
    groups = GroupShard(
        offsets,
        ids,
        np.repeat(path["weight"], sizes),
        tokens,
        starts[offsets],
        starts[:-1] - np.repeat(starts[offsets[:-1]], np.diff(offsets)),
    )
    room = limit - (0 if marks.begin is None else marks.ends)
    check_room(np.diff(groups.token_offsets).max(initial=0), room)
    write_groups(Path(folder), index, groups)


def cut(lengths: np.ndarray, ends_document: np.ndarray, limit: int, marks: Marks) -> np.ndarray:
    """The first sentence of each context, and the end; a context takes what fits with its marks.

    The token after a document is the separator, or the end if the context ends too. With [begin],
    layout.py frames every context, and only separators are counted here.
    """
    framed = marks.begin is not None
    room = limit - marks.ends if framed else limit
    offsets, used, separator = [0], 0, 0
    for i, (length, ends) in enumerate(zip(lengths.tolist(), ends_document.tolist(), strict=True)):
        cost = length + (separator if framed else ends)
        if used and used + cost > room:
            offsets.append(i)
            used, cost = 0, length + (0 if framed else ends)
        used += cost
        separator = int(ends)
    return np.array([*offsets, len(lengths)] if len(lengths) else [0], np.int64)


def _find_path(
    workdir: str, sentences: Sentences, options: dict, runner: Runner, folder: Path
) -> dict:
    """Finds near duplicates, makes the graph, walks it and stores the path; the counts."""
    step = StepFolder(folder, {"sentences": sentences.fingerprint, **options})
    if step.results is None:
        _describe_documents(workdir, sentences, runner, folder)
        step.complete(lambda: _walk(workdir, sentences, options, runner, folder))
    return step.results


def _walk(workdir: str, sentences: Sentences, options: dict, runner: Runner, folder: Path) -> dict:
    """Stores the path through the documents that are described; counts."""
    corpus = sentences.corpus
    documents, repeated = find_repeated(
        workdir, sentences.fingerprint, folder, corpus.num_shards, options["duplicate_jaccard"],
        runner,
    )  # fmt: skip
    members = np.setdiff1d(documents, repeated[:, 0])
    graph = join_shards(folder, corpus.num_shards, members, corpus.num_documents)
    first = np.searchsorted(corpus.documents, np.arange(corpus.num_documents + 1))
    tokens = np.append(0, np.cumsum(corpus.lengths, dtype=np.int64))[first]
    tokens = np.diff(tokens) + 1  # with the separator; the space before a sentence changes little
    with progress_bar(total=len(members), unit="document", desc="document path") as bar:
        order, weights = walk(
            graph, members, tokens, options["limit"], options["path_diversity"], options["seed"],
            bar.update,
        )  # fmt: skip
    path = np.empty(len(order), _STOP)
    path["document"], path["weight"] = order, weights
    path["first"], path["last"] = first[order], first[order + 1]
    for name, array in {"path": path, "near_duplicates": repeated}.items():
        save_array(folder / f"{name}.npy", array)
    came = weights[~np.isnan(weights)]
    return {
        "documents": len(order),
        "documents_without_sentences": corpus.num_documents - len(documents),
        "related_pairs": len(graph.others) // 2,
        "related_to_none": int((graph.degrees[members] == 0).sum()),
        "walks": int(np.isnan(weights).sum()) - int((graph.degrees[members] == 0).sum()),
        "mean_weight": round(float(came.mean(dtype=np.float64)), 4) if len(came) else None,
        "near_duplicates": len(repeated),
        "near_duplicates_first": repeated[:_SHOWN].tolist(),  # (left out, what it repeats)
    }


def _describe_documents(workdir: str, sentences: Sentences, runner: Runner, folder: Path) -> None:
    """Sketches and edges of the documents, shard by shard."""
    corpus, neighbours = sentences.corpus, str(DesignFolders(workdir).neighbours)
    first = (workdir, sentences.fingerprint)
    for label, function, is_made, task in (
        ("document sketches", sketch_shard, has_sketch, (*first, str(folder))),
        ("document relations", relate_shard, has_sides, (*first, neighbours, str(folder))),
        ("document graph", add_sides, has_edges, (*first, str(folder))),
    ):
        make_shards(
            label, folder, np.diff(corpus.starts), functools.partial(is_made, folder), function,
            lambda shard, task=task: (*task, shard), runner,
        )  # fmt: skip


def _cut_path(
    workdir: str,
    sentences: Sentences,
    tokenizer: str,
    limit: int,
    runner: Runner,
    folder: Path,
) -> None:
    """Writes the groups: the path in as many parts of about equal size as the corpus has shards."""
    path, num_parts = np.load(_path_file(folder), mmap_mode="r"), sentences.corpus.num_shards
    before = np.append(0, np.cumsum(path["last"] - path["first"]))
    bounds = np.searchsorted(before, before[-1] * np.arange(num_parts + 1) // num_parts)
    bounds[-1] = len(path)
    make_shards(
        "groups: document_path", folder, np.diff(before[bounds]),
        lambda part: group_file(folder, part).exists(), write_part,
        lambda part: (
            workdir, sentences.fingerprint, tokenizer, limit, str(folder), part,
            int(bounds[part]), int(bounds[part + 1]),
        ),
        runner,
    )  # fmt: skip


def _path_file(folder: Path) -> Path:
    return folder / "path" / "path.npy"


STRATEGY = Strategy(
    make_groups,
    why_no_more,
    check=lambda design: check_queries(bool(design.queries.files)),
    needs_neighbours=True,
    steps=("groups/document_path/path",),
    whole_documents=True,
    score="weight of the step that led to its document",
    counts={
        "related_pairs": Count("pairs of related documents"),
        "related_to_none": Count("documents related to none"),
        "near_duplicates": Count("documents left out: near duplicates"),
    },
)
