"""From a corpus to each sentence's related sentences: the first half of the `design` stage.

Every step has its folder in WORKDIR/design; a complete one is taken as it is, a begun one goes on.
"""

import dataclasses
import itertools
import os
from pathlib import Path

from jax.sharding import Mesh

from icl_jax.cli import suggest
from icl_jax.config import ConfigError, CorpusConfig, DesignConfig, ExperimentConfig
from icl_jax.config.tree import find_problems, to_dict
from icl_jax.corpus.files import describe_files
from icl_jax.corpus.sentence_table import SentenceTable, build_table
from icl_jax.corpus.sentences import RULES_VERSION
from icl_jax.corpus.tokenizers import Tokenizer, load
from icl_jax.corpus.train_tokenizer import sample_sentences, train
from icl_jax.corpus.words import RULES_VERSION as WORD_RULES
from icl_jax.design.folders import DesignFolders, shard_bytes_of
from icl_jax.files.step_folder import StepFolder, write_json
from icl_jax.retrieval.embeddings import embed_table
from icl_jax.retrieval.encoders.encoder import Encoder, fit_tfidf, open_encoder
from icl_jax.retrieval.neighbours import Neighbours
from icl_jax.retrieval.search.find import find_neighbours
from icl_jax.retrieval.search.open_search import check_search
from icl_jax.sharding import make_host_mesh
from icl_jax.workers.job import on_first


def find_related(
    config: ExperimentConfig, workdir: str | os.PathLike, neighbours: bool = True
) -> Neighbours | None:
    """Runs what is not complete yet: tokenizer, sentences; if asked for, vectors, neighbours."""
    check_design(config, workdir)
    design, folders = config.design, DesignFolders(workdir)
    runner = folders.runner(design)
    on_devices = neighbours and (design.encoder.folder or design.search.engine == "jax")
    mesh = make_host_mesh(config.mesh) if on_devices else None
    encoder = None
    if neighbours and design.encoder.folder:
        # What a folder says is read first: a wrong one must not be found after hours.
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
    _print_summary(corpus, found, design, workdir)
    return found


def check_design(config: ExperimentConfig, workdir: str | os.PathLike) -> None:
    """Stops on everything that can be seen from the config alone."""
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
        describe_files(config.design.queries, field="design.queries")  # are they there?


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
            "document are left out, so there can be none; if its documents are parted by blank "
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


def _print_summary(
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
