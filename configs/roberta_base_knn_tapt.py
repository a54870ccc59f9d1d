"""kNN-TAPT: RoBERTa-base continued on a task's sentences with their neighbours in context.

Command:  python -m icl_jax.studies.task_sentences --data=DATA --to=data/task_sentences.txt
          python -m icl_jax.studies.table1 --data=DATA --workdir=runs/tapt
              --config.design.corpus.files=FOLDER  (of a corpus; or tfds:wikipedia/20230601.en)
              --config.design.queries.files=FILE  (the task's sentences, one per line)
              --config.design.tokenizer.folder=FOLDER  (RoBERTa's: vocab.json, merges.txt)
              --config.design.encoder.folder=FOLDER  (a sentence-transformers model)
              --config.training.start_from=FOLDER  (roberta-base: config.json, model.safetensors
                  and its tokenizer)
          does all of table 1 (:all): design, five arms with four learning rates each, STS of every
          run, runs/tapt/table1.md. DATA: SentEval's sts/ and sick/. --config.branches.seeds=3
          trains each three times.
          python -m icl_jax.main --config=configs/roberta_base_knn_tapt.py:ARM --workdir=runs/arm
          with the same fields trains one arm: task_only (TAPT), neighbours_in_context (kNN-TAPT,
          the default), random_in_context, neighbours_in_batch or random_in_batch. One design has
          them all: --config.data.sources=runs/tapt/design/arms/ARM --stages=train reuses it.
Cost:     design: docs/scale.md. Training: the paper's 170,000 examples of up to 256 tokens are
          3,320 steps of 0.06 s (16 TPU v5e chips, as estimated by
          icl_jax.tpu.compile): 3 minutes a run, an hour for 5 arms x 4 rates; the
          15,335 sentences of the command above are 300 steps, in every arm: a row holds one
          sentence of the task and what belongs to it (design.examples.rows). Not run
Expected: averaged over the seven STS tasks 53.5 without training, 59.8 for task_only, 61.0 for
          neighbours_in_context, 58.4 to 60.0 for the other three (Levine et al. 2022, table 1)
"""

from icl_jax.config import (
    BranchesConfig,
    DataConfig,
    EvaluationConfig,
    ExperimentConfig,
    MeshConfig,
    TrainingConfig,
)
from icl_jax.design.presets import preset as design_preset
from icl_jax.models.kinds import preset as model_preset
from icl_jax.training.presets import preset as optimizer_preset

ROWS = (
    "trunk", "task_only", "random_in_batch", "neighbours_in_batch", "random_in_context",
    "neighbours_in_context",
)  # fmt: skip
SPECIAL_TOKENS = (0, 1, 2, 3, 50264, 50261)  # RoBERTa's and the separator, never masked
RATES = (1e-5, 3e-5, 5e-5, 7e-5)
EPOCHS = 5  # the first is warm-up


def get_config(arm: str = "neighbours_in_context") -> ExperimentConfig:
    model = model_preset("roberta-base")
    model.dtype, model.scan_layers, model.remat = "bfloat16", True, "full"
    config = ExperimentConfig(
        batch_size=256,  # appendix D.1: 128 or 256
        sequence_length=256,
        model=model,
        mesh=MeshConfig(data=-1, fsdp=1, tensor=1),
        design=design_preset("knn-tapt"),
        data=DataConfig(sources=(f"design:{arm}",), workers=4),  # one query per row, by the design
        optimizer=optimizer_preset("knn-tapt"),
        training=TrainingConfig(
            objective="masked_token",
            epochs=EPOCHS,
            special_token_ids=SPECIAL_TOKENS,
            start_from="models/roberta-base",
            checkpoint_every=500,
        ),
    )
    if arm == "all":  # the first row of table 1 is the published model; all others branch off it
        config.data.sources, config.training.epochs = (), 0
        config.branches = BranchesConfig(
            arms=ROWS, epochs=EPOCHS, optimizer=optimizer_preset("knn-tapt"), learning_rates=RATES
        )
        config.evaluation = EvaluationConfig(tasks=("sts",))
    return config
