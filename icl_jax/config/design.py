"""From text to training examples: corpus, tokenizer, encoder, search, arms."""

import dataclasses
import re

from icl_jax.config.checks import (
    require_at_least_0,
    require_choice,
    require_positive,
    require_share,
)
from icl_jax.config.model import DTYPES
from icl_jax.design.arms import ARMS, own_strategies

CORPUS_FORMATS = ("auto", "text", "jsonl", "wikiextractor", "parquet")
TEXT_DOCUMENTS = ("file", "block", "line")
LONG_SENTENCES = ("split", "drop")
STORES = ("float16", "float32")
ENGINES = ("faiss", "jax")
RUNNERS = ("local", "beam")
PACKED, ONE_QUERY = ROWS = ("packed", "one_query")
JAX_INDEXES = ("auto", "exact", "approximate")
MIN_TRAINED_VOCABULARY = 257
MAX_NEIGHBOURS = 500  # a query gets at most 2,048 candidates
MAX_SHARD_MEGABYTES = 512  # a worker holds a whole shard


@dataclasses.dataclass
class CorpusConfig:
    """Which documents are read, and how they become sentences (rules: `corpus/sentences.py`)."""

    # Files, folders or globs; tfds:NAME (tfds:wikipedia/20230601.en) or a prepared tfds:FOLDER; or
    # builtin:encyclopaedia.
    files: tuple[str, ...] = ()
    format: str = "auto"  # auto (by name), text, jsonl, wikiextractor, parquet; .gz is unpacked
    text_field: str = "text"  # jsonl, parquet, tfds: the field that holds the text
    title_field: str = "title"  # the same for the title, if there is one
    text_documents: str = "file"  # a document in a text file: file, block (blank lines), line
    language: str = "en"  # for the sentence splitter
    clean: bool = True  # drop titles, headings, lists and leftovers of markup
    max_sentence_tokens: int = 128  # what happens to longer sentences is next
    long_sentences: str = "split"  # split or drop
    max_bad_share: float = 0.01  # of documents that may be unreadable; more stop the run
    megabytes: float = 0.0  # read only this much, up to the end of a shard; 0: everything

    def problems(self) -> list[str]:
        found: list[str] = []
        require_choice(found, "format", self.format, CORPUS_FORMATS)
        require_choice(found, "text_documents", self.text_documents, TEXT_DOCUMENTS)
        require_choice(found, "long_sentences", self.long_sentences, LONG_SENTENCES)
        require_positive(found, self, "max_sentence_tokens")
        require_share(found, self, "max_bad_share")
        require_at_least_0(found, self, "megabytes")
        if not re.fullmatch(r"[a-z]{2,3}(-[a-z]+)*", self.language):
            found.append(f"language must be a code such as en or pt-br, got '{self.language}'")
        return found


@dataclasses.dataclass
class TokenizerConfig:
    """From text to tokens: a published tokenizer, or one trained on the corpus."""

    folder: str = ""  # with tokenizer.json, or vocab.json + merges.txt; "": train one
    vocab_size: int = 8192  # of a trained one, including special tokens; at least 257
    # Between the sentences of an example. "": an unused token of the vocabulary (RoBERTa's
    # madeupword0000), or if there is none, a new token <|separator|> at its end (GPT-2: id 50257).
    separator: str = ""

    def problems(self) -> list[str]:
        if self.folder:
            return []
        found: list[str] = []
        if self.vocab_size < MIN_TRAINED_VOCABULARY:
            least = MIN_TRAINED_VOCABULARY
            found.append(f"vocab_size must be at least {least}, got {self.vocab_size}")
        if self.separator:
            found.append(
                f"separator '{self.separator}' is for a published tokenizer (tokenizer.folder); "
                "a trained one always has <|separator|>"
            )
        return found


@dataclasses.dataclass
class EncoderConfig:
    """What turns sentences into vectors."""

    # A sentence-transformers folder (BERT, RoBERTa), or a model folder (mean of the last layer; for
    # our own models see `training.export`). "": TF-IDF and SVD, fitted on the corpus.
    folder: str = ""
    tfidf_dim: int = 512  # of these vectors
    max_tokens: int = 0  # longer sentences are cut; 0: as the folder says
    # Tokens of one step, including padding; a CPU gets at most 1024 per device, for its caches.
    batch_tokens: int = 8192
    dtype: str = "float32"  # of the matrix products; bfloat16 on accelerators
    store: str = "float16"  # of the vectors on disk; or float32

    def problems(self) -> list[str]:
        found: list[str] = []
        require_choice(found, "dtype", self.dtype, DTYPES)
        require_choice(found, "store", self.store, STORES)
        require_positive(found, self, "tfidf_dim", "batch_tokens")
        require_at_least_0(found, self, "max_tokens")
        return found


