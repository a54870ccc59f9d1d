"""How many updates each arm of a comparison was trained for, and whether they are comparable."""

import json

from icl_jax.evaluation.compare.read import Evaluation
from icl_jax.files.remote import read_text

TOLERANCE = 0.05  # arms whose updates differ by more are warned of


def count_updates(evaluation: Evaluation) -> int | None:
    """Those since the checkpoint that the run began with; None: unknown, or nothing was trained.

    Known of RUN/evaluation/STEP, where a run is evaluated unless it is told otherwise.
    """
    step, record = evaluation.folder.name, evaluation.folder.parent.parent / "config.json"
    if evaluation.folder.parent.name != "evaluation" or not step.isdigit() or not record.exists():
        return None
    held = json.loads(read_text(record))
    goes_on = held["config"]["training"]["start_with"] == "everything"
    begin = (held.get("start") or {}).get("step", 0) if goes_on else 0
    return int(step) - begin


def updates_of(arms: dict[str, list[Evaluation]]) -> dict[str, list[int]]:
    """Arm -> the updates of each seed, of the arms where they are known."""
    counts = {arm: [count_updates(seed) for seed in seeds] for arm, seeds in arms.items()}
    return {arm: seeds for arm, seeds in counts.items() if None not in seeds}


def show_updates(comparison: dict, arm: str) -> str:
    """The updates of an arm as text, of several seeds from the fewest to the most."""
    counts = sorted(set(comparison.get("updates", {}).get(arm, ())))  # older ones have none
    return " to ".join(f"{count:,}" for count in counts[:: max(1, len(counts) - 1)]) or "-"


def warn_of_updates(comparison: dict) -> str | None:
    """What to say where arms were trained for different numbers of updates."""
    updates = comparison.get("updates", {})
    counts = [count for seeds in updates.values() for count in seeds]
    if not counts or max(counts) - min(counts) <= TOLERANCE * max(counts):
        return None
    told = ", ".join(f"{arm} {show_updates(comparison, arm)}" for arm in updates)
    return (
        f"**Warning: the arms were not trained for the same number of updates** ({told}): a "
        "difference between them may be one of training, not of arrangement. Arms of one design "
        "have equal epochs with design.examples.rows=one_query; else give branches.steps."
    )
