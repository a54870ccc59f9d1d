"""The design stage: from a corpus to the records of every arm, and their data card.

Every step has its folder in WORKDIR/design; a complete one is kept, a started one continues. All
arms of a build are made from the same sentences, so that they differ in arrangement alone.
"""

import dataclasses
import itertools
import os
from pathlib import Path

from jax.sharding import Mesh

from icl_jax.cli import suggest
from icl_jax.config import (
    ConfigError,
    CorpusConfig,
    DesignConfig,
    ExperimentConfig,
    StageError,
)
from icl_jax.config.tree import find_problems, to_dict
from icl_jax.corpus.files import describe_files
from icl_jax.corpus.sentence_table import SentenceTable, build_table
from icl_jax.corpus.sentences import RULES_VERSION
from icl_jax.corpus.tokenizers import Tokenizer, load
from icl_jax.corpus.train_tokenizer import sample_sentences, train
from icl_jax.corpus.words import RULES_VERSION as WORD_RULES
from icl_jax.design.arms import ARMS, strategies_of
from icl_jax.design.build import Build
from icl_jax.design.card.data_card import write_card
from icl_jax.design.contamination.overlap import check_evaluation_files, find_overlap
from icl_jax.design.folders import DesignFolders, planned_rows, shard_bytes_of
from icl_jax.design.gain.filter import filter_groups, keep_all
from icl_jax.design.gain.model import check_gain_model, gain_inputs
from icl_jax.design.groups import Groups
from icl_jax.design.records.records import write_arm
from icl_jax.design.sentences import Sentences
from icl_jax.design.steps import refuse_other_inputs
from icl_jax.design.strategies.strategy import need_neighbours, open_strategy
from icl_jax.files.folder_lock import alone_in
from icl_jax.files.step_folder import OtherInputsError, StepFolder, read_inputs, write_json
from icl_jax.retrieval.embeddings import embed_table
from icl_jax.retrieval.encoders.encoder import Encoder, fit_tfidf, open_encoder
from icl_jax.retrieval.neighbours import Neighbours
from icl_jax.retrieval.search.find import find_neighbours
from icl_jax.retrieval.search.open_search import check_search
from icl_jax.sharding import make_host_mesh
from icl_jax.workers.job import on_first


def design(config: ExperimentConfig, workdir: str | os.PathLike) -> None:
    """Runs every step that is not complete yet; prints what was made and where to look."""
    check_design(config)
    _check_examples(config)
    folders = DesignFolders(workdir)
    with alone_in(folders.path):
        try:
            results = _run_steps(config, workdir, folders)
        except OtherInputsError as error:
            raise refuse_other_inputs(error, folders) from None
    _print_summary(results, workdir)
    _print_remarks(config.design, folders)


def _run_steps(
    config: ExperimentConfig, workdir: str | os.PathLike, folders: DesignFolders
) -> dict[str, dict]:
    """All steps in order; the results of every arm."""
    examples = config.design.examples
    strategies = strategies_of(examples.arms)
    # Tokenizer, sentences, vectors, neighbours.
    neighbours = find_related(config, workdir, need_neighbours(strategies))
    build = Build.open(config, workdir, neighbours)
    _check_other_arms(folders, build.sentences)
    for strategy in strategies:
        make_groups(build, strategy)
    results = {arm: _write_records(build, arm) for arm in examples.arms}
    # Every step has accepted it.
    on_first("note the design", write_json, folders.config, to_dict(config.design))
    if examples.evaluation_files:
        find_overlap(workdir, examples, build.sentences, build.runner)
    on_first("write the card", write_card, workdir)
    return results


def find_related(
    config: ExperimentConfig, workdir: str | os.PathLike, neighbours: bool = True
) -> Neighbours | None:
    """The steps before the groups: tokenizer, sentences; if requested, vectors and neighbours."""
    check_design(config)
    design, folders = config.design, DesignFolders(workdir)
    runner = folders.runner(design)
    on_devices = neighbours and (design.encoder.folder or design.search.engine == "jax")
    mesh = make_host_mesh(config.mesh) if on_devices else None
    encoder = None
    if neighbours and design.encoder.folder:
        # Read first, so that a wrong folder is not found after hours.
        encoder = open_encoder(design.encoder, mesh, None)

    tokenizer = _prepare_tokenizer(design, folders)
    _check_vocabulary(config, tokenizer.vocab_size)
    corpus = queries = _make_table(design, design.corpus, folders, folders.corpus)
    if design.queries.files:
        queries = _make_table(
            design, design.queries, folders, folders.queries, field="design.queries"
        )
    if not neighbours:
        return None

    _check_documents(corpus, design)
    encoder = encoder or _fit_encoder(design, corpus, folders, mesh, config.seed)
    check_search(len(corpus), encoder.width, design.search, mesh, runner)
    how = (runner, mesh, folders.encoder)
    vectors = embed_table(corpus, encoder, design.encoder, folders.corpus_vectors, *how)
    query_vectors = vectors
    if queries is not corpus:
        query_vectors = embed_table(queries, encoder, design.encoder, folders.query_vectors, *how)
    found = find_neighbours(
        queries, query_vectors, corpus, vectors, design.search, folders.neighbours, config.seed,
        mesh, runner, {**encoder.identity, "store": design.encoder.store},
    )  # fmt: skip
    on_first("note the design", write_json, folders.config, to_dict(design))  # read by `show`
    _print_search(corpus, found, design, workdir)
    return found


