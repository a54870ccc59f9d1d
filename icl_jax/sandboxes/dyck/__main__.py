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

from absl import flags

from icl_jax.cli import command
from icl_jax.sandboxes.command import experiment_flags, run_table

NAMES = ("constructed", "variation", "balance", "copying", "pruning")


@command(*experiment_flags(NAMES))
def main(given: flags.FlagValues) -> None:
    """Runs what is missing, writes the report and prints the claims."""
    run_table(given, NAMES, "icl_jax.sandboxes.dyck.experiments")


if __name__ == "__main__":
    main()
