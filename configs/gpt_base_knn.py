"""kNN-Pretraining of GPT-base (124M): regular examples, then half of every batch kNN examples.

Command:  python -m icl_jax.main --config=configs/gpt_base_knn.py --workdir=runs/gpt_base_knn
              --config.design.corpus.files=FOLDER  (of a corpus; or tfds:wikipedia/20230601.en)
              --config.design.tokenizer.folder=FOLDER  (GPT-2's: vocab.json, merges.txt)
              --config.design.encoder.folder=FOLDER  (a sentence-transformers model)
          --stages=design and --stages=train run the two halves separately. 200,000 regular
          steps (runs/gpt_base_knn), then 40,000 more with half of every batch kNN examples
          (runs/gpt_base_knn/branches/neighbours_in_context). To switch at 400,000:
              --config.training.steps=400000
          To start from an existing regular run (gpt_base_regular.py) and only train kNN:
              --config.training.start_from=runs/gpt_base/checkpoints/200000
              --config.optimizer.schedule_steps=400000  (as that run has: the rate continues)
          To add the arm that continues regularly, as a control:
              --config.branches.arms="('regular','neighbours_in_context')"
Cost:     design: docs/scale.md. Training: about 7 hours on 16 TPU v5e chips: 0.11 s a step,
          as estimated by icl_jax.tpu.compile; not run
Expected: zero-shot closed-book Natural Questions F1 of 6.2e-3; with regular examples alone it stays
          below 1e-3 (Levine et al. 2022, table 2)
"""

from icl_jax.config import (
    BranchesConfig,
    DataConfig,
    ExperimentConfig,
    MeshConfig,
    TrainingConfig,
)
from icl_jax.design.presets import preset as design_preset
from icl_jax.models.kinds import preset as model_preset
from icl_jax.training.presets import preset as optimizer_preset


def get_config() -> ExperimentConfig:
    model = model_preset("gpt2-base")
    model.vocab_size = 50258  # GPT-2's tokens and the separator
    model.dtype, model.scan_layers, model.remat = "bfloat16", True, "full"
    return ExperimentConfig(
        batch_size=512,  # Levine et al. 2022, appendix D.2; section 3.2 has 256 for this size
        sequence_length=256,
        model=model,
        mesh=MeshConfig(data=-1, fsdp=1, tensor=1),
        design=design_preset("knn-pretraining"),
        data=DataConfig(sources=("design:contiguous",), workers=4),
        optimizer=optimizer_preset("knn-pretraining-base"),
        training=TrainingConfig(
            steps=200_000,  # of regular examples; or 400,000
            start_with="everything",  # of training.start_from, if given
            checkpoint_every=2_000,
        ),
        branches=BranchesConfig(arms=("neighbours_in_context",), steps=40_000),
    )
