"""M4 (E2): learning from a part of the state. Liu 2024, 3.4.5.2.1 and Figure 3.18."""

from matplotlib.figure import Figure
import numpy as np

from icl_jax.sandboxes.automata.experiments.settings import (
    GPT,
    LSTM,
    accuracies,
    tests,
    trained_point,
)
from icl_jax.sandboxes.experiment import Experiment, Results, numbers
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import (
    Claim,
    Finding,
    compare_seeds,
    make_table,
    show_spread,
)

SETTINGS = {
    "mini": {
        "tasks": ("C4 zero", "D8 place", "Grid9 boundary", "abab 1", "abab 2"),
        "length": 12, "layers": 2, "steps": 2500, "solved": 0.99,
    },
    "paper": {
        "tasks": (
            "C4 zero", "D8 place", "Grid9 boundary", "abab 1", "abab 2", "Dyck(4,8) top", "S5 first"
        ),
        "length": 40, "layers": 8, "steps": 100_000, "solved": 0.99,
    },
}  # fmt: skip
# Liu 2024, Figure 3.18: the largest of 25 runs.
PUBLISHED = {
    "Dyck(4,8) top": 100.0, "Grid9 boundary": 100.0, "S5 first": 99.6, "C4 zero": 99.9,
    "D8 place": 100.0, "abab 1": 100.0, "abab 2": 100.0,
}  # fmt: skip
ARMS = {
    "observed": "GPT, trained on what is seen",
    "states": "GPT, trained on the states",
    "linear": "GPT, trained on what is seen, linear positions",
    "LSTM": "LSTM, trained on what is seen",
}


def points(scale: str) -> list[Point]:
    """Every arm of every task; linear positions for abab alone."""
    settings = SETTINGS[scale]
    gpt = GPT[scale] | {"layers": settings["layers"], "steps": settings["steps"]}
    arms = {
        "observed": gpt,
        "states": gpt | {"learn": "states"},
        "linear": gpt | {"position": "linear"},
        "LSTM": LSTM[scale],
    }
    return [
        trained_point(
            _name(task, arm), automaton=task, length=settings["length"],
            tests=tests(settings["length"]), **_deeper(scale, task, arm, fields),
        )
        for task in settings["tasks"]
        for arm, fields in arms.items()
        if _is_run(task, arm)
    ]  # fmt: skip


def _deeper(scale: str, task: str, arm: str, fields: dict) -> dict:
    deep = scale == "paper" and task == "S5 first" and arm != "LSTM"
    return fields | {"layers": 16} if deep else fields


def _is_run(task: str, arm: str) -> bool:
    return arm != "linear" or task.startswith("abab")


def _name(task: str, arm: str) -> str:
    return f"M4 {task}, {arm}"


def report(scale: str, results: Results) -> Finding:
    """What is reached from the observations alone, beside training on all of the state."""
    settings = SETTINGS[scale]
    test = f"T={settings['length']}"
    found = {
        (task, arm): accuracies(results, _name(task, arm), test)
        for task in settings["tasks"]
        for arm in ARMS
        if _is_run(task, arm)
    }
    rows = [[f"seen of the state, T = {settings['length']}", *ARMS.values()]]
    rows += [
        [task, *(show_spread(found[task, arm]) if _is_run(task, arm) else "-" for arm in ARMS)]
        for task in settings["tasks"]
    ]
    text = (
        "Accuracy in percent of what is seen of the state, also for networks that were trained on "
        f"the whole state: median over seeds (least to largest).\n\n{make_table(rows)}"
    )
    return Finding(
        "M4", "a part of the state", text, _claims(settings, found),
        {"scale": scale, "points": numbers(results, points(scale))},
        lambda figure: _draw(figure, settings, found), size=(6.6, 2.9),
    )  # fmt: skip


def _claims(settings: dict, found: dict) -> list[Claim]:
    claims = []
    for task in settings["tasks"]:
        best = max(found[task, "observed"])
        claims.append(Claim(
            f"{task}: what is seen is enough for GPT (99% in the best run)",
            f"{PUBLISHED[task]} in the best of 25 runs",
            f"best {100 * best:.1f}, median {100 * np.median(found[task, 'observed']):.1f}",
            best >= settings["solved"],
        ))  # fmt: skip
    least = min(min(found[task, "LSTM"]) for task in settings["tasks"])
    claims.append(Claim(
        "LSTM solves every task (99.9% and more in all seeds)", "100 on all",
        f"least {100 * least:.2f}", least >= 0.999,
    ))  # fmt: skip
    for task in (task for task in settings["tasks"] if _is_run(task, "linear")):
        words, sure = compare_seeds(found[task, "observed"], found[task, "linear"])
        claims.append(Claim(
            f"{task}: linear positions make it harder", "challenging for linear positions", words,
            sure,
        ))  # fmt: skip
    # One test for all tasks: of several, one may look significant by chance.
    states, observed = (
        np.mean([found[task, arm] for task in settings["tasks"]], axis=0)
        for arm in ("states", "observed")
    )
    words, sure = compare_seeds(states, observed)
    claims.append(Claim(
        "states as targets help where only a part is asked for, on average over the tasks",
        "not measured", words, sure,
    ))  # fmt: skip
    return claims


def _draw(figure: Figure, settings: dict, found: dict) -> None:
    axis, colours = figure.subplots(), ("C0", "C2", "C4", "C7")
    for shift, ((arm, label), colour) in enumerate(zip(ARMS.items(), colours)):
        for place, task in enumerate(settings["tasks"]):
            if not _is_run(task, arm):
                continue
            values = np.multiply(100, found[task, arm])
            x = place + 0.17 * (shift - 1.5)
            axis.plot([x] * len(values), values, "o", color=colour, alpha=0.5, markersize=4,
                      label=label if task == settings["tasks"][-1] else None)  # fmt: skip
            axis.plot([x - 0.06, x + 0.06], [np.median(values)] * 2, color=colour)
    axis.set_xticks(range(len(settings["tasks"])), settings["tasks"])
    axis.set_ylabel("accuracy, %")
    axis.legend(fontsize=7, frameon=False)


EXPERIMENT = Experiment("M4", "a part of the state", points, report)
