"""Compares evaluated models in a table and a figure, with tests of significance.

python -m icl_jax.evaluation.compare --runs=regular=runs/a/evaluation,knn=runs/b/evaluation --to=DIR

An evaluation is the FILE.json of icl_jax.evaluation.run, or the folder of that name, or a run's
folder `evaluation` if there is only one in it. A name that is given several times has several
seeds. Every other arm is compared with the reference, by default the first. Over items: the paired
sign test for right or wrong answers if both arms have one seed, otherwise the paired bootstrap; p
is adjusted for all comparisons (Holm). Over seeds, if both arms have several: Welch's t-test of the
seeds' values. A difference is significant if every test that can be made says so; with one seed
that holds for these items alone.
"""

from absl import flags
from etils import epath

from icl_jax.cli import Flag, command
from icl_jax.config import ConfigError, StageError
from icl_jax.evaluation.compare.cells import judge, make_cells
from icl_jax.evaluation.compare.figure import draw_figure
from icl_jax.evaluation.compare.read import find_common, open_arm, read_metrics, updates_of
from icl_jax.evaluation.compare.table import describe_left_out, make_csv, make_markdown
from icl_jax.evaluation.tasks import TASKS
from icl_jax.files.step_folder import beside, write_json

RESAMPLES = 10_000


def compare(
    arms: dict[str, list[epath.Path]],
    reference: str,
    to: epath.PathLike,
    resamples: int = RESAMPLES,
) -> dict:
    """Writes comparison.json, .md, .csv, .png and .svg into `to`; returns what the first holds.

    `arms` has the evaluations of each arm, one for each seed. With several seeds a number is their
    mean, in every resample too.
    """
    if reference not in arms:
        raise ConfigError(f"the reference '{reference}' is not one of the arms: {', '.join(arms)}")
    opened = {arm: open_arm(arm, paths) for arm, paths in arms.items()}
    every = [evaluation for evaluations in opened.values() for evaluation in evaluations]
    known = [t for t in TASKS if any(t in e.tasks for e in every)]
    tasks = [task for task in known if all(task in e.tasks for e in every)]
    if not tasks:
        held = "; ".join(f"{e.folder}: {', '.join(e.tasks)}" for e in every)
        raise StageError(f"there is no task that all arms were evaluated on: {held}")
    cells, notes = [], {}
    left_out = [
        {"task": task, "metric": None, "arms": lacking, "why": "not evaluated"}
        for task in known
        if (lacking := [a for a in opened if not all(task in e.tasks for e in opened[a])])
    ]
    every_metric = {task: read_metrics(task, opened, reference) for task in tasks}
    for task, metrics in every_metric.items():
        common, left, notes[task] = find_common(metrics, reference)
        left_out += [{"task": task} | entry for entry in left]
        cells += make_cells(task, metrics, common, reference, resamples)
    if not cells:
        raise StageError(f"there is no number that all arms have: {describe_left_out(left_out)}")
    judge(cells, reference)
    result = {
        "reference": reference,
        "comparisons": sum(cell["p"] is not None for cell in cells),
        "resamples": resamples,
        "evaluations": {arm: [e.folder.as_posix() for e in opened[arm]] for arm in arms},
        "updates": updates_of(opened),
        "left_out": left_out,
        "notes": {task: lines for task, lines in notes.items() if lines},
        "arms": {arm: {} for arm in arms},
    }
    for cell in cells:
        arm, task, metric = (cell.pop(name) for name in ("arm", "task", "metric"))
        result["arms"][arm].setdefault(task, {})[metric] = cell
    _write(result, epath.Path(to))
    return result


def _write(result: dict, to: epath.Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    for name, text in (("md", make_markdown(result)), ("csv", make_csv(result))):
        with beside(to / f"comparison.{name}") as partial:
            partial.write_text(text)
    for kind in ("png", "svg"):
        with beside(to / f"comparison.{kind}") as partial:
            draw_figure(result, partial, kind)
    write_json(to / "comparison.json", result)


def parse_runs(text: str) -> dict[str, list[epath.Path]]:
    """NAME=PATH,NAME=PATH,... as arms."""
    arms: dict[str, list[epath.Path]] = {}
    for entry in text.split(","):
        name, equals, path = entry.partition("=")
        if not (name and equals and path):
            raise ConfigError(f"--runs: expected NAME=PATH,NAME=PATH,..., got '{entry}'")
        arms.setdefault(name, []).append(epath.Path(path))
    return arms


@command(
    Flag("runs=NAME=PATH,NAME=PATH,...", "the arms and their evaluations", required=True),
    Flag("reference=NAME", "the arm that the others are compared with; by default the first"),
    Flag("to=DIR", "the folder that gets the results", required=True),
)
def main(given: flags.FlagValues) -> None:
    """Compares, and prints the table."""
    arms = parse_runs(given.runs)
    print(make_markdown(compare(arms, given.reference or next(iter(arms)), given.to)))
    print(f"written: {given.to}/comparison.md, .csv, .json, .png, .svg")
