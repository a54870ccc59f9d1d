"""What a later round needs before its design: its encoder, its sentences, and its threshold.

A cosine means something different with every encoder: the vectors of a language model all point in
nearly the same direction. So a later round does not reuse the threshold of round 1 but its number
of neighbours: with the threshold chosen here, sentences have as many on average as in round 1.
"""

import dataclasses
import os
from pathlib import Path

from etils import epath
import numpy as np

from icl_jax.config import ExperimentConfig, StageError
from icl_jax.corpus.sentence_table import SentenceTable
from icl_jax.design.folders import DesignFolders
from icl_jax.design.steps import made_from
from icl_jax.files import mirror
from icl_jax.files.remote import is_remote
from icl_jax.files.step_folder import StepFolder, read_inputs
from icl_jax.models import huggingface
from icl_jax.retrieval.embeddings import embed_table
from icl_jax.retrieval.encoders.encoder import open_encoder
from icl_jax.retrieval.neighbours import Neighbours
from icl_jax.retrieval.search.open_search import check_search, prepare_search
from icl_jax.retrieval.search.search import Search, SearchFolders
from icl_jax.sharding import make_host_mesh
from icl_jax.training.model_at import model_at
from icl_jax.workers.job import on_first

_SAMPLE = 5000  # queries that the threshold is chosen on
_DIGITS = 6  # of the threshold


def export_encoder(run: str, to: epath.Path, config: ExperimentConfig) -> None:
    """Writes the model of a run, as it was evaluated, as a model folder with its tokenizer."""
    model = model_at(run, config.evaluation.tokenizer, config.evaluation.ema)
    folder = mirror.local_folder(to)
    step = StepFolder(folder, model.identity)

    def export() -> dict:
        print(f"the encoder: {run}, step {model.identity['step']}", flush=True)
        for left in (folder / "config.json", *folder.glob("*.safetensors*")):  # of a killed run
            mirror.remove(left)
        huggingface.save(model.load(make_host_mesh(config.mesh)), folder)
        model.tokenizer.save_with_model(folder)
        return {"run": run, "step": model.identity["step"]}

    if step.results is None:
        step.complete(export)


def share_steps(first: epath.Path, own: epath.Path) -> None:
    """Gives `own` the steps of the design of `first` that do not depend on the encoder.

    By links on a disk; in a bucket, which has none, by copies that the bucket makes.
    """
    on_first("share steps", _share_steps, first, own)


def _share_steps(first: epath.Path, own: epath.Path) -> None:
    folders, to = DesignFolders(first), own / "design"
    signatures = SearchFolders(folders.neighbours).signatures.parent
    remade = {*made_from(folders.encoder, folders)} - {signatures}
    steps = [*folders.path.iterdir(), *folders.groups.iterdir(), *folders.arms.iterdir()]
    for step in sorted(steps):
        complete = step == signatures or (step / "results.json").exists()
        name = step.relative_to(folders.path)
        if not complete or step in remade:
            continue
        if is_remote(own):
            mirror.copy(f"{first}/design/{name}", f"{to}/{name}")
        elif not (link := Path(to / name)).exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(step.resolve(), link.parent.resolve()))


def find_threshold(config: ExperimentConfig, workdir: epath.Path, wanted: float) -> float:
    """The cosine above which sentences have `wanted` neighbours on average, from a sample.

    Sentences are embedded and indexed for it, where the design will find them.
    """
    search = _open_search(config, workdir)
    rules = dataclasses.asdict(config.design.search)
    del rules["min_similarity"], rules["recall_sample"]
    origin = read_inputs(SearchFolders(DesignFolders(workdir).neighbours).pool)
    inputs = {**origin, "search": rules, "mean_neighbours": wanted, "seed": config.seed}
    step = StepFolder(mirror.local_folder(threshold_folder(workdir)), inputs)
    if step.results is None:
        found = search.ask(_sample, config.seed)
        step.complete(lambda: _choose(found, wanted))
    return step.results["min_similarity"]


def _choose(found: np.ndarray, wanted: float) -> dict:
    """What is kept of the chosen threshold, which is printed too."""
    threshold = choose_threshold(found, wanted)
    have = float((found[:, 0] > threshold).mean())
    print(
        f"min_similarity is {threshold:g} in this round: above it, sentences have "
        f"{float((found > threshold).sum() / len(found)):.2f} neighbours on average, as in "
        f"round 1, and {have:.1%} have one (of {len(found):,} sampled)"
    )
    return {"min_similarity": threshold, "queries": len(found), "with_neighbours": have}


