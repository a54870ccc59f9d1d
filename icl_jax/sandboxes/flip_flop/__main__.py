"""Runs the experiments on flip-flops: rare wrong reads of Transformers, and cures.

python -m icl_jax.sandboxes.flip_flop --to=runs/flip_flop [--only=baseline,lstm]

baseline counts the errors of Transformers on rare rows, lstm those of an LSTM, data and mitigations
try what might help, attention reads what one head looks at, mechanisms puts numbers to the reasons.
Writes results.json, report.md (claims, as published and as measured) and a figure for each. Killed,
rerun the command to continue. docs/sandboxes/flip_flop.md says how to read them.

--scale=paper trains the networks of the thesis (Liu 2024) instead; --dry_run lists what would be
run and how long it takes.
"""

from pathlib import Path

from absl import flags

from icl_jax.cli import Flag, command, one_of, several, stop, whole

NAMES = ("baseline", "lstm", "data", "mitigations", "attention", "mechanisms")


@command(
    Flag("to=FOLDER", "the folder for results, the same to continue", Path, required=True),
    Flag("only=baseline,...", "some of the experiments", several(one_of(*NAMES)), NAMES),
    Flag("scale=mini|paper", "the size of networks and trainings", one_of("mini", "paper"), "mini"),
    Flag("workers=N", "processes; 0: one for each core, one alone with accelerators", whole(0), 0),
    Flag("dry_run", "only list the points, and how long they take", bool, False),
)
def main(given: flags.FlagValues) -> None:
    """Runs what is missing, writes the report and prints the claims."""
    if not given.only:
        stop(f"expected --only={','.join(NAMES)} or some of them")
    # A wrong flag is reported without waiting for JAX.
    from icl_jax.sandboxes.experiment import list_points, run_experiments
    from icl_jax.sandboxes.flip_flop.experiments import EXPERIMENTS, TITLE

    what = [name for name in NAMES if name in given.only], given.scale, given.to
    if given.dry_run:
        print(list_points(EXPERIMENTS, *what))
    else:
        print(run_experiments(EXPERIMENTS, TITLE, *what, given.workers))


if __name__ == "__main__":
    main()
