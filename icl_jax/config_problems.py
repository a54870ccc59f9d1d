"""What can be wrong with each part of a config, as lines for one message."""

import dataclasses
import itertools
import re

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")
POSITIONS = ("learned", "sinusoidal", "linear", "none", "alibi", "rotary")
REMAT_POLICIES = ("none", "dots", "full")
ATTENTIONS = ("auto", "plain", "splash")
SPLASH_HEAD_UNIT = 64  # heads of 64 and 128 were compiled
DTYPES = ("float32", "bfloat16")
ANALYSED_DTYPES = (*DTYPES, "float64")  # what theory computes in, under jax.enable_x64
EMBEDDINGS = ("vocabulary", "convolution")
OBJECTIVES = ("next_token", "masked_token")
SCHEDULES = ("constant", "linear", "cosine")
STARTS = ("weights", "everything")
DROPOUT_KEYS = ("auto", "threefry", "rbg")
CORPUS_FORMATS = ("auto", "text", "jsonl", "wikiextractor", "parquet")
TEXT_DOCUMENTS = ("file", "block", "line")
LONG_SENTENCES = ("split", "drop")
STORES = ("float16", "float32")
ENGINES = ("faiss", "jax")
RUNNERS = ("local", "beam")
ARMS = (
    "contiguous", "task_only", "neighbours_in_context", "random_in_context", "neighbours_in_batch",
    "random_in_batch", "document_path", "shared_entity",
)  # fmt: skip
RUNNING_TEXT = ("contiguous", "document_path")  # arms that have no queries
PACKED, ONE_QUERY = ROWS = ("packed", "one_query")
GAIN_STRATEGIES = ("contiguous", "neighbours", "shared_entity", "document_path")
EVALUATIONS = ("sts", "nq_open", "glue", "perplexity", "neighbour_gain")
STS_SETS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
POOLINGS = ("own", "mean", "cls", "first_last")
QUESTION_PRESETS = ("gpt3", "harness")
JAX_INDEXES = ("auto", "exact", "approximate")
MIN_TRAINED_VOCABULARY = 257
MAX_NEIGHBOURS = 500  # a query is given 2,048 candidates at most
MAX_SHARD_MEGABYTES = 512  # a worker holds a whole shard
MAX_SEED = 2**32 - 1  # of numpy.random.RandomState


def network_problems(config, dtypes: tuple[str, ...] = DTYPES) -> list[str]:
    found: list[str] = []
    require_positive(
        found, config, "vocab_size", "context_length", "num_layers", "embed_dim", "num_heads",
        "head_dim", "embedding_rank", "position_rank",
    )  # fmt: skip
    require_choice(found, "position", config.position, POSITIONS)
    require_choice(found, "dtype", config.dtype, dtypes)
    require_choice(found, "remat", config.remat, REMAT_POLICIES)
    if config.head_dim is None and config.num_heads > 0 and config.embed_dim % config.num_heads:
        found.append(
            f"embed_dim {config.embed_dim} is not a multiple of num_heads {config.num_heads}; "
            "set head_dim, or change one of the two"
        )
    if config.position_rank is not None and config.position != "learned":
        found.append(
            f"position_rank is for learned positions, but position is '{config.position}'; "
            "set position='learned' or leave position_rank out"
        )
    return found


def transformer_problems(config) -> list[str]:
    found = network_problems(config)
    require_positive(found, config, "mlp_dim")
    require_choice(found, "activation", config.activation, ACTIVATIONS)
    if not 0 < config.norm_epsilon < 1:
        found.append(f"norm_epsilon must be between 0 and 1, got {config.norm_epsilon}")
    for name in ("embedding_dropout", "attention_dropout", "residual_dropout"):
        if not 0 <= getattr(config, name) < 1:
            found.append(f"{name} must be at least 0 and below 1, got {getattr(config, name)}")
    size = config.head_dim or config.embed_dim // max(config.num_heads, 1)
    if config.position == "rotary" and size % 2:
        found.append(f"rotary positions need an even head_dim, got {size}")
    require_choice(found, "attention", config.attention, ATTENTIONS)
    if config.attention == "splash" and (config.position == "alibi" or size % SPLASH_HEAD_UNIT):
        needed = f"no ALiBi and a head_dim of {SPLASH_HEAD_UNIT} or a multiple"
        got = f"position '{config.position}' and head_dim {size}"
        found.append(f"attention='splash' needs {needed}, got {got}; set attention='auto'")
    return found