def threshold_folder(workdir: epath.Path) -> epath.Path:
    """Where a round keeps its threshold."""
    return workdir / "threshold"


def choose_threshold(similarities: np.ndarray, wanted: float) -> float:
    """Between two cosines: on average `wanted` of each row are above it; -1 if all are needed.

    A row has the cosines of one query, -inf where there is none.
    """
    pairs = np.sort(similarities[np.isfinite(similarities)].astype(np.float64))[::-1]
    count = round(wanted * len(similarities))
    if count >= len(pairs):
        return -1.0
    above = pairs[count - 1] if count else 1.0
    return min(1.0, max(-1.0, round((above + pairs[count]) / 2, _DIGITS)))


def compare_neighbours(before: Neighbours, now: Neighbours) -> dict:
    """How much of the neighbours of `before` remains in `now`.

    `kept`: the share of a query's neighbours that it still has; `same_nearest`: the share of
    queries whose nearest is the same. Both are over the queries that had neighbours, None if none.
    """
    if not np.array_equal(before.starts, now.starts):
        raise StageError(
            f"the neighbours of {len(now):,} queries cannot be compared with those of "
            f"{len(before):,}; expected two searches for the same sentences"
        )
    kept, same_nearest, none_now = [], [], 0
    for shard in range(len(before.shards)):
        (old_sizes, old_ids), (new_sizes, new_ids) = (_lists(n, shard) for n in (before, now))
        old, new = (_pairs(*lists) for lists in ((old_sizes, old_ids), (new_sizes, new_ids)))
        had = old_sizes > 0
        still = np.bincount(old[0, np.isin(old[1], new[1])], minlength=len(had))
        kept.append((still / np.maximum(old_sizes, 1))[had])
        same_nearest.append((_nearest(old_sizes, old_ids) == _nearest(new_sizes, new_ids))[had])
        none_now += int((new_sizes == 0).sum())
    kept, same_nearest = np.concatenate(kept), np.concatenate(same_nearest)
    return {
        "queries": len(before),
        "had_neighbours": len(kept),
        "without_neighbours_now": none_now,
        "kept": float(kept.mean()) if len(kept) else None,
        "same_nearest": float(same_nearest.mean()) if len(kept) else None,
    }


def _sample(search: Search, seed: int) -> np.ndarray:
    """The cosines of the neighbours of random queries, without a threshold."""
    count = len(search.query_vectors)
    drawn = np.random.RandomState([seed, 4]).permutation(count)[:_SAMPLE]
    return search.nearest(np.sort(drawn), -np.inf).similarities


def _open_search(config: ExperimentConfig, workdir: epath.Path) -> Search:
    """The search that the design will make, over vectors that are made here."""
    design, folders, mesh = config.design, DesignFolders(workdir), make_host_mesh(config.mesh)
    runner, settings = folders.runner(design), design.search
    encoder = open_encoder(design.encoder, mesh, None)
    corpus = queries = SentenceTable.open(folders.corpus)
    check_search(len(corpus), encoder.width, settings, mesh, runner)
    how = (runner, mesh, folders.encoder)
    vectors = of_queries = embed_table(
        corpus, encoder, design.encoder, folders.corpus_vectors, *how
    )
    if design.queries.files:
        queries = SentenceTable.open(folders.queries)
        of_queries = embed_table(queries, encoder, design.encoder, folders.query_vectors, *how)
    return prepare_search(
        queries, of_queries, corpus, vectors, settings, folders.neighbours, config.seed, mesh,
        runner, {**encoder.identity, "store": design.encoder.store},
    )  # fmt: skip


def _lists(neighbours: Neighbours, shard: int) -> tuple[np.ndarray, np.ndarray]:
    """How many neighbours each query of a shard has, and the ids of all."""
    column = neighbours.shard(shard)["ids"]
    return np.diff(column.offsets.to_numpy()), column.values.to_numpy()


def _pairs(sizes: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """(2, n): the query of every neighbour, and one number for both."""
    query = np.repeat(np.arange(len(sizes)), sizes)
    return np.stack([query, (query << 40) | ids])  # 40 bits: a million million sentences


def _nearest(sizes: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The first neighbour of each query; -1: none."""
    first = np.cumsum(sizes) - sizes
    return np.where(sizes > 0, np.append(ids, -1)[np.minimum(first, len(ids))], -1)
