"""Every config dataclass, and the checks that stop a wrong one before any work is done.

A file of `configs/` defines `get_config() -> ExperimentConfig`; `--config.FIELD=value` overrides.
The dataclasses stay unfrozen because the flags assign to their fields.
"""

import dataclasses

from icl_jax import config_problems


class ConfigError(ValueError):
    """A config that cannot work; the message names every wrong field, what it holds and the fix."""


class StageError(RuntimeError):
    """A stage that found what must not be; the run stops with this message."""


class StoppedError(Exception):
    """A signal stopped the training, which was saved: nothing is wrong, but later stages wait."""


@dataclasses.dataclass(unsafe_hash=True)
class TransformerConfig:
    """What GPT and RoBERTa have in common. Hashable, for a model keeps a copy as static data."""

    vocab_size: int = 50257
    context_length: int = 1024  # most tokens of one group; learned positions have this many rows
    num_layers: int = 12
    embed_dim: int = 768
    num_heads: int = 12
    head_dim: int | None = None  # None: embed_dim / num_heads
    mlp_dim: int | None = None  # None: 4 * embed_dim
    activation: str = "gelu_new"  # gelu (exact), gelu_new (tanh form), relu, silu
    norm_epsilon: float = 1e-5
    position: str = "learned"  # learned, sinusoidal, linear, none, alibi, rotary
    embedding_rank: int | None = None  # r: token embedding factored V x r, r x D; None: full
    position_rank: int | None = None  # the same for learned positions
    tie_head: bool = True  # False: the output head has a matrix of its own
    embedding_dropout: float = 0.1  # dropout acts only where a dropout key is given
    attention_dropout: float = 0.1
    residual_dropout: float = 0.1
    dtype: str = "float32"  # of the matrix products; parameters, softmax, norms, logits: float32
    scan_layers: bool = False  # True: one compiled block, parameters stacked over layers
    remat: str = "none"  # recompute in the backward pass: none, dots (keep matmuls), full
    # plain; splash: the TPU's kernel, which has neither ALiBi nor attention dropout; auto: splash
    # where it can be and is faster: on a TPU, rows of 1,024 tokens or more, attention_dropout 0.
    attention: str = "auto"

    def problems(self) -> list[str]:
        return config_problems.transformer_problems(self)


@dataclasses.dataclass(unsafe_hash=True)
class GPTConfig(TransformerConfig):
    """A GPT-2 decoder: pre-norm, causal. The defaults are GPT-2 base."""


@dataclasses.dataclass(unsafe_hash=True)
class RobertaConfig(TransformerConfig):
    """A RoBERTa or BERT encoder: post-norm, bidirectional. The defaults are RoBERTa-base."""

    vocab_size: int = 50265
    context_length: int = 512
    activation: str = "gelu"
    token_types: int = 1  # rows of the token type embedding (RoBERTa 1, BERT 2)
    pad_token_id: int = 1  # its embedding starts at zero
    position_offset: int = 2  # position row of a group's first token; RoBERTa: pad_token_id + 1
    head_activation: str = "gelu"  # of the MLM head: RoBERTa's is gelu, BERT's that of the layers
    mlm_head: bool = True  # False: an encoder without output head (hidden states only)
    pooler: bool = False  # BERT's tanh layer on the first token, kept for the round trip

    def problems(self) -> list[str]:
        return config_problems.roberta_problems(self)


@dataclasses.dataclass(unsafe_hash=True)
class LinearAttentionConfig:
    """The network the theory analyses (Levine et al. 2022, eq. 1-3; Wies et al. 2021, eq. 1-5)."""

    vocab_size: int = 257
    context_length: int = 64
    num_layers: int = 3
    embed_dim: int = 32
    num_heads: int = 2
    head_dim: int | None = None  # d_a; None: embed_dim / num_heads
    causal: bool = False
    residual: bool = False  # Levine et al. 2020, A.4
    embedding: str = "vocabulary"  # or convolution (Wies et al. 2021, eq. 2)
    input_dim: int = 1  # convolution: size of a raw input vector
    kernel_size: int = 1  # convolution: raw input vectors to a position (M / N)
    position: str = "none"  # none, learned, sinusoidal, linear: what can be added to an embedding
    embedding_rank: int | None = None  # r
    position_rank: int | None = None
    tie_head: bool = True  # logits from the vocabulary matrix; a convolution has none to tie to
    dtype: str = "float32"  # float64 under jax.enable_x64, as `theory` measures
    scan_layers: bool = False
    remat: str = "none"

    def problems(self) -> list[str]:
        return config_problems.linear_attention_problems(self)


