"""The design stage: from a corpus to the records of every arm, and their data card.

Every step has its folder in WORKDIR/design; a complete one is taken as it is, a begun one goes on.
All arms of a build are made from the same sentences, so that they differ in arrangement alone.
"""

from collections.abc import Callable
import dataclasses
import os
from pathlib import Path

import numpy as np

from icl_jax.cli import suggest
from icl_jax.config import ConfigError, DesignConfig, ExamplesConfig, ExperimentConfig, StageError
from icl_jax.config.tree import to_dict
from icl_jax.corpus.tokenizers import Tokenizer, load
from icl_jax.design.arms import ARMS, NEED_NEIGHBOURS, strategies_of
from icl_jax.design.card.data_card import write_card
from icl_jax.design.contamination.overlap import check_evaluation_files, find_overlap
from icl_jax.design.dependents import explain_all
from icl_jax.design.find_related import check_design, find_related
from icl_jax.design.folders import DesignFolders, planned_rows, shard_bytes_of
from icl_jax.design.gain.filter import filter_groups, keep_all
from icl_jax.design.gain.inputs import gain_inputs
from icl_jax.design.gain.model import check_gain_model
from icl_jax.design.groups import Groups, group_file, read_counts
from icl_jax.design.records.layout import Marks
from icl_jax.design.records.records import write_arm
from icl_jax.design.sentences import Sentences
from icl_jax.design.strategies import contiguous, neighbour_groups, random_groups, task_only
from icl_jax.design.strategies.document_path import check_queries, make_document_path
from icl_jax.design.strategies.shared_entity import make_related_by_entity
from icl_jax.files.folder_lock import alone_in
from icl_jax.files.step_folder import (
    OtherInputsError,
    StepFolder,
    once,
    read_inputs,
    write_json,
)
from icl_jax.retrieval.neighbours import Neighbours
from icl_jax.retrieval.search.results import describe_thresholds
from icl_jax.sharding import make_host_mesh
from icl_jax.workers.job import on_first
from icl_jax.workers.local import Runner
from icl_jax.workers.shards import add_up, make_shards


def design(config: ExperimentConfig, workdir: str | os.PathLike) -> None:
    """Runs every step that is not complete yet; says what was made and where to look."""
    check_design(config, workdir)
    _check(config)
    folders = DesignFolders(workdir)
    with alone_in(folders.path):
        try:
            results = _run_steps(config, workdir, folders)
        except OtherInputsError as error:
            raise explain_all(error, folders) from None
    _print_summary(results, workdir)
    _print_related(config.design, folders)


def _run_steps(
    config: ExperimentConfig, workdir: str | os.PathLike, folders: DesignFolders
) -> dict[str, dict]:
    """The results of every arm."""
    examples = config.design.examples
    wanted = strategies_of(examples.arms)
    neighbours = find_related(config, workdir, bool(NEED_NEIGHBOURS & {*wanted}))
    build = Build.open(config, workdir, neighbours)
    _check_other_arms(folders, build.sentences)
    for strategy in wanted:
        build.make_groups(strategy)
    results = {arm: build.write_records(arm) for arm in examples.arms}
    # Every step has accepted it.
    on_first("note the design", write_json, folders.config, to_dict(config.design))
    if examples.evaluation_files:
        find_overlap(workdir, examples, build.sentences, build.runner)
    on_first("write the card", write_card, workdir)
    return results


