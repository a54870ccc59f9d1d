"""Compares evaluated models: one table, one figure, and whether each difference is real.

python -m icl_jax.evaluation.compare --runs=regular=runs/a/evaluation,knn=runs/b/evaluation --to=DIR

An evaluation is the FILE.json of icl_jax.evaluation.run, or the folder of that name; of a run's
folder `evaluation` the only one in it. A name that is given several times stands for several seeds.
Every other arm is compared with the reference, by default the first: the paired sign test for what
is right or wrong, the paired bootstrap over items for all else.
"""

import argparse
from pathlib import Path

import numpy as np

from icl_jax.config import ConfigError, StageError
from icl_jax.evaluation import bootstrap
from icl_jax.evaluation.compare_figure import draw_figure
from icl_jax.evaluation.compare_metrics import SIGN_TEST, TASKS, Metric
from icl_jax.evaluation.compare_read import Evaluation, open_evaluation, read_metrics
from icl_jax.evaluation.compare_table import make_csv, make_markdown
from icl_jax.parallel import progress_bar
from icl_jax.retrieval.show import ends_well
from icl_jax.step_folder import beside, write_json

RESAMPLES, SEED, LEVEL = 10_000, 0, 0.05


def compare(
    arms: dict[str, list[Path]], reference: str, to: Path, resamples: int = RESAMPLES
) -> dict:
    """Writes comparison.json, .md, .csv, .png and .svg into `to`; returns what the first holds.

    `arms` has the evaluations of each arm, one for each seed. Of several seeds a number is the
    mean, and so it is in every resample; the sign test takes each item's mean.
    """
    if reference not in arms:
        raise ConfigError(f"the reference '{reference}' is none of the arms: {', '.join(arms)}")
    opened = {arm: [open_evaluation(Path(path)) for path in arms[arm]] for arm in arms}
    every = [evaluation for evaluations in opened.values() for evaluation in evaluations]
    known = [t for t in TASKS if any(t in e.tasks for e in every)]
    tasks = [task for task in known if all(task in e.tasks for e in every)]
    if not tasks:
        held = "; ".join(f"{e.folder}: {', '.join(e.tasks)}" for e in every)
        raise StageError(f"there is no task that all arms were evaluated on: {held}")
    cells = [cell for task in tasks for cell in _compare_task(task, opened, reference, resamples)]
    _judge(cells)
    result = {
        "reference": reference,
        "comparisons": sum(cell["p"] is not None for cell in cells),
        "resamples": resamples,
        "evaluations": {arm: [e.folder.as_posix() for e in opened[arm]] for arm in arms},
        "left_out": {
            task: [arm for arm in opened if not all(task in e.tasks for e in opened[arm])]
            for task in known
            if task not in tasks
        },
        "arms": {arm: {task: {} for task in tasks} for arm in arms},
    }
    for cell in cells:
        arm, task, metric = (cell.pop(name) for name in ("arm", "task", "metric"))
        result["arms"][arm][task][metric] = cell
    _write(result, to)
    return result


def _compare_task(
    task: str, arms: dict[str, list[Evaluation]], reference: str, resamples: int
) -> list[dict]:
    """The cells of a task: one for each metric and arm, without the adjusted p-values."""
    metrics = read_metrics(task, arms, reference)
    names = list(metrics[reference][0])
    common = [n for n in names if all(n in seed for seeds in metrics.values() for seed in seeds)]
    seeds = sum(map(len, metrics.values()))
    with progress_bar(total=len(common) * seeds, unit=" statistics", desc=f"{task}") as bar:
        drawn = {}
        for arm in arms:
            drawn[arm] = [_draw(seed, common, resamples, bar.update) for seed in metrics[arm]]
    cells = []
    for name in common:
        values = {arm: np.mean([d[name] for d in drawn[arm]], axis=0) for arm in arms}
        for arm in arms:
            cell = _cell(name, metrics[arm], values[arm])
            if arm != reference:
                of_both = metrics[arm], metrics[reference]
                cell |= _difference(name, *of_both, values[arm] - values[reference])
            cells.append({"arm": arm, "task": task, "metric": name} | cell)
    return cells


