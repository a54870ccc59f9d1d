"""The effect in minutes: the same sentences, arranged in five ways, make five different models.

A small GPT is trained on a made-up encyclopaedia in the usual way; then five variants ("arms")
continue from its last checkpoint. Each is asked, closed book, about people whose facts the
encyclopaedia states but never asks about: `python -m icl_jax.corpus.builtin --to=FOLDER` writes it.

Command:  python -m icl_jax.main --config=configs/quickstart.py --workdir=runs/quickstart
Cost:     4 minutes on 2 CPU cores
Expected: of 600 questions neighbours_in_context answers 207 (191 with --config.seed=1, 224 with 2),
          random_in_context 10 (5, 6), the other three none. These numbers are from an AMD EPYC
          with AVX-512; other CPUs gave 203 to 221 with seed 0 (docs/results.md)
Your own: --config.design.corpus.files=... --config.evaluation.questions.file=... (a .jsonl with
          `question` and `answer`, a list of right ones); then look at the neighbours with
          `python -m icl_jax.retrieval.show` and choose design.search.min_similarity
"""

from icl_jax.config import (
    BranchesConfig,
    CorpusConfig,
    DataConfig,
    DesignConfig,
    EncoderConfig,
    EvaluationConfig,
    ExamplesConfig,
    ExperimentConfig,
    GPTConfig,
    OptimizerConfig,
    QuestionsConfig,
    SearchConfig,
    TokenizerConfig,
    TrainingConfig,
)

VOCABULARY = 1280


def get_config() -> ExperimentConfig:
    return ExperimentConfig(
        batch_size=16,
        sequence_length=64,
        model=GPTConfig(
            vocab_size=VOCABULARY,
            context_length=64,
            num_layers=2,  # the fewest that can find a name again and continue as it did before
            embed_dim=128,
            num_heads=4,
            position="rotary",
        ),
        design=DesignConfig(
            corpus=CorpusConfig(files=("builtin:encyclopaedia",), max_sentence_tokens=48),
            tokenizer=TokenizerConfig(vocab_size=VOCABULARY),
            encoder=EncoderConfig(tfidf_dim=1024),  # a direction for every word
            search=SearchConfig(neighbours=2, min_similarity=0.3),  # for TF-IDF
            examples=ExamplesConfig(card_samples=30),
        ),
        data=DataConfig(sources=("design:contiguous",), pack=True),  # the in-batch arms are short
        optimizer=OptimizerConfig(
            learning_rate=2e-3, warmup=50, schedule="linear", final_share=0.3
        ),
        training=TrainingConfig(steps=1200, dropout=False, checkpoint_every=400, keep_last=1),
        branches=BranchesConfig(
            arms=(
                "regular",
                "neighbours_in_context",
                "random_in_context",
                "neighbours_in_batch",
                "random_in_batch",
            ),
            steps=150,
        ),
        evaluation=EvaluationConfig(
            tasks=("nq_open",),
            batch_size=100,
            questions=QuestionsConfig(file="builtin:encyclopaedia", template="{question}"),
        ),
    )
