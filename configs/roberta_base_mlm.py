"""RoBERTa-base, continued on task text with masked tokens: (kNN-)TAPT of Levine et al. 2022, D.1.

Command:  python -m icl_jax.main --config=configs/roberta_base_mlm.py --workdir=runs/roberta
              --config.data.sources=FOLDER  (TFRecords of up to 256 RoBERTa tokens each)
              --config.training.start_from=FOLDER  (roberta-base: config.json, model.safetensors)
Cost:     170,000 examples are 3,320 steps; minutes on 16 TPU v5e chips if a step takes 0.1 s as for
          GPT-base, which is as large; not run
Expected: averaged over the seven STS tasks, 59.8 with the task's sentences alone (TAPT), 61.0 with
          their neighbours in context (Levine et al. 2022, table 1)
"""

from icl_jax.config import DataConfig, ExperimentConfig, MeshConfig, TrainingConfig
from icl_jax.models.kinds import preset as model_preset
from icl_jax.training.presets import preset as optimizer_preset


def get_config() -> ExperimentConfig:
    model = model_preset("roberta-base")
    model.dtype, model.scan_layers, model.remat = "bfloat16", True, "full"
    return ExperimentConfig(
        batch_size=256,  # appendix D.1: 128 or 256
        sequence_length=256,
        model=model,
        mesh=MeshConfig(data=-1, fsdp=1, tensor=1),
        data=DataConfig(sources=("data/knn_tapt/neighbours_in_context",), workers=4),
        optimizer=optimizer_preset(
            "knn-tapt"
        ),  # sweep --config.optimizer.learning_rate: 1e-5..7e-5
        training=TrainingConfig(
            objective="masked_token",
            epochs=5,
            start_from="models/roberta-base",
            checkpoint_every=500,
        ),
    )
