"""Runs the experiments on automata: networks with given weights, and trained ones.

python -m icl_jax.sandboxes.automata --to=runs/automata [--only=M0,M3]

M0 checks the exact networks; M1 to M5 train Transformers and LSTMs of a few layers, five seeds
each: depth, other inputs and longer rows, incomplete and indirect targets, positions and attention.
Writes results.json, report.md (claims, as published and as measured) and a figure for each. Killed,
rerun the command to continue. docs/sandboxes/automata.md says how to read them.

--scale=paper trains the networks of the thesis (Liu 2024) instead; --dry_run lists what would be
run and how long it takes.
"""

from absl import flags

from icl_jax.cli import command
from icl_jax.sandboxes.command import experiment_flags, run_table

NAMES = ("M0", "M1", "M2", "M3", "M4", "M5")


@command(*experiment_flags(NAMES))
def main(given: flags.FlagValues) -> None:
    """Runs what is missing, writes the report and prints the claims."""
    run_table(given, NAMES, "icl_jax.sandboxes.automata.experiments")


if __name__ == "__main__":
    main()
