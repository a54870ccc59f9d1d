"""Runs the stages of an experiment.

python -m icl_jax.main --config=configs/NAME.py [--config.FIELD=value ...] --workdir=DIR
"""

from collections.abc import Sequence
import logging
from pathlib import Path

from absl import app, flags
from absl import logging as absl_logging
from etils import epath
from ml_collections import config_flags

from icl_jax.cli import ends_in_one_line, parse_config_flags, stop
from icl_jax.config import ExperimentConfig
from icl_jax.config.tree import find_problems
from icl_jax.experiment.stages import STAGES, default_stages, run_stages
from icl_jax.theory.architecture import imbalance
from icl_jax.theory.network_shape import shape_of
from icl_jax.workers.job import ends_with_job, join_job

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "A file of configs/; --config.FIELD=value overrides any of its fields."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "The folder that the stages write to.")
_STAGES = flags.DEFINE_list(
    "stages",
    None,
    f"Which to run of {', '.join(STAGES)}; by default train, before it design where the config "
    "names a corpus (design.corpus.files), after it evaluate where it names tasks "
    "(evaluation.tasks).",
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "Several processes: HOST:PORT of process 0. A TPU slice needs none of it."
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "How many processes.", lower_bound=1)
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Which of them this one is, from 0.")


def main(argv: Sequence[str]) -> None:
    """Checks everything that can be checked, then runs the stages."""
    logging.getLogger("jax").setLevel(logging.WARNING)  # not each backend that is not there
    if not flags.FLAGS["verbosity"].present:
        absl_logging.set_verbosity(absl_logging.WARNING)  # not each file of a checkpoint
    if len(argv) > 1:
        stop(f"unexpected argument '{argv[1]}'; flags begin with --")
    config, stages = _CONFIG.value, _STAGES.value
    if config is None:
        available = ", ".join(sorted(str(path) for path in Path("configs").glob("*.py")))
        stop(f"expected --config=FILE; there are: {available or 'no files in configs/'}")
    if not isinstance(config, ExperimentConfig):
        stop(f"get_config() must return an ExperimentConfig, got {type(config).__name__}")
    stages = default_stages(config) if stages is None else stages
    if _WORKDIR.value is None:
        stop("expected --workdir=DIR, the folder to write to")
    unknown = [stage for stage in stages if stage not in STAGES]
    if unknown or not stages:
        stop(f"unknown stage '{', '.join(unknown)}' in --stages; there are: {', '.join(STAGES)}")
    with ends_in_one_line():
        join_job(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    with ends_with_job(), ends_in_one_line():
        if "train" in stages:
            _note_imbalance(config)
        run_stages(config, epath.Path(_WORKDIR.value), stages)


def _note_imbalance(config: ExperimentConfig) -> None:
    """One line, by the first process, about a network whose shape wastes parameters."""
    if find_problems(config.model):
        return  # the stage stops on them
    note = imbalance(shape_of(config.model))
    if note:
        import jax  # a wrong flag is told without waiting for it

        if jax.process_index() == 0:
            print(note, flush=True)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_config_flags)