def make_groups(build: Build, name: str) -> Groups:
    """The groups of a strategy, filtered by gain if the config asks for it."""
    strategy = open_strategy(name)
    groups = strategy.make_groups(build)
    if not len(groups):
        raise StageError(_why_no_groups(build, name, groups.results))
    folder = build.folders.groups / name
    if gain_inputs(build.examples, name):
        filter_groups(
            folder, build.examples, build.limit, make_host_mesh(build.config.mesh), build.sentences,
            build.tokenizer, build.runner, build.workdir, strategy.whole_documents,
        )  # fmt: skip
    else:
        keep_all(folder)
    return groups


def _write_records(build: Build, arm: str) -> dict:
    """The records of an arm; its results."""
    return write_arm(
        build.workdir,
        build.sentences,
        build.folders.groups / ARMS[arm].strategy,
        arm,
        ARMS[arm].layout,
        build.config.sequence_length,
        build.config.seed,
        shard_bytes_of(build.config.design),
        build.runner,
        build.folders.arms / arm,
        planned_rows(build.examples, arm),
    )


def check_design(config: ExperimentConfig) -> None:
    """Stops on everything that is wrong in the config alone."""
    found = find_problems(config)
    if not config.design.corpus.files:
        found.append(
            "design.corpus.files is empty; expected files, folders or globs with text "
            "(--config.design.corpus.files=FOLDER)"
        )
    if found:
        raise ConfigError("; ".join(found))
    if not config.design.tokenizer.folder:
        _check_vocabulary(config, config.design.tokenizer.vocab_size)
    if config.design.queries.files:
        describe_files(config.design.queries, field="design.queries")  # do they exist?


def _check_examples(config: ExperimentConfig) -> None:
    """Stops on what would stop a later step, before hours are spent on the first ones."""
    design, limit = config.design, config.design.examples.max_tokens or config.sequence_length
    tables = {"corpus": design.corpus}
    if design.queries.files:
        tables["queries"] = design.queries
    for name, table in tables.items():
        if limit < table.max_sentence_tokens + 2:
            raise ConfigError(
                f"an example has at most {limit} tokens (design.examples.max_tokens, or "
                f"sequence_length), too few for a sentence of design.{name}.max_sentence_tokens = "
                f"{table.max_sentence_tokens} and its two special tokens; raise the first or "
                "lower the second"
            )
    if limit > config.sequence_length:
        raise ConfigError(
            f"design.examples.max_tokens {limit} is above sequence_length "
            f"{config.sequence_length}, the longest row that training takes; change one of them"
        )
    if design.runner == "beam":
        from icl_jax.workers import beam as parallel_beam

        parallel_beam.check(design.beam_options)
    for name in strategies_of(design.examples.arms):
        if (check := open_strategy(name).check) is not None:
            check(design)
    if design.examples.gain_model:
        published = design.tokenizer.folder
        tokenizer = load(published, design.tokenizer.separator) if published else None
        check_gain_model(design.examples, limit, tokenizer)
    if design.examples.evaluation_files:
        check_evaluation_files(design.examples)


def _prepare_tokenizer(design: DesignConfig, folders: DesignFolders) -> Tokenizer:
    config, shard_bytes = design.tokenizer, shard_bytes_of(design)
    if config.folder:
        tokenizer = load(config.folder, config.separator)
        inputs = {"published": tokenizer.fingerprint}
    else:
        tokenizer = None
        fields = dataclasses.asdict(design.corpus)
        for name in ("max_bad_share", "max_sentence_tokens", "long_sentences"):
            del fields[name]  # the sample does not depend on these
        inputs = {"files": describe_files(design.corpus), "corpus": fields}
        inputs |= {"rules": RULES_VERSION, "shard_bytes": shard_bytes}
        inputs["vocab_size"] = config.vocab_size
    step = StepFolder(folders.tokenizer, inputs)

    def make() -> dict:
        made = tokenizer
        if made is None:
            print(f"training a tokenizer of {config.vocab_size:,} tokens", flush=True)
            made = train(sample_sentences(design.corpus, shard_bytes), config.vocab_size)
        made.save(folders.tokenizer)
        return {"vocab_size": made.vocab_size, "fingerprint": made.fingerprint}

    if step.results is None:
        step.complete(make)
    return Tokenizer.open(folders.tokenizer)


