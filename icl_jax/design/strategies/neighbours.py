"""A query, then its related sentences in order: kNN examples (Levine et al. 2022, section 3)."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from icl_jax.cli import suggest
from icl_jax.config import StageError
from icl_jax.design.groups import Groups, GroupShard, write_groups
from icl_jax.design.records.layout import Marks
from icl_jax.design.sentences import open_sentences
from icl_jax.design.strategies.strategy import Count, Strategy
from icl_jax.files.step_folder import read_inputs
from icl_jax.retrieval.neighbours import read_shard

if TYPE_CHECKING:
    from icl_jax.design.build import Build
    from icl_jax.design.explain.reasons import Reasons

MOST_COMPARED = 2_000_000  # sentences of a corpus, for each group that is explained: seconds
COUNTS = {
    "cut_by_limit": Count("groups that the token limit cut short"),
    "too_few_neighbours": Count("queries left out: too few related sentences"),
    "too_long": Count("queries left out: too few of these fit"),
}


def make_groups(build: "Build") -> Groups:
    """A group for each query that has enough neighbours."""
    if not build.neighbours.results["queries_with_neighbours"]:
        raise StageError(_why_no_neighbours(build))  # every arm would be the queries alone
    return group_related(build, "neighbours", build.folders.neighbours)


def group_related(build: "Build", strategy: str, folder: Path) -> Groups:
    """The groups of all queries; `folder` has the related sentences of each."""
    least = build.examples.min_neighbours
    first = (
        build.workdir, build.sentences.fingerprint, str(folder), build.marks, build.limit,
        build.between, least,
    )  # fmt: skip
    inputs = {"related": read_inputs(folder), "min_neighbours": least}
    starts = build.sentences.query_table.starts
    return build.by_shard(strategy, inputs, make_shard, lambda *place: (*first, *place), starts)


def why_no_more(reasons: "Reasons", ids: list[int], left: int) -> str:
    """The next neighbour did not fit, or what is next by similarity broke a rule."""
    found, scores = reasons.related(reasons.folders.neighbours, ids[0])
    taken = len(ids) - 1
    not_fitting = reasons.did_not_fit(found, scores, taken, left)
    if len(reasons.sentences.corpus) > MOST_COMPARED:
        return not_fitting or (
            f"all {taken} that were stored are here; what else is near: "
            + suggest("retrieval.show", workdir=reasons.workdir, query="TEXT")
        )
    nearer, following = reasons.nearby.around(ids[0], taken)
    if not_fitting:
        reason = not_fitting
    elif following is None:
        reason = "no other sentence is among the nearest"
    else:
        reason = f"the next by similarity, {reasons.nearby.describe(ids[0], following)}"
    if nearer:
        more = f"; and {len(nearer) - 1:,} more" if len(nearer) > 1 else ""
        reason += f"\nnearer, but left out: {reasons.nearby.describe(ids[0], nearer[0])}{more}"
    return reason


def make_shard(
    workdir: str,
    fingerprint: str,
    neighbours: str,
    marks: Marks,
    limit: int,
    between: int,
    min_neighbours: int,
    folder: str,
    index: int,
) -> None:
    """The groups of all queries of one shard; `neighbours` is the folder of what is related."""
    sentences = open_sentences(workdir, fingerprint)
    related = read_shard(Path(neighbours), index)
    offsets = related["ids"].offsets.to_numpy().astype(np.int64)
    ids, similarities = related["ids"].values.to_numpy(), related["similarities"].values.to_numpy()
    queries = sentences.first_query + sentences.query_table.starts[index] + np.arange(len(related))
    taken = take_until_full(
        sentences.lengths_of(queries), sentences.lengths_of(ids), offsets, limit, marks, between
    )
    found = np.diff(offsets)
    kept = taken >= min_neighbours
    counts = {
        "queries": len(queries),
        "cut_by_limit": int((taken < found)[kept].sum()),  # groups that wanted more neighbours
        "too_few_neighbours": int((found < min_neighbours).sum()),  # queries
        "too_long": int(((found >= min_neighbours) & ~kept).sum()),  # the same: too few fit
    }
    groups = _groups(queries, ids, similarities, offsets, taken, kept)
    write_groups(Path(folder), index, groups, counts)


def take_until_full(
    query_lengths: np.ndarray,
    lengths: np.ndarray,
    offsets: np.ndarray,
    limit: int,
    marks: Marks,
    between: int,
) -> np.ndarray:
    """How many neighbours each query takes: in order, until the next would exceed the limit.

    The lengths of the neighbours of query i are those from offsets[i] to offsets[i + 1]; each
    neighbour adds its tokens and `between` more (`Marks.between`).
    """
    with_separator = np.append(0, np.cumsum(lengths.astype(np.int64) + between))
    query = np.repeat(np.arange(len(query_lengths)), np.diff(offsets))
    used = with_separator[1:] - with_separator[offsets[query]]
    fits = used + query_lengths[query] + marks.ends <= limit  # true up to one place, then false
    return np.bincount(query[fits], minlength=len(query_lengths))


def _groups(
    queries: np.ndarray,
    ids: np.ndarray,
    similarities: np.ndarray,
    offsets: np.ndarray,
    taken: np.ndarray,
    kept: np.ndarray,
) -> GroupShard:
    sizes = taken[kept] + 1
    new_offsets = np.append(0, np.cumsum(sizes))
    within = np.arange(new_offsets[-1]) - np.repeat(new_offsets[:-1], sizes)
    is_query = within == 0
    source = np.repeat(offsets[:-1][kept], sizes) + within - 1
    group_ids = np.repeat(queries[kept], sizes)
    group_ids[~is_query] = ids[source[~is_query]]
    scores = np.ones(len(group_ids), np.float32)
    scores[~is_query] = similarities[source[~is_query]]
    return GroupShard(new_offsets, group_ids, scores)


def _why_no_neighbours(build: "Build") -> str:
    from icl_jax.retrieval.search.results import describe_thresholds

    results = build.neighbours.results
    field = "queries" if build.config.design.queries.files else "corpus"
    nearest = results.get("nearest_in_sample")
    found = "" if nearest is None else f", the nearest of a sample is at {nearest:g}"
    return (
        f"none of the {results['queries']:,} sentences of design.{field} has a neighbour in "
        f"the corpus above design.search.min_similarity = {results['min_similarity']:g}{found}:"
        f" {describe_thresholds(results)}. What is near: "
        + suggest("retrieval.show", workdir=build.workdir, query="TEXT")
    )


STRATEGY = Strategy(make_groups, why_no_more, needs_neighbours=True, counts=COUNTS)
