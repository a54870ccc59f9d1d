"""The command of a sandbox: its flags, and what it does with its table of experiments.

Nothing here waits for JAX, so that help and wrong flags are answered at once.
"""

from collections.abc import Sequence
import importlib
from pathlib import Path

from absl import flags

from icl_jax.cli import Flag, one_of, several, stop, whole


def experiment_flags(names: Sequence[str]) -> tuple[Flag, ...]:
    """Those of every sandbox; `names` are its experiments."""
    return (
        Flag("to=FOLDER", "the folder for results, the same to continue", Path, required=True),
        Flag(f"only={names[0]},...", "some of the experiments", several(one_of(*names)), names),
        Flag(
            "scale=mini|paper",
            "the size of networks and trainings",
            one_of("mini", "paper"),
            "mini",
        ),
        Flag(
            "workers=N", "processes; 0: one for each core, one alone with accelerators", whole(0), 0
        ),
        Flag("dry_run", "only list the points, and how long they take", bool, False),
    )


def run_table(given: flags.FlagValues, names: Sequence[str], package: str) -> None:
    """Runs what is missing, writes the report and prints the claims.

    `package` holds the table of experiments, EXPERIMENTS, and the TITLE of the report.
    """
    if not given.only:
        stop(f"expected --only={','.join(names)} or some of them")
    from icl_jax.sandboxes.experiment import list_points, run_experiments

    table = importlib.import_module(package)
    what = [name for name in names if name in given.only], given.scale, given.to
    if given.dry_run:
        print(list_points(table.EXPERIMENTS, *what))
    else:
        print(run_experiments(table.EXPERIMENTS, table.TITLE, *what, given.workers))
