"""kNN-Pretraining of GPT-medium (345M): regular examples, then half of every batch kNN examples.

Command:  python -m icl_jax.main --config=configs/gpt_medium_knn.py --workdir=runs/gpt_medium_knn
              --config.design.corpus.files=FOLDER  (of a corpus; or tfds:wikipedia/20230601.en)
              --config.design.tokenizer.folder=FOLDER  (GPT-2's: vocab.json, merges.txt)
              --config.design.encoder.folder=FOLDER  (a sentence-transformers model)
          --stages=design and --stages=train run the two halves separately. 200,000 regular
          steps (runs/gpt_medium_knn), then 20,000 more with half of every batch kNN examples
          (runs/gpt_medium_knn/branches/neighbours_in_context). To switch at 400,000:
              --config.training.steps=400000
          To start from an existing regular run (gpt_medium_regular.py) and only train kNN:
              --config.training.start_from=runs/gpt_medium/checkpoints/200000
              --config.optimizer.schedule_steps=400000  (as that run has: the rate continues)
          To add the arm that continues regularly, as a control:
              --config.branches.arms="('regular','neighbours_in_context')"
          To try everything on any machine with 12 GB, one step of each kind on the built-in corpus
          (peak memory 9.0 GB, in the branch 10.7; 4 minutes of CPU time; 7 GB of checkpoints):
              --config.design.corpus.files=builtin:encyclopaedia --config.design.encoder.folder=
              --config.design.tokenizer.folder= --config.design.tokenizer.vocab_size=1280
              --config.design.search.min_similarity=0.3 --config.batch_size=2
              --config.training.steps=1 --config.branches.steps=1 --config.optimizer.warmup=1
Cost:     design: docs/scale.md. Training: about 18 hours on 16 TPU v5e chips: 0.29 s a
          step, as estimated by icl_jax.tpu.compile (docs/pods.md); not run
Expected: about 250 of 20,000 Natural Questions right, closed-book and zero-shot; below 50 with
          regular examples alone (Levine et al. 2022, figure 1)
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
    model = model_preset("gpt2-medium")
    model.vocab_size = 50258  # GPT-2's tokens and the separator
    model.dtype, model.scan_layers, model.remat = "bfloat16", True, "full"
    return ExperimentConfig(
        batch_size=512,  # Levine et al. 2022, appendix D.2; the text of section 3.2 has 128
        sequence_length=256,
        model=model,
        mesh=MeshConfig(data=1, fsdp=-1, tensor=1),
        design=design_preset("knn-pretraining"),
        data=DataConfig(sources=("design:contiguous",)),
        optimizer=optimizer_preset("knn-pretraining-medium"),
        training=TrainingConfig(
            steps=200_000,  # of regular examples; or 400,000
            start_with="everything",  # of training.start_from, if given
            checkpoint_every=2_000,
        ),
        # 20,000 as in figure 1; 10,000 in table 2.
        branches=BranchesConfig(arms=("neighbours_in_context",), steps=20_000),
    )