@dataclasses.dataclass
class Build:
    """What the steps after the search have in common."""

    config: ExperimentConfig
    workdir: str
    folders: DesignFolders
    sentences: Sentences
    neighbours: Neighbours | None
    tokenizer: Tokenizer
    runner: Runner
    limit: int  # tokens of an example

    @classmethod
    def open(
        cls, config: ExperimentConfig, workdir: str | os.PathLike, neighbours: Neighbours | None
    ) -> "Build":
        """For a workdir whose sentences are there."""
        folders = DesignFolders(workdir)
        return cls(
            config,
            str(workdir),
            folders,
            Sentences.open(workdir, bool(config.design.queries.files)),
            neighbours,
            Tokenizer.open(folders.tokenizer),
            folders.runner(config.design),
            config.design.examples.max_tokens or config.sequence_length,
        )

    @property
    def examples(self) -> ExamplesConfig:
        return self.config.design.examples

    @property
    def marks(self) -> Marks:
        return Marks.of(self.tokenizer)

    @property
    def between(self) -> int:
        """How many tokens each further sentence of a group adds to its own, at most."""
        return self.marks.between(self.examples.rows)

    def make_groups(self, strategy: str) -> Groups:
        """The groups of a strategy, filtered by gain if that is asked for."""
        if strategy == "neighbours" and not self.neighbours.results["queries_with_neighbours"]:
            raise StageError(self._why_no_neighbours())  # every arm would be the queries alone
        groups = getattr(self, f"_{strategy}")()
        if not len(groups):
            raise StageError(self._why_no_groups(strategy, groups.results))
        folder = self.folders.groups / strategy
        if gain_inputs(self.examples, strategy):
            filter_groups(
                folder, self.examples, self.limit, make_host_mesh(self.config.mesh), self.sentences,
                self.tokenizer, self.runner, self.workdir, strategy == "document_path",
            )  # fmt: skip
        else:
            keep_all(folder)
        return groups

    def write_records(self, arm: str) -> dict:
        """The records of an arm; its results."""
        return write_arm(
            self.workdir,
            self.sentences,
            self.folders.groups / ARMS[arm].strategy,
            arm,
            ARMS[arm].layout,
            self.config.sequence_length,
            self.config.seed,
            shard_bytes_of(self.config.design),
            self.runner,
            self.folders.arms / arm,
            planned_rows(self.examples, arm),
        )

    def _contiguous(self) -> Groups:
        corpus = self.sentences.corpus
        tokenizer = (str(self.folders.tokenizer), self.tokenizer.fingerprint)
        first = (self.workdir, self.sentences.fingerprint, tokenizer, self.limit)
        return self._by_shard(
            "contiguous", {}, contiguous.make_shard, lambda *place: (*first, *place), corpus.starts
        )

    def _neighbours(self) -> Groups:
        return self._related("neighbours", self.folders.neighbours)

    def _shared_entity(self) -> Groups:
        folder = self.folders.entity_neighbours
        make_related_by_entity(
            self.workdir, self.sentences, self.config.design, self.runner, folder
        )
        return self._related("shared_entity", folder)

    def _related(self, strategy: str, folder: Path) -> Groups:
        least = self.examples.min_neighbours
        first = (
            self.workdir, self.sentences.fingerprint, str(folder), self.marks, self.limit,
            self.between, least,
        )  # fmt: skip
        return self._by_shard(
            strategy,
            {"related": read_inputs(folder), "min_neighbours": least},
            neighbour_groups.make_shard,
            lambda *place: (*first, *place),
            self.sentences.query_table.starts,
        )

    def _task_only(self) -> Groups:
        neighbours = self.folders.groups / "neighbours"
        return self._by_shard(
            "task_only",
            {"neighbours": read_inputs(neighbours), "gain": self._gain()},
            task_only.make_shard,
            lambda *place: (str(neighbours), *place),
            self.sentences.query_table.starts,
        )

    def _random(self) -> Groups:
        neighbours, table = self.folders.groups / "neighbours", self.sentences.query_table
        own = self.sentences.queries is not None
        vectors = self.folders.query_vectors if own else self.folders.corpus_vectors
        vectors = (str(self.folders.corpus_vectors), str(vectors))
        slots = [random_groups.count_slots(str(neighbours), i) for i in range(table.num_shards)]
        first_slot = [sum(slots[:index]) for index in range(len(slots))]
        threshold = self.config.design.search.min_similarity
        first = (self.workdir, self.sentences.fingerprint, str(neighbours), vectors, threshold)

        def deal(folder: Path) -> dict:
            same_document = self.config.design.search.same_document
            return random_groups.deal_anew(
                neighbours, self.neighbours, self.sentences, same_document, self.limit,
                self.marks, self.between, self.config.seed, folder,
            )  # fmt: skip

        groups = self._by_shard(
            "random",
            {
                "neighbours": read_inputs(neighbours),
                "gain": self._gain(),
                "seed": self.config.seed,
            },
            random_groups.make_shard,
            lambda folder, index: (*first, folder, index, first_slot[index]),
            table.starts,
            deal,
        )
        # Not an input: a build that stopped here goes on once the user allows it.
        random_groups.check_related(groups.results, threshold, self.examples.max_related_share)
        return groups

    def _document_path(self) -> Groups:
        return make_document_path(
            self.workdir, self.sentences, self.examples,
            self.config.design.search.duplicate_jaccard, self.limit, self.config.seed, self.runner,
            self.folders.groups / "document_path",
        )  # fmt: skip

    def _by_shard(
        self,
        strategy: str,
        inputs: dict,
        make_shard: Callable,
        task: Callable[[str, int], tuple],
        starts,
        prepare: Callable[[Path], dict] | None = None,
    ) -> Groups:
        """Makes the shards that are not there yet, after what must be made once for all of them."""
        folder = self.folders.groups / strategy
        made_from = {
            "sentences": self.sentences.fingerprint,
            "tokenizer": self.tokenizer.fingerprint,
            "limit": self.limit,
            **({"between": self.between} if self.between > 1 else {}),  # older designs have none
            **inputs,
        }
        step = StepFolder(folder, made_from)
        if step.results is None:
            shards = range(len(starts) - 1)
            prepared = once(folder, prepare, folder) if prepare else {}
            make_shards(
                f"groups: {strategy}", folder, np.diff(starts),
                lambda shard: group_file(folder, shard).exists(), make_shard,
                lambda shard: task(str(folder), shard), self.runner,
            )  # fmt: skip
            step.complete(
                lambda: {
                    "shards": len(shards),
                    **prepared,
                    **add_up(read_counts(folder, shard) for shard in shards),
                }
            )
        return Groups.open(folder)

    def _gain(self) -> dict:
        """What the neighbour groups that were kept depend on."""
        return gain_inputs(self.examples, "neighbours")

    def _why_no_neighbours(self) -> str:
        results = self.neighbours.results
        field = "queries" if self.config.design.queries.files else "corpus"
        nearest = results.get("nearest_in_sample")
        found = "" if nearest is None else f", the nearest of a sample is at {nearest:g}"
        return (
            f"none of the {results['queries']:,} sentences of design.{field} has a neighbour in "
            f"the corpus above design.search.min_similarity = {results['min_similarity']:g}{found}:"
            f" {describe_thresholds(results)}. What is near: "
            + suggest("retrieval.show", workdir=self.workdir, query="TEXT")
        )

    def _why_no_groups(self, strategy: str, results: dict) -> str:
        message = f"the strategy {strategy} makes no group at all: "
        if "queries" in results:
            return message + (
                f"of {results['queries']:,} queries {results['too_few_neighbours']:,} have fewer "
                f"than design.examples.min_neighbours = {self.examples.min_neighbours} related "
                f"sentences, and of {results['too_long']:,} too few fit into {self.limit} tokens"
            )
        return message + "there are no sentences"


