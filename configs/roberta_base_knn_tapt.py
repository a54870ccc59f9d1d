"""kNN-TAPT: RoBERTa-base continued on a task's sentences with their neighbours in context.

Command:  python -m icl_jax.main --config=configs/roberta_base_knn_tapt.py:ARM --workdir=runs/tapt
              --config.design.corpus.files=FOLDER  (of a corpus; or tfds:wikipedia/20230601.en)
              --config.design.queries.files=FILE  (the task's sentences, one on a line)
              --config.design.tokenizer.folder=FOLDER  (RoBERTa's: vocab.json, merges.txt)
              --config.design.encoder.folder=FOLDER  (a sentence-transformers model)
              --config.training.start_from=FOLDER  (roberta-base: config.json, model.safetensors)
          ARM: task_only (TAPT), neighbours_in_context (kNN-TAPT, the default), random_in_context,
          neighbours_in_batch or random_in_batch. One design has all of them: let the others take
          it with --config.data.sources=runs/tapt/design/arms/ARM --stages=train.
Cost:     design: docs/scale.md. Training: 170,000 examples are 3,320 steps, and fewer packed into
          rows; minutes on 16 TPU v5e chips if a step takes the 0.1 s of GPT-base; not run
Expected: averaged over the seven STS tasks 59.8 for task_only, 61.0 for neighbours_in_context,
          between 58.4 and 60.0 for the other three (Levine et al. 2022, table 1)
"""

from icl_jax.config import DataConfig, ExperimentConfig, MeshConfig, TrainingConfig
from icl_jax.example_design.presets import preset as design_preset
from icl_jax.models.presets import preset as model_preset
from icl_jax.training.presets import preset as optimizer_preset

SPECIAL_TOKENS = (0, 1, 2, 3, 50264, 50261)  # RoBERTa's, and the separator: never masked


def get_config(arm: str = "neighbours_in_context") -> ExperimentConfig:
    model = model_preset("roberta-base")
    model.dtype, model.scan_layers, model.remat = "bfloat16", True, "full"
    return ExperimentConfig(
        batch_size=256,  # appendix D.1: 128 or 256
        sequence_length=256,
        model=model,
        mesh=MeshConfig(data=-1, fsdp=1, tensor=1),
        design=design_preset("knn-tapt"),
        data=DataConfig(sources=(f"design:{arm}",), pack=True, workers=4),
        # Sweep --config.optimizer.learning_rate over 1, 3, 5 and 7e-5.
        optimizer=optimizer_preset("knn-tapt"),
        training=TrainingConfig(
            objective="masked_token",
            epochs=5,
            special_token_ids=SPECIAL_TOKENS,
            start_from="models/roberta-base",
            checkpoint_every=500,
        ),
    )