ModelConfig = GPTConfig | RobertaConfig | LinearAttentionConfig


@dataclasses.dataclass
class MeshConfig:
    """Devices per mesh axis; one axis may be -1: all devices that the others leave."""

    data: int = -1  # copies of the parameters, each with its part of the batch
    fsdp: int = 1  # parameters and batch cut over these
    tensor: int = 1  # heads, feed-forward and vocabulary cut over these

    def problems(self) -> list[str]:
        return config_problems.mesh_problems(self)


@dataclasses.dataclass
class CorpusConfig:
    """Which documents are read, and how they become sentences (rules: `corpus/sentences.py`)."""

    # Files, folders or globs; tfds:NAME (tfds:wikipedia/20230601.en) or tfds:FOLDER, prepared; or
    # builtin:encyclopaedia.
    files: tuple[str, ...] = ()
    format: str = "auto"  # auto (by name), text, jsonl, wikiextractor, parquet; .gz is unpacked
    text_field: str = "text"  # jsonl, parquet, tfds: the field that holds the text
    title_field: str = "title"  # the same, of the title, where there is one
    text_documents: str = "file"  # in a text file a document is: file, block (blank lines), line
    language: str = "en"  # of the sentence splitter
    clean: bool = True  # drop titles, headings, lists and what is left of markup
    max_sentence_tokens: int = 128  # longer sentences are
    long_sentences: str = "split"  # split or drop
    max_bad_share: float = 0.01  # of the documents may be unreadable; more stop the run
    megabytes: float = 0.0  # only the first so many, to the end of a shard; 0: all

    def problems(self) -> list[str]:
        return config_problems.corpus_problems(self)


@dataclasses.dataclass
class TokenizerConfig:
    """Text to the tokens of the model: a published tokenizer, or one trained on the corpus."""

    folder: str = ""  # with tokenizer.json, or vocab.json + merges.txt; "": train one
    vocab_size: int = 8192  # of the trained one, special tokens included; from 257 up
    # Between the sentences of an example. "": one that the vocabulary holds unused (RoBERTa's
    # madeupword0000), else the new token <|separator|> at its end (GPT-2: id 50257).
    separator: str = ""

    def problems(self) -> list[str]:
        return config_problems.tokenizer_problems(self)


@dataclasses.dataclass
class EncoderConfig:
    """What turns sentences into vectors."""

    # A sentence-transformers folder (BERT, RoBERTa), or a model folder (mean of the last layer; our
    # own by `training.export`). "": TF-IDF and SVD, fitted on the corpus.
    folder: str = ""
    tfidf_dim: int = 512  # of these vectors
    max_tokens: int = 0  # a longer sentence is cut; 0: what the folder says
    # Tokens of one step, padding included; a CPU takes at most 1024 for each device: its caches.
    batch_tokens: int = 8192
    dtype: str = "float32"  # of the matrix products; bfloat16 on accelerators
    store: str = "float16"  # of the vectors on disk; or float32

    def problems(self) -> list[str]:
        return config_problems.encoder_problems(self)


@dataclasses.dataclass
class SearchConfig:
    """Which sentences count as related."""

    neighbours: int = 10  # most of one query
    # Cosine that a neighbour must be above (Levine et al. 2022, section 3, with RoBERTa-large). It
    # belongs to the encoder: 0.8 is rare with MiniLM, and with TF-IDF 0.4 is already near.
    min_similarity: float = 0.8
    same_document: bool = False  # True: a query's own document may hold neighbours too
    # Near duplicates are left out, of the query and of each other: sentences whose sets of three
    # consecutive words have at least this Jaccard index. Above 1: only equal sentences are.
    duplicate_jaccard: float = 0.6
    engine: str = "faiss"  # or jax: brute force on the devices
    index: str = "auto"  # faiss: a factory string; jax: exact or approximate; auto: by size
    probes: int = 0  # faiss IVF: lists searched for a query; 0: automatic
    memory_gigabytes: float = 8.0  # that an automatic choice may take
    recall_sample: int = 1000  # queries whose recall against brute force is measured; 0: none

    def problems(self) -> list[str]:
        return config_problems.search_problems(self)


