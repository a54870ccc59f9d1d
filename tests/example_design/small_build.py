"""A small corpus whose sentences and neighbours are found, for the tests of what follows."""

from pathlib import Path

from icl_jax.config import ExperimentConfig
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.example_design.build import Build
from icl_jax.retrieval.find_related import find_related
from tests.retrieval.test_find_related import experiment, write_corpus


def small_config(folder: Path, people: int = 40, **design) -> ExperimentConfig:
    """Two documents for each person; most sentences have a neighbour or two."""
    return experiment(write_corpus(folder, people), **design)


def open_build(config: ExperimentConfig, workdir: Path) -> Build:
    """After the first half of the design stage."""
    return Build.open(config, workdir, find_related(config, workdir))


def small_tokenizer() -> Tokenizer:
    """Byte-level, without a token for the beginning."""
    from icl_jax.corpus.train_tokenizer import train

    return train(["Some text to learn from."] * 5, 257)