def _draw(seed: dict[str, Metric], names: list[str], resamples: int, progress) -> dict:
    """The values of one evaluation's metrics on resamples; parts of a mean are drawn apart."""
    drawn = {}
    for number, name in enumerate(names):
        metric = seed[name]
        if metric.mean_of:
            drawn[name] = np.mean([drawn[part] for part in metric.mean_of], axis=0)
        else:
            drawn[name] = bootstrap.draw(metric.statistic, metric.items, resamples, [SEED, number])
        progress(1)
    return drawn


def _cell(name: str, seeds: list[dict[str, Metric]], drawn: np.ndarray) -> dict:
    metric, values = seeds[0][name], [seed[name].value(seed) for seed in seeds]
    value = float(np.mean(values))
    return {
        "value": value,
        "interval95": bootstrap.interval(drawn),
        "seeds": values,
        "standard_deviation": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "items": _count_items(seeds[0], name),
        "right": value * metric.items if metric.test == SIGN_TEST else None,
        "unit": metric.unit.name,
        "better": metric.unit.better,
        "difference": None,
        "difference_interval95": None,
        "test": metric.test,
        "p": None,
        "p_holm": None,
        "verdict": None,
    }


def _difference(name: str, seeds: list[dict], of_reference: list[dict], drawn: np.ndarray) -> dict:
    """What an arm has more than the reference, and how likely that is by chance."""
    value, other = (np.mean([s[name].value(s) for s in held]) for held in (seeds, of_reference))
    parts = seeds[0][name].mean_of or (name,)
    by_item = np.concatenate([_scores(part, seeds) - _scores(part, of_reference) for part in parts])
    if seeds[0][name].test == SIGN_TEST:
        p = bootstrap.sign_test(by_item)
    else:
        p = bootstrap.p_value(drawn, differing=np.count_nonzero(by_item))
    return {
        "difference": float(value - other),
        "difference_interval95": bootstrap.interval(drawn),
        "p": p,
    }


def _scores(name: str, seeds: list[dict[str, Metric]]) -> np.ndarray:
    """Of each item, the mean over seeds."""
    return np.mean([seed[name].scores for seed in seeds], axis=0)


def _count_items(seed: dict[str, Metric], name: str) -> int:
    return sum(seed[part].items for part in seed[name].mean_of or (name,))


def _judge(cells: list[dict]) -> None:
    """Adds the p-values that take all comparisons into account, and a word."""
    tested = [cell for cell in cells if cell["p"] is not None]
    for cell, p_holm in zip(tested, bootstrap.holm([c["p"] for c in tested]), strict=True):
        cell["p_holm"] = p_holm
        side = "better" if (cell["difference"] > 0) == (cell["better"] == "higher") else "worse"
        if p_holm < LEVEL:
            cell["verdict"] = f"{side}, real at {LEVEL}"
        elif cell["p"] < LEVEL:
            cell["verdict"] = f"{side} at {LEVEL} by itself, not among all"
        else:
            cell["verdict"] = "not shown"


def _write(result: dict, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    for name, text in (("md", make_markdown(result)), ("csv", make_csv(result))):
        with beside(to / f"comparison.{name}") as partial:
            partial.write_text(text)
    for kind in ("png", "svg"):
        with beside(to / f"comparison.{kind}") as partial:
            draw_figure(result, partial, kind)
    write_json(to / "comparison.json", result)


def parse_runs(text: str) -> dict[str, list[Path]]:
    """NAME=PATH,NAME=PATH,... as arms."""
    arms: dict[str, list[Path]] = {}
    for entry in text.split(","):
        name, equals, path = entry.partition("=")
        if not (name and equals and path):
            raise ConfigError(f"--runs: expected NAME=PATH,NAME=PATH,..., got '{entry}'")
        arms.setdefault(name, []).append(Path(path))
    return arms


def main(argv: list[str] | None = None) -> None:
    """Reads the flags, compares, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", required=True, help="NAME=PATH,NAME=PATH,...")
    parser.add_argument("--reference", help="the arm that others are compared with")
    parser.add_argument("--to", required=True, type=Path, help="the folder that gets the results")
    args = parser.parse_args(argv)
    with ends_well():
        arms = parse_runs(args.runs)
        print(make_markdown(compare(arms, args.reference or next(iter(arms)), args.to)))
        print(f"written: {args.to}/comparison.md, .csv, .json, .png, .svg")


if __name__ == "__main__":
    main()