@dataclasses.dataclass
class ExamplesConfig:
    """Which sentences share a training example, in which arms of a comparison."""

    # contiguous (regular pretraining), task_only (the queries alone), neighbours_in_context,
    # random_in_context, neighbours_in_batch, random_in_batch (Levine et al. 2022, section 3.1),
    # document_path (Shi et al. 2024), shared_entity.
    arms: tuple[str, ...] = (
        "contiguous", "neighbours_in_context", "random_in_context", "neighbours_in_batch",
        "random_in_batch",
    )  # fmt: skip
    max_tokens: int = 0  # of an example, special tokens included; 0: sequence_length
    # What a row of training holds, of the arms that have queries. packed: as many examples as fit.
    # one_query: a query and what belongs to it, so that every arm has the same queries in each
    # update (Levine et al. 2022, section 3.1); in batch, its sentences share the row, each an
    # example of its own. Needs data.pack=False, which branches.epochs see to.
    rows: str = "packed"
    min_neighbours: int = 1  # a query with fewer is left out of every arm that has queries
    path_diversity: float = 0.0  # document_path: 0 to 1, penalty for what the last context had
    entity_documents: int = 20  # shared_entity: a term in more documents than this is not rare
    # A group is kept only if this model (a Hugging Face folder, or ours by `training.export`) finds
    # its sentences easier in context than apart, by more than `min_gain` nats per token. "": all.
    gain_model: str = ""
    min_gain: float = 0.0
    # Whose groups are filtered so; those of random and task_only follow neighbours.
    gain_strategies: tuple[str, ...] = ("neighbours", "shared_entity", "document_path")
    evaluation_files: tuple[str, ...] = ()  # whose overlap with the examples the data card tells
    # Of the sentences that the arms random_* deal to a query, those with a cosine above
    # search.min_similarity: this share or more stops the build (1: never), 1% is warned of.
    max_related_share: float = 0.05
    overlap_words: int = 13  # consecutive words in common count as overlap
    card_samples: int = 100  # examples of each arm that the data card shows

    def problems(self) -> list[str]:
        return config_problems.examples_problems(self)


@dataclasses.dataclass
class DesignConfig:
    """From text to training examples."""

    corpus: CorpusConfig = dataclasses.field(default_factory=CorpusConfig)
    # kNN-TAPT: the task's sentences; without files, the corpus is searched with its own sentences.
    queries: CorpusConfig = dataclasses.field(default_factory=CorpusConfig)
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    encoder: EncoderConfig = dataclasses.field(default_factory=EncoderConfig)
    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)
    examples: ExamplesConfig = dataclasses.field(default_factory=ExamplesConfig)
    shard_megabytes: float = 4.0  # of text; what is lost at most when the run is killed
    workers: int = 0  # processes; 0: one for each core. The result does not depend on it
    runner: str = "local"  # or beam: Apache Beam (extra beam); every worker must see the workdir
    beam_options: tuple[str, ...] = ()  # as for any Beam pipeline, such as --runner=FlinkRunner

    def problems(self) -> list[str]:
        return config_problems.design_problems(self)


@dataclasses.dataclass
class DataConfig:
    """Which records make up a batch. A source is a folder or a glob of TFRecord files."""

    sources: tuple[str, ...] = ()
    # (first step, weight of each source), from step 0 on. Regular examples until step 200,000, then
    # half and half in every batch: ((0, (1, 0)), (200_000, (1, 1))). Empty: equal weights.
    phases: tuple[tuple[int, tuple[float, ...]], ...] = ()
    # Put several short records into one row; each keeps its own groups. Never with records that
    # were designed for one query a row (design.examples.rows).
    pack: bool = False
    workers: int = 0  # processes that read ahead; 0: threads of the training process
    prefetch: int = 4  # batches read ahead (by each worker)

    def problems(self) -> list[str]:
        return config_problems.data_problems(self)


@dataclasses.dataclass
class OptimizerConfig:
    """AdamW and its learning rate. The defaults are those of kNN-Pretraining (appendix D)."""

    learning_rate: float = 6e-4  # the peak
    schedule: str = "cosine"  # after the warm-up: constant, linear or cosine down to `final_share`
    final_share: float = 0.0  # of the peak, at the last step
    schedule_steps: int = 0  # where the schedule ends; 0: at the last step of the run
    # Linear from 0; in steps, or in epochs where training.epochs (or branches.epochs) is set.
    warmup: float = 2000
    b1: float = 0.9
    b2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1  # of matrices and embeddings; never of biases and norms
    clip_norm: float = 1.0  # largest norm of the whole gradient; 0: no clipping

    def problems(self) -> list[str]:
        return config_problems.optimizer_problems(self)