@dataclasses.dataclass
class SearchConfig:
    """Which sentences count as related."""

    neighbours: int = 10  # at most, per query
    # A neighbour's cosine must be above this (Levine et al. 2022, section 3, with RoBERTa-large).
    # The right value depends on the encoder: 0.8 is rare with MiniLM, 0.4 is near with TF-IDF.
    min_similarity: float = 0.8
    same_document: bool = False  # True: neighbours may come from the query's own document
    # Near duplicates of the query and of each other are excluded: sentences whose sets of three
    # consecutive words have at least this Jaccard index. Above 1: only equal sentences are.
    duplicate_jaccard: float = 0.6
    engine: str = "faiss"  # or jax: brute force on the devices
    index: str = "auto"  # faiss: a factory string; jax: exact or approximate; auto: by size
    probes: int = 0  # faiss IVF: lists searched per query; 0: automatic
    memory_gigabytes: float = 8.0  # limit for the automatic choice of an index
    recall_sample: int = 1000  # queries whose recall against brute force is measured; 0: none

    def problems(self) -> list[str]:
        found: list[str] = []
        if not 1 <= self.neighbours <= MAX_NEIGHBOURS:
            found.append(f"neighbours must be from 1 to {MAX_NEIGHBOURS}, got {self.neighbours}")
        require_choice(found, "engine", self.engine, ENGINES)
        if self.engine == "jax":
            require_choice(found, "index", self.index, JAX_INDEXES)
        if not -1 <= self.min_similarity <= 1:
            found.append(f"min_similarity must be a cosine, -1 to 1, got {self.min_similarity}")
        if not self.duplicate_jaccard > 0:
            found.append(f"duplicate_jaccard must be above 0, got {self.duplicate_jaccard}")
        if not self.memory_gigabytes > 0:
            found.append(f"memory_gigabytes must be above 0, got {self.memory_gigabytes}")
        require_at_least_0(found, self, "probes", "recall_sample")
        return found


@dataclasses.dataclass
class ExamplesConfig:
    """Which sentences share a training example, in which arms of a comparison."""

    # Names of `design/arms.py`; docs/designing.md says what each is.
    arms: tuple[str, ...] = (
        "contiguous", "neighbours_in_context", "random_in_context", "neighbours_in_batch",
        "random_in_batch",
    )  # fmt: skip
    max_tokens: int = 0  # of an example, including special tokens; 0: sequence_length
    # What a training row holds, in arms that have queries. packed: as many examples as fit.
    # one_query: a query and what belongs to it, so that every arm has the same queries in each
    # update (Levine et al. 2022, section 3.1); in batch, its sentences share the row, each as a
    # separate example. Needs data.pack=False, which branches.epochs sets.
    rows: str = "packed"
    min_neighbours: int = 1  # a query with fewer is excluded from every arm that has queries
    path_diversity: float = 0.0  # document_path: 0 to 1, penalty for repeating the last context
    entity_documents: int = 20  # shared_entity: a term in more documents than this is not rare
    # A group is kept only if this model (a Hugging Face folder; for ours see `training.export`)
    # predicts its sentences better together than apart, by more than `min_gain` nats per token.
    # "": all groups are kept.
    gain_model: str = ""
    min_gain: float = 0.0
    # Whose groups are filtered so; strategies that are made from others follow these.
    gain_strategies: tuple[str, ...] = ("neighbours", "shared_entity", "document_path")
    evaluation_files: tuple[str, ...] = ()  # the data card reports their overlap with the examples
    # The arms random_* may by chance give a query sentences with a cosine above
    # search.min_similarity: this share of them stops the build (1: never), 1% causes a warning.
    max_related_share: float = 0.05
    overlap_words: int = 13  # this many consecutive words in common count as overlap
    card_samples: int = 100  # examples of each arm in the data card

    def problems(self) -> list[str]:
        found: list[str] = []
        for arm in self.arms:
            require_choice(found, "arms: each", arm, tuple(ARMS))
        for strategy in self.gain_strategies:
            require_choice(found, "gain_strategies: each", strategy, tuple(own_strategies()))
        if len(set(self.arms)) < len(self.arms) or not self.arms:
            found.append(f"arms must name at least one arm, and none twice, got {self.arms}")
        require_choice(found, "rows", self.rows, ROWS)
        require_at_least_0(found, self, "max_tokens", "min_neighbours", "card_samples")
        require_share(found, self, "path_diversity", "max_related_share")
        require_positive(found, self, "overlap_words")
        if self.entity_documents < 2:
            found.append(f"entity_documents must be at least 2, got {self.entity_documents}")
        if not abs(self.min_gain) < float("inf"):
            found.append(f"min_gain must be a number, got {self.min_gain}")
        return found


@dataclasses.dataclass
class DesignConfig:
    """From text to training examples."""

    corpus: CorpusConfig = dataclasses.field(default_factory=CorpusConfig)
    # kNN-TAPT: the task's sentences; without files, the sentences of the corpus are the queries.
    queries: CorpusConfig = dataclasses.field(default_factory=CorpusConfig)
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    encoder: EncoderConfig = dataclasses.field(default_factory=EncoderConfig)
    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)
    examples: ExamplesConfig = dataclasses.field(default_factory=ExamplesConfig)
    shard_megabytes: float = 4.0  # of text; at most this much work is lost if the run is killed
    workers: int = 0  # processes; 0: one per core. The result does not depend on it
    runner: str = "local"  # or beam: Apache Beam (extra beam); every worker must see the workdir
    beam_options: tuple[str, ...] = ()  # as for any Beam pipeline, such as --runner=FlinkRunner

    def problems(self) -> list[str]:
        found: list[str] = []
        require_choice(found, "runner", self.runner, RUNNERS)
        if self.beam_options and self.runner != "beam":
            found.append(f"beam_options are for runner=beam, but runner is '{self.runner}'")
        if not 0 < self.shard_megabytes <= MAX_SHARD_MEGABYTES:
            found.append(
                f"shard_megabytes must be above 0 and at most {MAX_SHARD_MEGABYTES}, "
                f"got {self.shard_megabytes}"
            )
        require_at_least_0(found, self, "workers")
        return found
