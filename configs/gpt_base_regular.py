"""GPT-base (124M) from scratch on regular examples: the baseline of kNN-Pretraining.

Command:  python -m icl_jax.main --config=configs/gpt_base_regular.py --workdir=runs/gpt_base
              --config.data.sources=FOLDER  (TFRecords of up to 256 GPT-2 tokens each)
Cost:     about 12 hours on 16 TPU v5e chips: 0.11 s a step, as estimated by
          icl_jax.tpu.compile; not run
Expected: a zero-shot closed-book Natural Questions F1 below 1e-3 (Levine et al. 2022, figure 1)
"""

from icl_jax.config import DataConfig, ExperimentConfig, MeshConfig, TrainingConfig
from icl_jax.models.kinds import preset as model_preset
from icl_jax.training.presets import preset as optimizer_preset


def get_config() -> ExperimentConfig:
    model = model_preset("gpt2-base")
    model.vocab_size = 50258  # GPT-2's tokens and the separator, which kNN examples need
    model.dtype, model.scan_layers, model.remat = "bfloat16", True, "full"
    return ExperimentConfig(
        batch_size=512,  # Levine et al. 2022, appendix D.2; section 3.2 has 256 for this size
        sequence_length=256,
        model=model,
        mesh=MeshConfig(data=-1, fsdp=1, tensor=1),
        data=DataConfig(sources=("data/wikipedia/contiguous",), workers=4),
        optimizer=optimizer_preset("knn-pretraining-base"),
        # Checkpoints at 200,000 and 400,000 steps are where kNN-Pretraining branches off.
        training=TrainingConfig(steps=400_000, checkpoint_every=2_000, keep_every=200_000),
    )
