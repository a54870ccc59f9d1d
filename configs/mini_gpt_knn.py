"""kNN-Pretraining in miniature: a GPT of 3.4M parameters from scratch, then five arms, two seeds.

Command:  python -m icl_jax.main --config=configs/mini_gpt_knn.py --workdir=runs/mini_gpt
              --config.design.corpus.files=FILE  (English Wikipedia; 8 MB of it are read)
              --config.design.encoder.folder=FOLDER  (all-MiniLM-L6-v2)
              --config.evaluation.data=DATA  (with nq_open/NQ-open.dev.jsonl)
              --config.evaluation.perplexity.documents.files=FILE  (WikiText-103, wiki.valid.tokens)
Cost:     70 minutes on 2 CPU cores with other load: design 8, 800 steps 10, ten branches 20,
          their evaluation 30
Expected: docs/results.md
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
    PerplexityConfig,
    QuestionsConfig,
    SearchConfig,
    TokenizerConfig,
    TrainingConfig,
)


def get_config() -> ExperimentConfig:
    return ExperimentConfig(
        batch_size=16,
        sequence_length=128,
        model=GPTConfig(
            vocab_size=8192, context_length=128, num_layers=4, embed_dim=192, num_heads=6
        ),
        design=DesignConfig(
            corpus=CorpusConfig(megabytes=8, max_sentence_tokens=64),
            tokenizer=TokenizerConfig(vocab_size=8192),
            encoder=EncoderConfig(max_tokens=128),
            search=SearchConfig(neighbours=10, min_similarity=0.5),
            examples=ExamplesConfig(),
        ),
        data=DataConfig(sources=("design:contiguous",), pack=True),
        optimizer=OptimizerConfig(learning_rate=1e-3, schedule="constant", warmup=100),
        training=TrainingConfig(steps=800, dropout=False, checkpoint_every=200, keep_last=1),
        branches=BranchesConfig(
            arms=(
                "regular",
                "neighbours_in_context",
                "random_in_context",
                "neighbours_in_batch",
                "random_in_batch",
            ),
            steps=100,
            seeds=2,
        ),
        evaluation=EvaluationConfig(
            tasks=("nq_open", "perplexity", "neighbour_gain"),
            questions=QuestionsConfig(max_new_tokens=16),
            perplexity=PerplexityConfig(documents=CorpusConfig(text_documents="block")),
        ),
    )
