"""The run that the tests kill: long enough to be hit, with a checkpoint every few steps."""

from icl_jax.config import ExperimentConfig
from tests.training.small import experiment


def get_config() -> ExperimentConfig:
    return experiment(steps=80, checkpoint_every=8, log_every=1, ema_decay=0.9)
