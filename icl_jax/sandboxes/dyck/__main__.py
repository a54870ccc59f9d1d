"""Runs the experiments on brackets: balanced attention; why its patterns mislead.

python -m icl_jax.sandboxes.dyck --to=runs/dyck [--only=variation,balance]

constructed: weights that are written down; variation: attention maps of many seeds side by side;
balance: its violation against other lengths, with a contrastive term and without; copying and
pruning: patterns and matrices that say nothing of the function. Writes results.json, report.md
(claims, as published and as measured) and a figure for each. Killed, rerun the command to continue.
docs/sandboxes/dyck.md says how to read them.

--scale=paper trains the widest networks of the thesis (Liu 2024) and tests on more rows; --dry_run
lists what would be run and how long it takes.
"""

from pathlib import Path

from absl import flags

from icl_jax.cli import Flag, command, one_of, several, stop, whole

NAMES = ("constructed", "variation", "balance", "copying", "pruning")


@command(
    Flag("to=FOLDER", "the folder for results, the same to continue", Path, required=True),
    Flag("only=NAME,...", "some of the experiments", several(one_of(*NAMES)), NAMES),
    Flag("scale=mini|paper", "the size of networks and tests", one_of("mini", "paper"), "mini"),
    Flag("workers=N", "processes; 0: one for each core, one alone with accelerators", whole(0), 0),
    Flag("dry_run", "only list the points, and how long they take", bool, False),
)
def main(given: flags.FlagValues) -> None:
    """Runs what is missing, writes the report and prints the claims."""
    if not given.only:
        stop(f"expected --only={','.join(NAMES)} or some of them")
    # A wrong flag is reported without waiting for JAX.
    from icl_jax.sandboxes.dyck.experiments import EXPERIMENTS, TITLE
    from icl_jax.sandboxes.experiment import list_points, run_experiments

    what = [name for name in NAMES if name in given.only], given.scale, given.to
    if given.dry_run:
        print(list_points(EXPERIMENTS, *what))
    else:
        print(run_experiments(EXPERIMENTS, TITLE, *what, given.workers))


if __name__ == "__main__":
    main()
