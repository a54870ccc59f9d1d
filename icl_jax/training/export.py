"""Writes the model of a run as a Hugging Face folder, with its tokenizer.

Run: python -m icl_jax.training.export --run=WORKDIR --to=FOLDER [--ema]

Both may be URLs (gs://...).
"""

from collections.abc import Sequence
import sys

from absl import app, flags
from absl import logging as absl_logging
import jax

from icl_jax.config import ConfigError, MeshConfig, StageError
from icl_jax.files import mirror
from icl_jax.models import huggingface
from icl_jax.sharding import make_mesh
from icl_jax.training import checkpoint
from icl_jax.training.model_at import find_model, read_tokenizer

_RUN = flags.DEFINE_string("run", None, "A workdir, or WORKDIR/checkpoints/STEP.", required=True)
_TO = flags.DEFINE_string("to", None, "The folder to write.", required=True)
_EMA = flags.DEFINE_bool("ema", False, "The moving average of the weights, not the last ones.")


def main(argv: Sequence[str]) -> None:
    """Loads the latest checkpoint (or the one named) and saves its model."""
    del argv
    absl_logging.set_verbosity(absl_logging.ERROR)
    folder = mirror.local_folder(_TO.value)
    try:
        mesh = make_mesh(MeshConfig(data=1, fsdp=-1, tensor=1))
        model = checkpoint.load_model(_RUN.value, mesh, ema=_EMA.value)
        mirror.pull(folder)
        huggingface.save(model, folder)
        tokenizer = find_model(_RUN.value).tokenizer()
        if tokenizer is not None and jax.process_index() == 0:
            read_tokenizer(tokenizer).save_with_model(folder)
    except StageError as error:
        sys.exit(f"error: {error}".replace(str(folder), _TO.value))
    except ValueError as error:  # a ConfigError too
        hint = "" if isinstance(error, ConfigError) else "; train with what it can hold"
        sys.exit(f"error: {error}{hint}")
    beside = "with its tokenizer" if tokenizer else "without a tokenizer: the run has no design"
    step = checkpoint.find(_RUN.value)[1]
    print(f"{type(model).__name__} of step {step} written to {_TO.value}, {beside}")


if __name__ == "__main__":
    app.run(main)
