"""The results of zero-shot GLUE for people."""

from collections.abc import Sequence

from icl_jax.evaluation.bootstrap import show_interval, tell_few_items

# Count of pairs -> what is special about them.
COUNTED = {
    "cut": "cut on the left to the model's positions",
    "ties": "whose best labels differ by at most {tie_tolerance:g} of their score, so that the "
    "first counts as guessed",
}


def make_table(results: dict, tasks: Sequence[str]) -> str:
    """One line for each task, notes, and below them each task's confusion matrix."""
    lines = [
        "| task | pairs | accuracy (95% interval) | accuracy by token (95% interval) "
        "| majority class | guessed |",
        "|---|---|---|---|---|---|",
    ]
    for task in tasks:
        own = results[task]
        guessed = ", ".join(
            f"{label} {_percent(r)}" for label, r in own["prediction_rates"].items()
        )
        lines.append(
            f"| {task} | {own['pairs']:,} | {_accuracy(own, 'accuracy')} | "
            f"{_accuracy(own, 'accuracy_normalised')} | "
            f"{_percent(own['majority_rate'])} ({own['majority_label']}) | {guessed} |"
        )
    lines += [
        "",
        f"Accuracy by the likelihood of the {results['score']}, preset {results['preset']}; by "
        "token: divided by its number of tokens.",
        *tell_few_items(*(results[task]["pairs"] for task in tasks)),
    ]
    for name, words in COUNTED.items():
        counts = {task: results[task][name] for task in tasks}
        if any(counts.values()):
            listed = ", ".join(f"{task} {count:,}" for task, count in counts.items())
            lines.append(f"Pairs {words.format(**results)}: {listed}.")
    lines += ["", "What was guessed (by likelihood, not by token) for each gold label, in pairs:"]
    for task in tasks:
        lines += ["", *_confusion(task, results[task]["confusion"])]
    return "\n".join(lines)


def _confusion(task: str, counts: dict[str, dict[str, int]]) -> list[str]:
    """Rows gold, columns guessed."""
    lines = [f"| {task}: gold | " + " | ".join(f"guessed {label}" for label in counts) + " |"]
    lines.append("|---" * (len(counts) + 1) + "|")
    for label, row in counts.items():
        lines.append(f"| {label} | " + " | ".join(f"{count:,}" for count in row.values()) + " |")
    return lines


def _accuracy(own: dict, name: str) -> str:
    return f"{_percent(own[name])} ({show_interval(own[f'{name}_interval95'], _percent)})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