def _check(config: ExperimentConfig) -> None:
    """Stops on what can be seen before hours are spent on the steps before."""
    design, limit = config.design, config.design.examples.max_tokens or config.sequence_length
    tables = {"corpus": design.corpus}
    if design.queries.files:
        tables["queries"] = design.queries
    for name, table in tables.items():
        if limit < table.max_sentence_tokens + 2:
            raise ConfigError(
                f"an example has at most {limit} tokens (design.examples.max_tokens, or "
                f"sequence_length), too few for a sentence of design.{name}.max_sentence_tokens = "
                f"{table.max_sentence_tokens} and its two special tokens; raise the one or lower "
                "the other"
            )
    if limit > config.sequence_length:
        raise ConfigError(
            f"design.examples.max_tokens {limit} is above sequence_length "
            f"{config.sequence_length}, the longest row that training takes; change one of them"
        )
    if design.runner == "beam":
        from icl_jax.workers import beam as parallel_beam

        parallel_beam.check(design.beam_options)
    if "document_path" in design.examples.arms:
        check_queries(bool(design.queries.files))
    if design.examples.gain_model:
        published = design.tokenizer.folder
        tokenizer = load(published, design.tokenizer.separator) if published else None
        check_gain_model(design.examples, limit, tokenizer)
    if design.examples.evaluation_files:
        check_evaluation_files(design.examples)


def _check_other_arms(folders: DesignFolders, sentences: Sentences) -> None:
    """Arms of one build number the same sentences."""
    for arm in sorted(path.parent for path in folders.arms.glob("*/results.json")):
        if read_inputs(arm)["sentences"] != sentences.fingerprint:
            raise StageError(
                f"{arm} was built from other sentences, with or without those of design.queries; "
                "choose another --workdir, or delete that folder"
            )


def _print_related(design: DesignConfig, folders: DesignFolders) -> None:
    """How far the random arms are a control; they have their groups in common."""
    arms = [arm for arm in design.examples.arms if ARMS[arm].strategy == "random"]
    if not arms:
        return
    results = Groups.open(folders.groups / "random").results
    warning = ""
    if random_groups.related_share(results) >= random_groups.WARN_SHARE:
        warning = "WARNING: a control should have less than 1%. "
    told = random_groups.describe_related(results, design.search.min_similarity)
    print(f"{warning}{', '.join(arms)}: {told}")


def _print_summary(results: dict[str, dict], workdir: str | os.PathLike) -> None:
    print(f"{'arm':24}{'groups':>12}{'sentences':>12}{'tokens':>14}{'records':>12}{'filled':>8}")
    for arm, found in results.items():
        counts = "".join(f"{found[name]:12,}" for name in ("groups", "sentences"))
        rest = f"{found['tokens']:14,}{found['records']:12,}{found['filled']:8.1%}"
        print(f"{arm:24}{counts}{rest}")
    designed = [arm for arm in results if arm != "contiguous"]
    arm = next(iter(designed or results))
    print(f"look at them: {DesignFolders(workdir).card}")
    print(suggest("design.explain", workdir=workdir, arm=arm, index=0))
