"""The door to all sentence encoders: a folder's network, or TF-IDF fitted on the corpus."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from jax.sharding import Mesh
import numpy as np

from icl_jax.config import EncoderConfig
from icl_jax.retrieval.encoders.tfidf import TfidfEncoder, fit_tfidf
from icl_jax.retrieval.encoders.transformer import open_transformer

__all__ = ["Encoder", "fit_tfidf", "open_encoder"]


class Encoder(Protocol):
    """Turns sentences into vectors whose cosine says how related they are."""

    width: int
    identity: dict  # JSON; encoders with equal ones give equal vectors

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        """Float32 (n, width) in the order of the texts; a zero row: the text says nothing."""


def open_encoder(config: EncoderConfig, mesh: Mesh | None, fitted: Path | None) -> Encoder:
    """The encoder of a config; `fitted` is where `fit_tfidf` wrote, used if no folder is named.

    A mesh has devices of this host only: on a pod each host embeds shards of its own.
    """
    if config.folder:
        return open_transformer(config, mesh)
    return TfidfEncoder(fitted)
