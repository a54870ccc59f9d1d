"""Runs the stages of an experiment.

python -m icl_jax.main --config=configs/NAME.py [--config.FIELD=value ...] --workdir=DIR
"""

from absl import flags
from etils import epath

from icl_jax.cli import UNREAD, ConfigFile, Flag, command, ends_in_one_line, several, stop, whole
from icl_jax.config import ExperimentConfig
from icl_jax.config.tree import find_problems
from icl_jax.experiment.stages import STAGES, default_stages, run_stages
from icl_jax.theory.architecture import imbalance
from icl_jax.theory.network_shape import shape_of
from icl_jax.workers.job import ends_with_job, join_job


@command(
    ConfigFile("a file of configs/; --config.FIELD=value overrides any of its fields",
               required=True),
    Flag("workdir=DIR", "the folder to write to", required=True),
    Flag(
        "stages=STAGE,...",
        f"which to run of {', '.join(STAGES)}; by default train, before it design if the config "
        "names a corpus (design.corpus.files), after it evaluate if it names tasks "
        "(evaluation.tasks)",
        several(),
    ),
    Flag("coordinator=HOST:PORT", "address of process 0 of several; a TPU slice needs neither "
         "this nor the next two"),
    Flag("num_processes=N", "how many processes there are", whole(least=1)),
    Flag("process_id=N", "which of them this one is, from 0", whole()),
)  # fmt: skip
def main(given: flags.FlagValues) -> None:
    """Checks everything that can be checked, then runs the stages."""
    config, stages = given.config, given.stages
    stages = default_stages(config) if stages is None else list(stages)
    unknown = [stage for stage in stages if stage not in STAGES]
    if unknown or not stages:
        stop(f"unknown stage '{', '.join(unknown)}' in --stages; available: {', '.join(STAGES)}")
    join_job(given.coordinator, given.num_processes, given.process_id)
    with ends_with_job(), ends_in_one_line(UNREAD):
        if "train" in stages:
            _note_imbalance(config)
        run_stages(config, epath.Path(given.workdir), stages)


def _note_imbalance(config: ExperimentConfig) -> None:
    """One line, by the first process, about a network whose shape wastes parameters."""
    if find_problems(config.model):
        return  # the stage stops on them
    note = imbalance(shape_of(config.model))
    if note:
        import jax  # a wrong flag is reported without waiting for it

        if jax.process_index() == 0:
            print(note, flush=True)


if __name__ == "__main__":
    main()
