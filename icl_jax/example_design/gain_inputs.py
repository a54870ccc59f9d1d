"""What a filter by gain depends on: told without JAX, for the steps before it need none."""

import functools
import hashlib
from pathlib import Path

from icl_jax.config import ExamplesConfig


def gain_inputs(examples: ExamplesConfig, strategy: str) -> dict:
    """What the groups of a strategy depend on if they are filtered; {}: they are not."""
    if not examples.gain_model or strategy not in examples.gain_strategies:
        return {}
    return {"model": model_checksum(examples.gain_model), "min_gain": examples.min_gain}


@functools.lru_cache(maxsize=1)
def model_checksum(folder: str) -> str:
    """Of the files that a model is made of."""
    digest = hashlib.sha256()
    for file in sorted([Path(folder) / "config.json", *Path(folder).glob("*.safetensors")]):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:32]
