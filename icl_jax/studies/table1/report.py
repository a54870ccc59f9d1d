"""Table 1 of Levine et al. 2022 beside our measurements: the choice of rates, and the tables.

A score is Spearman's correlation x 100 on a whole set, with its subsets pooled.
"""

import csv
import io
import statistics
from typing import NamedTuple

from etils import epath

from icl_jax.config.evaluation import STS_SETS
from icl_jax.evaluation.compare.table import show_p, show_updates, warn_of_updates

AVERAGE = "average"
# Levine et al. 2022, table 1: arm -> its name there, the seven sets, their average.
PAPER = {
    "trunk": ("RoBERTa-base", (32.1, 56.3, 45.2, 61.3, 62.0, 55.4, 62.0), 53.5),
    "task_only": ("TAPT", (43.0, 62.2, 51.6, 70.6, 64.9, 63.0, 63.5), 59.8),
    "random_in_batch": ("random, in-batch", (40.2, 62.7, 51.9, 64.9, 62.1, 61.5, 65.4), 58.4),
    "neighbours_in_batch": (
        "neighbours, in-batch", (40.8, 62.4, 53.1, 66.1, 63.0, 61.3, 65.2), 58.8,
    ),
    "random_in_context": (
        "random, in-context", (44.62, 62.64, 51.4, 65.28, 64.93, 64.31, 66.96), 60.0,
    ),
    "neighbours_in_context": (
        "neighbours, in-context", (44.9, 63.4, 52.1, 66.2, 65.3, 66.5, 68.3), 61.0,
    ),
}  # fmt: skip
_CHOICE = (
    "The learning rate of an arm is the one with the best average on the test sets themselves, as "
    "seems to be the case in the paper, which names no other set. This flatters every trained arm: "
    "each gets the best of the same rates. All rates are below."
)


class Setting(NamedTuple):
    """An arm with a learning rate, trained once for each seed."""

    arm: str
    rate: float | None  # None: nothing was trained
    results: list[epath.Path]
    seeds: list[dict[str, float]]  # set -> its score

    @property
    def averages(self) -> list[float]:
        """The mean over the sets, for each seed."""
        return [statistics.fmean(scores.values()) for scores in self.seeds]

    @property
    def average(self) -> float:
        return statistics.fmean(self.averages)

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the average over seeds; None: there is only one seed."""
        return statistics.stdev(self.averages) if len(self.seeds) > 1 else None

    @property
    def scores(self) -> dict[str, float]:
        """For each set, the mean over seeds."""
        sets = self.seeds[0]
        return {name: statistics.fmean(seed[name] for seed in self.seeds) for name in sets}


def scores_of(results: dict) -> dict[str, float]:
    """The score of each of the seven sets that an evaluation has complete."""
    found = {name: results[name]["all"]["spearman"] for name in STS_SETS if name in results}
    return {name: score for name, score in found.items() if score is not None}


def choose_rates(settings: list[Setting]) -> list[Setting]:
    """The setting of each arm with the best average; of equal ones, the first."""
    best: dict[str, Setting] = {}
    for setting in settings:
        if setting.arm not in best or setting.average > best[setting.arm].average:
            best[setting.arm] = setting
    return list(best.values())


def make_markdown(settings: list[Setting], comparison: dict | None) -> str:
    """The rows of the paper's table, each beside ours, then every rate."""
    chosen, sets = choose_rates(settings), [*settings[0].seeds[0]]
    header = ["", "learning rate", *sets, AVERAGE, "sd over seeds"]
    columns = [*header, "updates", _difference_header(comparison)]
    lines = [columns, ["---"] * len(columns)]
    for setting in chosen:
        updates = show_updates(comparison or {}, setting.arm)
        difference = _difference(setting, comparison)
        lines.append([f"**{name_of(setting.arm)}**", *_cells(setting), updates, difference])
        if setting.arm in PAPER:
            lines.append(["in the paper", "", *_paper_cells(setting.arm, sets), "", "", ""])
    warning = warn_of_updates(comparison or {})
    return "\n".join([
        "# Table 1: kNN-TAPT",
        "",
        "Spearman's correlation x 100, each set with its subsets pooled (`all`); the mean over "
        f"{len(chosen[-1].seeds)} seed(s). The paper does not say how it pooled.",
        "",
        *([warning, ""] if warning else []),
        *_table(lines),
        "",
        *([_missing(sets), ""] if len(sets) < len(STS_SETS) else []),
        *(_rates(settings, header) if len(settings) > len(chosen) else []),
    ])  # fmt: skip


