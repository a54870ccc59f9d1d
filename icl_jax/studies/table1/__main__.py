"""Table 1 of Levine et al. 2022: kNN-TAPT against its controls, arms x learning rates x seeds.

python -m icl_jax.studies.table1 --data=DATA --workdir=DIR [--config=FILE] [--config.FIELD=value]

Designs the records if there are none, trains every run, evaluates each on STS, and writes
DIR/table1.md, .csv and .json with the paper's numbers beside ours. --dry_run lists the runs and
their progress. If killed, rerun the command: it continues, and finished parts are kept.
"""

from collections.abc import Sequence
import dataclasses
import functools
import logging

from absl import app, flags
from absl import logging as absl_logging
from etils import epath
from ml_collections import config_flags

from icl_jax.cli import ends_in_one_line, parse_config_flags, stop
from icl_jax.config import ExperimentConfig

CONFIG = "configs/roberta_base_knn_tapt.py:all"


def main(argv: Sequence[str]) -> None:
    """Reads the flags and runs the study."""
    logging.getLogger("jax").setLevel(logging.WARNING)  # no line for each missing backend
    if not flags.FLAGS["verbosity"].present:
        absl_logging.set_verbosity(absl_logging.WARNING)  # no line for each file of a checkpoint
    config, data, workdir = (flags.FLAGS[name].value for name in ("config", "data", "workdir"))
    if len(argv) > 1:
        stop(f"unexpected argument '{argv[1]}'; flags begin with --")
    if not isinstance(config, ExperimentConfig):
        stop(f"get_config() must return an ExperimentConfig, got {type(config).__name__}")
    if not workdir:
        stop("expected --workdir=DIR, the folder to write to")
    data = data or config.evaluation.data
    if not data:
        stop("expected --data=DATA, a folder with sts/ and sick/ in SentEval's layout")
    tasks = tuple(dict.fromkeys([*config.evaluation.tasks, "sts"]))
    config.evaluation = dataclasses.replace(config.evaluation, data=data, tasks=tasks)
    from icl_jax.studies.table1 import runs  # a wrong flag is reported without waiting for JAX

    with ends_in_one_line():
        if flags.FLAGS["dry_run"].value:
            runs.check(config)
            print(runs.list_runs(config, epath.Path(workdir)))
        else:
            runs.run_table1(config, epath.Path(workdir))


if __name__ == "__main__":
    # Defined only here, because icl_jax.main has flags of the same names.
    config_flags.DEFINE_config_file(
        "config", None, f"A file of configs/ with branches; by default {CONFIG}."
    )
    flags.DEFINE_string("data", None, "A folder with sts/ and sick/.")
    flags.DEFINE_string("workdir", None, "The folder to write to.")
    flags.DEFINE_bool("dry_run", False, "Only list the runs and their progress.")
    app.run(main, flags_parser=functools.partial(parse_config_flags, default=CONFIG))