@dataclasses.dataclass
class TrainingConfig:
    """What the model learns, for how long, and what is kept."""

    objective: str = "next_token"  # or masked_token
    steps: int = 0  # either this many steps
    epochs: float = 0.0  # or this many passes over the only source
    accumulate: int = 1  # parts of a batch that run one after the other; the result is the same
    dropout: bool = True  # the rates are the model's
    # What draws it: threefry, the same bits on every machine and mesh; rbg, the generator of the
    # hardware, which on a TPU takes a fraction of the time; auto: rbg on TPUs, threefry elsewhere.
    # A run keeps what it began with; weights and masks are always drawn by threefry.
    dropout_keys: str = "auto"
    ema_decay: float = 0.0  # moving average of the weights, kept beside them; 0: none
    mask_token_id: int = 50264  # masked_token: RoBERTa's <mask>
    # masked_token: these are never chosen, and never a random replacement.
    special_token_ids: tuple[int, ...] = (0, 1, 2, 3, 50264)
    mask_share: float = 0.15  # of the tokens are chosen; of those 80% masked, 10% random, 10% kept
    start_from: str = ""  # a Hugging Face folder, or the workdir of another run
    start_with: str = "weights"  # of another run: weights only, or everything (optimiser and step)
    # start_with=everything: True allows a schedule with another learning rate than that run had.
    rate_may_jump: bool = False
    checkpoint_every: int = 1000  # steps; the last step is always kept
    keep_last: int = 3  # checkpoints
    keep_every: int = 0  # steps: a checkpoint at a multiple of this is kept for good; 0: none
    log_every: int = 10  # steps between two lines of metrics.jsonl

    def problems(self) -> list[str]:
        return config_problems.training_problems(self)


@dataclasses.dataclass
class BranchesConfig:
    """Runs that all go on from the last checkpoint of this one, each its own way: a comparison."""

    # Arms of the design; or `regular`, which goes on with the sources that the run has; or `trunk`,
    # which is this run itself as it is, to be compared with the others. Empty: no branches.
    arms: tuple[str, ...] = ()
    reference: str = "neighbours_in_context"  # the arm that the others are compared with
    # Either so many steps more, by the same optimiser, whose schedule ends with them; examples of
    # the arm are this share of every batch, the rest is of the sources that the run has,
    steps: int = 0
    share: float = 0.5
    # or so many passes over the examples of the arm alone, by an optimiser of their own. With
    # design.examples.rows=one_query these are as many updates in every arm.
    epochs: float = 0.0
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    learning_rates: tuple[float, ...] = ()  # each arm with each of these; empty: the optimiser's
    seeds: int = 1  # each arm so often, with config.seed, config.seed + 1, ...

    def problems(self) -> list[str]:
        return config_problems.branches_problems(self)


@dataclasses.dataclass
class StsConfig:
    """Sentence similarity: the cosine of two sentences' vectors against people's scores."""

    # Which sets; each from the data folder in SentEval's layout (sts/, sick/), or from `files`.
    tasks: tuple[str, ...] = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
    # NAME=SOURCE: pairs from a .csv, .tsv, .jsonl or .parquet with columns sentence1, sentence2,
    # score (0 to 5) and, where there are subsets, subset; or from tfds:NAME:SPLIT, hf:NAME:SPLIT.
    # A name that is not among the tasks is a set of its own.
    files: tuple[str, ...] = ()
    tokenised: bool = False  # SentEval's tokenised, lower-cased text instead of the original
    # own: as the files of a sentence-transformers folder say, of other models mean. mean: of the
    # last layer's tokens. cls: the first token. first_last: mean of the first and the last layer.
    pooling: str = "own"
    special_tokens: bool = True  # whether begin and end tokens count in a mean

    def problems(self) -> list[str]:
        return config_problems.sts_problems(self)