def _rates(settings: list[Setting], header: list[str]) -> list[str]:
    rows = [["arm", *header[1:]], ["---"] * len(header)]
    rows += [[name_of(setting.arm), *_cells(setting)] for setting in settings]
    return [_CHOICE, "", "## All learning rates", "", *_table(rows), ""]


def make_csv(settings: list[Setting]) -> str:
    """A line for each arm and rate, then the paper's lines."""
    chosen, sets = choose_rates(settings), [*settings[0].seeds[0]]
    columns = ["source", "arm", "learning_rate", "chosen", "seeds", *sets, AVERAGE]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*columns, "standard_deviation"], lineterminator="\n")
    writer.writeheader()
    for setting in settings:
        line = {"source": "here", "arm": setting.arm, "learning_rate": setting.rate}
        line |= {"chosen": setting in chosen, "seeds": len(setting.seeds), **setting.scores}
        line |= {AVERAGE: setting.average, "standard_deviation": setting.deviation}
        writer.writerow(line)
    for arm, (_, scores, average) in PAPER.items():
        line = {"source": "paper", "arm": arm, AVERAGE: average}
        line |= {name: s for name, s in zip(STS_SETS, scores, strict=True) if name in sets}
        writer.writerow(line)
    return text.getvalue()


def make_numbers(settings: list[Setting], comparison: dict | None) -> dict:
    """The same for programs: the numbers of each arm, every rate, and the paper's."""
    chosen = choose_rates(settings)
    return {
        "arms": {
            setting.arm: _numbers(setting)
            | {
                "updates": (comparison or {}).get("updates", {}).get(setting.arm),  # of each seed
                "difference": _cell(setting, comparison),
            }
            for setting in chosen
        },
        "settings": [{"arm": setting.arm, **_numbers(setting)} for setting in settings],
        "paper": {
            arm: {**dict(zip(STS_SETS, scores, strict=True)), AVERAGE: average}
            for arm, (_, scores, average) in PAPER.items()
        },
        "reference": comparison["reference"] if comparison else None,
    }


def name_of(arm: str) -> str:
    """The paper's name of an arm, with ours if it differs."""
    return {"trunk": "no further training (trunk)", "task_only": "TAPT (task_only)"}.get(arm, arm)


def _numbers(setting: Setting) -> dict:
    return {
        "learning_rate": setting.rate,
        **setting.scores,
        AVERAGE: setting.average,
        "standard_deviation": setting.deviation,
        "seeds": setting.averages,
        "evaluations": [path.as_posix() for path in setting.results],
    }


def _cells(setting: Setting) -> list[str]:
    rate = "none" if setting.rate is None else f"{setting.rate:g}"
    scores = [f"{score:.1f}" for score in (*setting.scores.values(), setting.average)]
    return [rate, *scores, "1 run" if setting.deviation is None else f"{setting.deviation:.2f}"]


def _paper_cells(arm: str, sets: list[str]) -> list[str]:
    _, scores, average = PAPER[arm]
    found = [f"{score:.1f}" for name, score in zip(STS_SETS, scores, strict=True) if name in sets]
    return [*found, f"{average:.1f}" if len(sets) == len(STS_SETS) else "-"]


def _cell(setting: Setting, comparison: dict | None) -> dict | None:
    """The difference of the average from the reference; None: there is none."""
    found = comparison["arms"][setting.arm]["sts"].get(AVERAGE) if comparison else None
    if found is None or found["difference"] is None:
        return None
    wanted = ("difference", "difference_interval95", "p", "p_holm", "p_seeds", "real", "verdict")
    return {name: found[name] for name in wanted}


def _difference_header(comparison: dict | None) -> str:
    return f"difference to {comparison['reference']}" if comparison else "difference"


def _difference(setting: Setting, comparison: dict | None) -> str:
    if comparison and setting.arm == comparison["reference"]:
        return "reference"
    cell = _cell(setting, comparison)
    if cell is None:
        return "-"
    low, high = cell["difference_interval95"]
    return (
        f"{cell['difference']:+.2f} ({low:+.2f} to {high:+.2f}), Holm's p "
        f"{show_p(cell['p_holm'])}: {cell['verdict']}"
    )


def _missing(sets: list[str]) -> str:
    left_out = [name for name in STS_SETS if name not in sets]
    return f"Without {', '.join(left_out)}: the average is not comparable with the paper's."


def _table(lines: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in lines]
