"""Runs the experiments on flip-flops: rare wrong reads of Transformers, and cures.

python -m icl_jax.sandboxes.flip_flop --to=runs/flip_flop [--only=baseline,lstm]

baseline counts the errors of Transformers on rare rows, lstm those of an LSTM, data and mitigations
try what might help, attention reads what one head looks at, mechanisms puts numbers to the reasons.
Writes results.json, report.md (claims, as published and as measured) and a figure for each. Killed,
rerun the command to continue. docs/sandboxes/flip_flop.md says how to read them.

--scale=paper trains the networks of the thesis (Liu 2024) instead; --dry_run lists what would be
run and how long it takes.
"""

from absl import flags

from icl_jax.cli import command
from icl_jax.sandboxes.command import experiment_flags, run_table

NAMES = ("baseline", "lstm", "data", "mitigations", "attention", "mechanisms")


@command(*experiment_flags(NAMES))
def main(given: flags.FlagValues) -> None:
    """Runs what is missing, writes the report and prints the claims."""
    run_table(given, NAMES, "icl_jax.sandboxes.flip_flop.experiments")


if __name__ == "__main__":
    main()