def roberta_problems(config) -> list[str]:
    found = transformer_problems(config)
    require_choice(found, "head_activation", config.head_activation, ACTIVATIONS)
    if config.token_types < 1:
        found.append(f"token_types must be at least 1, got {config.token_types}")
    if config.position_offset < 0:
        found.append(f"position_offset must be at least 0, got {config.position_offset}")
    if not 0 <= config.pad_token_id < config.vocab_size:
        found.append(
            f"pad_token_id must be within the vocabulary of {config.vocab_size}, "
            f"got {config.pad_token_id}"
        )
    return found


def linear_attention_problems(config) -> list[str]:
    found = network_problems(config, ANALYSED_DTYPES)
    require_choice(found, "embedding", config.embedding, EMBEDDINGS)
    require_positive(found, config, "input_dim", "kernel_size")
    if config.position in ("alibi", "rotary"):
        found.append(
            f"position '{config.position}' changes the attention scores of the analysed network; "
            "choose none, learned, sinusoidal or linear"
        )
    if config.embedding == "convolution" and config.tie_head:
        found.append(
            "a convolution embedding has no vocabulary matrix to tie the head to; "
            "set tie_head=False"
        )
    return found


def mesh_problems(config) -> list[str]:
    sizes = dataclasses.asdict(config)
    found = [
        f"{axis} must be a number of devices or -1, got {size}"
        for axis, size in sizes.items()
        if size < 1 and size != -1
    ]
    if list(sizes.values()).count(-1) > 1:
        found.append(f"only one axis may be -1, got {sizes}")
    return found


def corpus_problems(config) -> list[str]:
    found: list[str] = []
    require_choice(found, "format", config.format, CORPUS_FORMATS)
    require_choice(found, "text_documents", config.text_documents, TEXT_DOCUMENTS)
    require_choice(found, "long_sentences", config.long_sentences, LONG_SENTENCES)
    require_positive(found, config, "max_sentence_tokens")
    require_share(found, config, "max_bad_share")
    require_at_least_0(found, config, "megabytes")
    if not re.fullmatch(r"[a-z]{2,3}(-[a-z]+)*", config.language):
        found.append(f"language must be a code such as en or pt-br, got '{config.language}'")
    return found


def tokenizer_problems(config) -> list[str]:
    if config.folder:
        return []
    found: list[str] = []
    if config.vocab_size < MIN_TRAINED_VOCABULARY:
        least = MIN_TRAINED_VOCABULARY
        found.append(f"vocab_size must be at least {least}, got {config.vocab_size}")
    if config.separator:
        found.append(
            f"separator '{config.separator}' is for a published tokenizer (tokenizer.folder); one "
            "that is trained has <|separator|>"
        )
    return found


def encoder_problems(config) -> list[str]:
    found: list[str] = []
    require_choice(found, "dtype", config.dtype, DTYPES)
    require_choice(found, "store", config.store, STORES)
    require_positive(found, config, "tfidf_dim", "batch_tokens")
    require_at_least_0(found, config, "max_tokens")
    return found


def search_problems(config) -> list[str]:
    found: list[str] = []
    if not 1 <= config.neighbours <= MAX_NEIGHBOURS:
        found.append(f"neighbours must be from 1 to {MAX_NEIGHBOURS}, got {config.neighbours}")
    require_choice(found, "engine", config.engine, ENGINES)
    if config.engine == "jax":
        require_choice(found, "index", config.index, JAX_INDEXES)
    if not -1 <= config.min_similarity <= 1:
        found.append(f"min_similarity must be a cosine, -1 to 1, got {config.min_similarity}")
    if not config.duplicate_jaccard > 0:
        found.append(f"duplicate_jaccard must be above 0, got {config.duplicate_jaccard}")
    if not config.memory_gigabytes > 0:
        found.append(f"memory_gigabytes must be above 0, got {config.memory_gigabytes}")
    require_at_least_0(found, config, "probes", "recall_sample")
    return found


def examples_problems(config) -> list[str]:
    found: list[str] = []
    for arm in config.arms:
        require_choice(found, "arms: each", arm, ARMS)
    for strategy in config.gain_strategies:
        require_choice(found, "gain_strategies: each", strategy, GAIN_STRATEGIES)
    if len(set(config.arms)) < len(config.arms) or not config.arms:
        found.append(f"arms must be different ones, at least one, got {config.arms}")
    require_choice(found, "rows", config.rows, ROWS)
    require_at_least_0(found, config, "max_tokens", "min_neighbours", "card_samples")
    require_share(found, config, "path_diversity", "max_related_share")
    require_positive(found, config, "overlap_words")
    if config.entity_documents < 2:
        found.append(f"entity_documents must be at least 2, got {config.entity_documents}")
    if not abs(config.min_gain) < float("inf"):
        found.append(f"min_gain must be a number, got {config.min_gain}")
    return found


