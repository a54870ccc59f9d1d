"""The paper's designs by name (Levine et al. 2022, section 3)."""

import copy

from icl_jax.config import (
    ConfigError,
    CorpusConfig,
    DesignConfig,
    EncoderConfig,
    ExamplesConfig,
    SearchConfig,
    TokenizerConfig,
)

_WIKIPEDIA = CorpusConfig(files=("tfds:wikipedia/20230601.en",))
# RoBERTa-large of sentence-transformers, cosine above 0.8. The paper names no number of neighbours:
# it takes all that fit into 256 tokens, which is 20 of 12 tokens each.
_ENCODER = EncoderConfig(folder="models/all-roberta-large-v1")
_SEARCH = SearchConfig(neighbours=20, min_similarity=0.8)

PRESETS: dict[str, DesignConfig] = {
    # Section 3.2: every sentence of the corpus is a query, and the corpus is searched.
    "knn-pretraining": DesignConfig(
        corpus=_WIKIPEDIA,
        tokenizer=TokenizerConfig(folder="tokenizers/gpt2"),
        encoder=_ENCODER,
        search=_SEARCH,
        examples=ExamplesConfig(arms=("contiguous", "neighbours_in_context"), max_tokens=256),
        shard_megabytes=64,
    ),
    # Section 3.1: the sentences of a task are the queries; with every arm of table 1.
    "knn-tapt": DesignConfig(
        corpus=_WIKIPEDIA,
        queries=CorpusConfig(
            files=("data/task_sentences.txt",), text_documents="line", clean=False
        ),
        tokenizer=TokenizerConfig(folder="tokenizers/roberta-base"),
        encoder=_ENCODER,
        search=_SEARCH,
        examples=ExamplesConfig(
            arms=(
                "task_only", "neighbours_in_context", "random_in_context", "neighbours_in_batch",
                "random_in_batch",
            ),
            max_tokens=256,
            rows="one_query",  # "each input includes a training example from the task"
            min_neighbours=0,  # every sentence of the task is trained on
        ),
        shard_megabytes=64,
    ),
}  # fmt: skip


def preset(name: str) -> DesignConfig:
    """A copy of the design called `name`."""
    if name not in PRESETS:
        raise ConfigError(f"unknown design '{name}'; expected one of {', '.join(PRESETS)}")
    return copy.deepcopy(PRESETS[name])
