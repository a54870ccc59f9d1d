"""Writes the model of a run as a Hugging Face folder, with its tokenizer.

python -m icl_jax.training.export --run=WORKDIR --to=FOLDER [--ema]

Both may be URLs (gs://...).
"""

from absl import flags
from absl import logging as absl_logging
import jax

from icl_jax.cli import Flag, command
from icl_jax.config import ConfigError, MeshConfig, StageError
from icl_jax.files import mirror
from icl_jax.models import huggingface
from icl_jax.sharding import make_mesh
from icl_jax.training import checkpoint
from icl_jax.training.model_at import find_model, read_tokenizer


@command(
    Flag("run=WORKDIR", "a workdir, or WORKDIR/checkpoints/STEP", required=True),
    Flag("to=FOLDER", "the folder to write", required=True),
    Flag("ema", "the moving average of the weights, not the last ones", bool, False),
)
def main(given: flags.FlagValues) -> None:
    """Loads the latest checkpoint (or the one named) and saves its model."""
    absl_logging.set_verbosity(absl_logging.ERROR)
    folder = mirror.local_folder(given.to)
    try:
        mesh = make_mesh(MeshConfig(data=1, fsdp=-1, tensor=1))
        model = checkpoint.load_model(given.run, mesh, ema=given.ema)
        mirror.pull(folder)
        huggingface.save(model, folder)
        tokenizer = find_model(given.run).tokenizer()
        if tokenizer is not None and jax.process_index() == 0:
            read_tokenizer(tokenizer).save_with_model(folder)
    except StageError as error:
        raise StageError(str(error).replace(str(folder), given.to)) from None
    except ValueError as error:  # a ConfigError too
        hint = "" if isinstance(error, ConfigError) else "; train with what it can hold"
        raise ConfigError(f"{error}{hint}") from None
    beside = "with its tokenizer" if tokenizer else "without a tokenizer: the run has no design"
    step = checkpoint.find(given.run)[1]
    print(f"{type(model).__name__} of step {step} written to {given.to}, {beside}")


if __name__ == "__main__":
    main()