def design_problems(config) -> list[str]:
    found: list[str] = []
    require_choice(found, "runner", config.runner, RUNNERS)
    if config.beam_options and config.runner != "beam":
        found.append(f"beam_options are for runner=beam, but runner is '{config.runner}'")
    if not 0 < config.shard_megabytes <= MAX_SHARD_MEGABYTES:
        found.append(
            f"shard_megabytes must be above 0 and at most {MAX_SHARD_MEGABYTES}, "
            f"got {config.shard_megabytes}"
        )
    require_at_least_0(found, config, "workers")
    return found


def data_problems(config) -> list[str]:
    found: list[str] = []
    require_positive(found, config, "prefetch")
    require_at_least_0(found, config, "workers")
    firsts = [first for first, _ in config.phases]
    if firsts and (firsts[0] != 0 or any(a >= b for a, b in itertools.pairwise(firsts))):
        found.append(f"the first steps of phases must rise from 0, got {firsts}")
    for first, weights in config.phases:
        if len(weights) != len(config.sources):
            found.append(
                f"the phase from step {first} has {len(weights)} weights for "
                f"{len(config.sources)} sources"
            )
        elif not all(0 <= weight < float("inf") for weight in weights) or sum(weights) <= 0:
            found.append(
                f"the weights from step {first} must be at least 0, and one above, got {weights}"
            )
    return found


def optimizer_problems(config) -> list[str]:
    found: list[str] = []
    require_choice(found, "schedule", config.schedule, SCHEDULES)
    require_share(found, config, "b1", "b2", "epsilon", below=True)
    require_share(found, config, "final_share")
    for name in ("learning_rate", "schedule_steps", "warmup", "weight_decay", "clip_norm"):
        value = getattr(config, name)
        if not 0 <= value < float("inf"):
            found.append(f"{name} must be a number of at least 0, got {value}")
    return found


def training_problems(config) -> list[str]:
    found: list[str] = []
    require_choice(found, "objective", config.objective, OBJECTIVES)
    require_choice(found, "start_with", config.start_with, STARTS)
    require_choice(found, "dropout_keys", config.dropout_keys, DROPOUT_KEYS)
    require_positive(found, config, "accumulate", "checkpoint_every", "keep_last", "log_every")
    require_share(found, config, "ema_decay", "mask_share", below=True)
    for name in ("steps", "epochs", "keep_every"):
        if not 0 <= getattr(config, name) < float("inf"):
            found.append(f"{name} must be at least 0, got {getattr(config, name)}")
    if config.checkpoint_every > 0 and config.keep_every % config.checkpoint_every:
        found.append(
            f"keep_every {config.keep_every} is not a multiple of checkpoint_every "
            f"{config.checkpoint_every}, so no checkpoint would be kept for good"
        )
    if config.steps and config.epochs:
        found.append(f"set steps or epochs, got {config.steps} steps and {config.epochs} epochs")
    return found


def branches_problems(config) -> list[str]:
    found: list[str] = []
    for arm in config.arms:
        require_choice(found, "arms", arm, ("regular", "trunk", *ARMS))
    require_at_least_0(found, config, "steps", "epochs")
    require_positive(found, config, "seeds")
    require_share(found, config, "share")
    if len(set(config.arms)) < len(config.arms):
        found.append(f"arms names an arm twice: {', '.join(config.arms)}")
    if len({f"{rate:g}" for rate in config.learning_rates}) < len(config.learning_rates):
        found.append(  # folders are called by these
            f"learning_rates must differ in their first 6 digits, got {config.learning_rates}"
        )
    if any(rate <= 0 for rate in config.learning_rates):
        found.append(f"learning_rates must be above 0, got {config.learning_rates}")
    if config.arms and bool(config.steps) == bool(config.epochs):
        found.append(
            f"expected steps or epochs, how long each arm is trained, got steps {config.steps} and "
            f"epochs {config.epochs:g}"
        )
    if config.arms and config.reference not in config.arms:
        found.append(
            f"reference must be one of the arms, {', '.join(config.arms)}, got '{config.reference}'"
        )
    if config.steps and config.learning_rates:
        found.append(
            "learning_rates are for branches.epochs; with branches.steps each arm goes on with the "
            "run's own schedule"
        )
    if config.share == 0:
        found.append("share must be above 0: the arms would all be regular")
    if config.epochs and "regular" in config.arms:
        found.append("the arm regular goes on for branches.steps, but branches.epochs is set")
    return found


