"""The masked run that several processes train: with dropout, whose bits depend on places."""

from icl_jax.config import ExperimentConfig
from tests.training.small import ROBERTA, experiment


def get_config() -> ExperimentConfig:
    return experiment(model=ROBERTA, steps=3, checkpoint_every=3, log_every=1)