def _check_vocabulary(config: ExperimentConfig, size: int) -> None:
    if size > config.model.vocab_size:
        raise ConfigError(
            f"the tokenizer has {size} ids, its separator included, but model.vocab_size is "
            f"{config.model.vocab_size}; set --config.model.vocab_size={size} or more, or choose "
            "another tokenizer (design.tokenizer)"
        )


def _make_table(
    design: DesignConfig, files: CorpusConfig, folders: DesignFolders, folder: Path, **field
) -> SentenceTable:
    shard_bytes, runner = shard_bytes_of(design), folders.runner(design)
    return build_table(files, folders.tokenizer, folder, shard_bytes, runner, **field)


def _check_documents(corpus: SentenceTable, design: DesignConfig) -> None:
    if corpus.num_documents == 1 and not design.queries.files and not design.search.same_document:
        raise ConfigError(
            f"the corpus is one document of {len(corpus)} sentences, and neighbours in the same "
            "document are left out, so there can be none; if its documents are separated by blank "
            "lines, set design.corpus.text_documents=block, else design.search.same_document=True"
        )


def _fit_encoder(
    design: DesignConfig,
    corpus: SentenceTable,
    folders: DesignFolders,
    mesh: Mesh | None,
    seed: int,
) -> Encoder:
    """TF-IDF and SVD, fitted on the corpus."""
    config, language = design.encoder, design.corpus.language
    inputs = {"sentences": corpus.fingerprint, "dim": config.tfidf_dim, "seed": seed}
    inputs |= {"language": language, "words": WORD_RULES}
    step = StepFolder(folders.encoder, inputs)

    def fit() -> dict:
        print(f"fitting TF-IDF of {config.tfidf_dim} dimensions", flush=True)
        texts = itertools.chain.from_iterable(
            corpus.texts(shard).to_pylist() for shard in range(corpus.num_shards)
        )
        fit_tfidf(texts, config, folders.encoder, seed, language)
        return {}

    if step.results is None:
        step.complete(fit)
    return open_encoder(config, mesh, folders.encoder)


def _check_other_arms(folders: DesignFolders, sentences: Sentences) -> None:
    """Arms of one build number the same sentences."""
    for arm in sorted(path.parent for path in folders.arms.glob("*/results.json")):
        if read_inputs(arm)["sentences"] != sentences.fingerprint:
            raise StageError(
                f"{arm} was built from other sentences, with or without those of design.queries; "
                "choose another --workdir, or delete that folder"
            )


def _why_no_groups(build: Build, strategy: str, results: dict) -> str:
    message = f"the strategy {strategy} makes no group at all: "
    if "queries" in results:
        return message + (
            f"of {results['queries']:,} queries {results['too_few_neighbours']:,} have fewer "
            f"than design.examples.min_neighbours = {build.examples.min_neighbours} related "
            f"sentences, and for {results['too_long']:,} too few of these fit into {build.limit} "
            "tokens"
        )
    return message + "there are no sentences"


def _print_search(
    corpus: SentenceTable, neighbours: Neighbours, design: DesignConfig, workdir: str | os.PathLike
) -> None:
    results = neighbours.results
    share = results["queries_with_neighbours"] / max(1, results["queries"])
    recall = results["recall"].get("neighbours")
    print(
        f"{len(corpus):,} sentences of {corpus.num_documents:,} documents; "
        f"{results['queries']:,} queries, {share:.1%} with a neighbour above "
        f"{design.search.min_similarity:g}, {results['mean_neighbours']:.2f} on average; "
        f"recall {'not measured' if recall is None else f'{recall:.3f}'} ({results['index']})\n"
        f"look at them: {suggest('retrieval.show', workdir=workdir, sentence=0)}"
    )


def _print_summary(results: dict[str, dict], workdir: str | os.PathLike) -> None:
    print(f"{'arm':24}{'groups':>12}{'sentences':>12}{'tokens':>14}{'records':>12}{'filled':>8}")
    for arm, found in results.items():
        counts = "".join(f"{found[name]:12,}" for name in ("groups", "sentences"))
        rest = f"{found['tokens']:14,}{found['records']:12,}{found['filled']:8.1%}"
        print(f"{arm:24}{counts}{rest}")
    designed = [arm for arm in results if open_strategy(ARMS[arm].strategy).score]
    arm = next(iter(designed or results))
    print(f"look at them: {DesignFolders(workdir).card}")
    print(suggest("design.explain", workdir=workdir, arm=arm, index=0))


def _print_remarks(design: DesignConfig, folders: DesignFolders) -> None:
    """What a strategy reports about its arms, such as whether the random ones are a control."""
    for name in strategies_of(design.examples.arms):
        arms = [arm for arm in design.examples.arms if ARMS[arm].strategy == name]
        remark = open_strategy(name).remark
        if arms and remark is not None:
            print(remark(arms, Groups.open(folders.groups / name).results, design))