def evaluation_problems(config) -> list[str]:
    found: list[str] = []
    for task in config.tasks:
        require_choice(found, "tasks: each", task, EVALUATIONS)
    require_positive(found, config, "batch_size", "resamples")
    if not 0 <= config.seed <= MAX_SEED:
        found.append(f"seed must be from 0 to {MAX_SEED} (2**32 - 1), got {config.seed}")
    return found


def sts_problems(config) -> list[str]:
    found: list[str] = []
    require_choice(found, "pooling", config.pooling, POOLINGS)
    named = [entry.partition("=")[0] for entry in config.files]
    unknown = [task for task in config.tasks if task not in (*STS_SETS, *named)]
    if unknown:
        found.append(
            f"tasks: expected some of {', '.join(STS_SETS)}, or sets that `files` names, got "
            f"'{unknown[0]}'"
        )
    if len(set(config.tasks)) < len(config.tasks) or not (config.tasks or named):
        found.append(f"tasks must be different ones, at least one, got {config.tasks}")
    return found


def questions_problems(config) -> list[str]:
    found: list[str] = []
    require_choice(found, "preset", config.preset, QUESTION_PRESETS)
    require_positive(found, config, "max_new_tokens")
    require_at_least_0(found, config, "limit", "shots")
    if config.template and "{question}" not in config.template:
        found.append(f"template must hold {{question}}, got {config.template!r}")
    if "" in config.stop:
        found.append(f"stop must hold no empty text, got {config.stop}")
    if config.shots > 0 and not config.shots_file:
        found.append(f"shots={config.shots} needs shots_file, where the examples come from")
    return found


def glue_problems(config) -> list[str]:
    found: list[str] = []
    require_at_least_0(found, config, "limit")
    if len(set(config.tasks)) < len(config.tasks) or not config.tasks:
        found.append(f"tasks must be different ones, at least one, got {config.tasks}")
    return found


def perplexity_problems(config) -> list[str]:
    found: list[str] = []
    require_at_least_0(found, config, "window", "stride", "limit")
    if 0 < config.window <= config.stride:
        found.append(
            f"stride must be below window, so that each token is predicted after others, got "
            f"{config.stride} and {config.window}"
        )
    return found


def neighbour_gain_problems(config) -> list[str]:
    found: list[str] = []
    require_at_least_0(found, config, "queries")
    return found


def experiment_problems(config) -> list[str]:
    found = []
    require_positive(found, config, "batch_size", "sequence_length", "rounds")
    if not 0 <= config.seed <= MAX_SEED:
        found.append(f"seed must be from 0 to {MAX_SEED} (2**32 - 1), got {config.seed}")
    if config.sequence_length > config.model.context_length:
        found.append(
            f"sequence_length {config.sequence_length} is longer than "
            f"model.context_length {config.model.context_length}; change one of them"
        )
    return found + _rows_problems(config)


def _rows_problems(config) -> list[str]:
    """Packed rows and one query a row exclude each other; branches.epochs see to it."""
    if not config.data.pack or config.design.examples.rows != ONE_QUERY:
        return []
    mixed = config.branches.arms if config.branches.steps else ()
    named = [source.removeprefix("design:") for source in config.data.sources]
    arms = [arm for arm in (*named, *mixed) if arm in ARMS and arm not in RUNNING_TEXT]
    return [
        f"data.pack=True would put several examples into a row, but design.examples.rows is "
        f"'{ONE_QUERY}' for {arm}; set data.pack to False, or design.examples.rows to '{PACKED}'"
        for arm in dict.fromkeys(arms)
    ]


def require_share(found: list[str], config: object, *names: str, below: bool = False) -> None:
    for name in names:
        value = getattr(config, name)
        if not 0 <= value <= 1 or (below and value == 1):
            found.append(f"{name} must be from 0 to 1{' but below' * below}, got {value}")


def require_positive(found: list[str], config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value < 1:
            found.append(f"{name} must be at least 1, got {value}")


def require_at_least_0(found: list[str], config: object, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 0:
            found.append(f"{name} must be at least 0, got {getattr(config, name)}")


def require_choice(found: list[str], name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        several = "; several are written \"('a','b')\"" if "," in value else ""
        found.append(f"{name} must be one of {', '.join(choices)}, got '{value}'{several}")
