"""kNN-TAPT in miniature: a RoBERTa of 3.4M parameters from scratch, then the arms of table 1.

Command:  python -m icl_jax.studies.task_sentences --data=DATA --to=runs/task.txt
              --unseen --limit=1200
          python -m icl_jax.studies.table1 --config=configs/mini_roberta_knn_tapt.py --data=DATA
              --workdir=runs/mini_roberta
              --config.design.corpus.files=FILE  (English Wikipedia; 8 MB of it are read)
              --config.design.queries.files=runs/task.txt
              --config.design.encoder.folder=FOLDER  (all-MiniLM-L6-v2)
          DATA: SentEval's sts/ and sick/. The task's sentences are 1,200 from the training sets
          that are in no test set, so that nothing is tested that was trained on. As in the paper,
          a row holds one of them and what belongs to it, in every arm: 5 epochs are 253 updates
          with 24 sentences of the task, the same ones in each arm.
Cost:     51 minutes on 2 CPU cores with other load: design 6, 700 steps from scratch 19, ten
          runs of the arms 22, STS of each 4
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
    RobertaConfig,
    SearchConfig,
    TokenizerConfig,
    TrainingConfig,
)
from icl_jax.training.presets import preset as optimizer_preset

ARMS = (
    "task_only", "random_in_batch", "neighbours_in_batch", "random_in_context",
    "neighbours_in_context",
)  # fmt: skip
PADDING, MASK = 2, 3  # ids in a tokenizer trained here; 0 ends a text, 1 is the separator


def get_config() -> ExperimentConfig:
    sentences = {"max_sentence_tokens": 64}
    return ExperimentConfig(
        batch_size=24,
        sequence_length=96,
        model=RobertaConfig(
            vocab_size=8192,
            context_length=96,
            num_layers=4,
            embed_dim=192,
            num_heads=6,
            pad_token_id=PADDING,
            position_offset=PADDING + 1,
        ),
        design=DesignConfig(
            corpus=CorpusConfig(megabytes=8, **sentences),
            queries=CorpusConfig(text_documents="line", clean=False, **sentences),
            tokenizer=TokenizerConfig(vocab_size=8192),
            encoder=EncoderConfig(max_tokens=128),
            # So little text has few sentences near a task's. At 0.4, two of three have a neighbour,
            # which shares the topic at most.
            search=SearchConfig(neighbours=5, min_similarity=0.4, index="Flat"),
            examples=ExamplesConfig(arms=("contiguous", *ARMS), rows="one_query", min_neighbours=0),
        ),
        data=DataConfig(sources=("design:contiguous",), pack=True),  # the trunk; arms aren't packed
        optimizer=optimizer_preset("knn-tapt", learning_rate=1e-3, warmup=100),
        training=TrainingConfig(
            objective="masked_token",
            steps=700,
            dropout=False,
            mask_token_id=MASK,
            special_token_ids=(0, 1, PADDING, MASK),
            checkpoint_every=200,
            keep_last=1,
        ),
        branches=BranchesConfig(
            arms=("trunk", *ARMS),
            epochs=5,
            optimizer=optimizer_preset("knn-tapt", learning_rate=3e-4),
            seeds=2,
        ),
        evaluation=EvaluationConfig(tasks=("sts",), resamples=2000),
    )
