"""Reproduces table 1 of Levine et al. 2022: kNN-TAPT against its controls.

python -m icl_jax.studies.table1 --data=DATA --workdir=DIR [--config=FILE] [--config.FIELD=value]

Arms x learning rates x seeds: designs the records if they are missing, trains every run, evaluates
each on STS, and writes DIR/table1.md, .csv and .json with the paper's numbers beside those found.
--dry_run lists the runs and how far they are. Killed, rerun the command to continue from what is
finished.
"""

import dataclasses

from absl import flags
from etils import epath

from icl_jax.cli import ConfigFile, Flag, command, stop

CONFIG = "configs/roberta_base_knn_tapt.py:all"


@command(
    ConfigFile("a file of configs/ with branches", CONFIG),
    Flag("data=DATA", "a folder with sts/ and sick/ in SentEval's layout"),
    Flag("workdir=DIR", "the folder to write to", required=True),
    Flag("dry_run", "only list the runs, and which are done", bool, False),
)
def main(given: flags.FlagValues) -> None:
    """Runs the study, or lists its runs."""
    config, workdir = given.config, epath.Path(given.workdir)
    data = given.data or config.evaluation.data
    if not data:
        stop("expected --data=DATA, a folder with sts/ and sick/ in SentEval's layout")
    tasks = tuple(dict.fromkeys([*config.evaluation.tasks, "sts"]))
    config.evaluation = dataclasses.replace(config.evaluation, data=data, tasks=tasks)
    from icl_jax.studies.table1 import runs  # a wrong flag is reported without waiting for JAX

    if given.dry_run:
        runs.check(config)
        print(runs.list_runs(config, workdir))
    else:
        runs.run_table1(config, workdir)


if __name__ == "__main__":
    main()