@dataclasses.dataclass
class QuestionsConfig:
    """Closed-book questions: exact match and F1 of what a GPT goes on with after the prompt."""

    # A .jsonl, .parquet, tfds:natural_questions_open:validation or hf:NAME:SPLIT with columns
    # question and answer, a list of right ones; or builtin:encyclopaedia. "": the file
    # nq_open/NQ-open.dev.jsonl of the data folder.
    file: str = ""
    limit: int = 0  # the first so many questions; 0: all (the paper: 20,000 of the training set)
    preset: str = "gpt3"  # prompt and stop: gpt3, or harness (nq_open of lm-evaluation-harness)
    template: str = ""  # instead of the preset's, with {question}; \n is a new line
    stop: tuple[str, ...] = ()  # instead of the preset's: the answer ends before any of these
    max_new_tokens: int = 32
    shots: int = 0  # questions with their first answer before each question, drawn by the seed
    shots_file: str = ""  # where they come from, as `file`

    def problems(self) -> list[str]:
        return config_problems.questions_problems(self)


@dataclasses.dataclass
class GlueConfig:
    """Zero-shot GLUE: which label's word makes the filled template most likely."""

    tasks: tuple[str, ...] = ("MNLI", "RTE", "WNLI")
    files: tuple[str, ...] = ()  # NAME=SOURCE instead of those of the data folder, as for STS
    preset: str = "cloze"  # template and words: cloze (S1? Yes, S2), harness (Question: ... True)
    templates: str = ""  # a JSON file as evaluation/glue_templates.json, which is the default
    limit: int = 0  # the first so many pairs of each; 0: all

    def problems(self) -> list[str]:
        return config_problems.glue_problems(self)


@dataclasses.dataclass
class PerplexityConfig:
    """How well a model predicts text: per token, per character and per byte."""

    documents: CorpusConfig = dataclasses.field(default_factory=CorpusConfig)
    # Folders of TFRecords, or design:ARM of the run's own; each group of a record is a text.
    records: tuple[str, ...] = ()
    window: int = 0  # tokens that are read at once; 0: the model's positions
    stride: int = 0  # tokens from one window to the next; 0: half a window
    limit: int = 0  # the first so many documents or records of each source; 0: all

    def problems(self) -> list[str]:
        return config_problems.perplexity_problems(self)


@dataclasses.dataclass
class NeighbourGainConfig:
    """How much a sentence's loss falls when its neighbours stand before it."""

    design: str = ""  # a workdir whose design has neighbours; "": that of the run itself
    queries: int = 1000  # sentences asked for, drawn by the seed; 0: all

    def problems(self) -> list[str]:
        return config_problems.neighbour_gain_problems(self)


@dataclasses.dataclass
class EvaluationConfig:
    """What the stage `evaluate` measures."""

    tasks: tuple[str, ...] = ()  # of sts, nq_open, glue, perplexity, neighbour_gain
    data: str = ""  # a folder with sts/, sick/, nq_open/ and glue/
    tokenizer: str = ""  # a folder; "": the model's own, or that of the run's design
    ema: bool = False  # the moving average of the weights
    batch_size: int = 32  # prompts answered at once
    resamples: int = 10_000  # of a bootstrap, for 95% intervals
    seed: int = 0  # of what is drawn
    sts: StsConfig = dataclasses.field(default_factory=StsConfig)
    questions: QuestionsConfig = dataclasses.field(default_factory=QuestionsConfig)
    glue: GlueConfig = dataclasses.field(default_factory=GlueConfig)
    perplexity: PerplexityConfig = dataclasses.field(default_factory=PerplexityConfig)
    neighbour_gain: NeighbourGainConfig = dataclasses.field(default_factory=NeighbourGainConfig)

    def problems(self) -> list[str]:
        return config_problems.evaluation_problems(self)


@dataclasses.dataclass
class ExperimentConfig:
    """All of one experiment."""

    seed: int = 0
    batch_size: int = 512  # rows of the global batch (Levine et al. 2022, appendix D)
    sequence_length: int = 256  # tokens of a row (the same)
    model: ModelConfig = dataclasses.field(default_factory=GPTConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    design: DesignConfig = dataclasses.field(default_factory=DesignConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    branches: BranchesConfig = dataclasses.field(default_factory=BranchesConfig)
    # Each round trains, then embeds the corpus with its model and searches again for the next.
    rounds: int = 1
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)

    def problems(self) -> list[str]:
        return config_problems.experiment_problems(self)


def head_dim(config: ModelConfig) -> int:
    """The size of one head."""
    return config.head_dim or config.embed_dim // config.num_heads


def mlp_dim(config: TransformerConfig) -> int:
    """The width inside the feed-forward layer."""
    return config.mlp_dim or 4 * config.embed_dim
