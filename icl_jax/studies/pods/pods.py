"""Estimates the cost of the paper's runs on TPU slices, with libtpu and arithmetic.

python -m icl_jax.studies.pods --page=docs/pods.md --to=DIR [--only=PATTERN,...] [--dry_run]

Compiles every step for every slice (a cell) and writes its numbers to DIR when it is done; if
killed, rerun the command and it continues. A cell is stored with its inputs, so that it is compiled
again if the config, the code of the step, the chip or libtpu changes. The tables of the page,
between `<!-- pods_NAME -->` and `<!-- /pods_NAME -->`, are then made from all finished cells, and
everything that the compiler reported is kept beside the page (docs/pods.json) for the next time.
PATTERN: cells KIND/SUBJECT/PLACE, such as training/gpt_base_knn/v5e-* or search/*. Needs no TPU.
"""

from collections.abc import Iterator, Sequence
import fnmatch
from importlib.metadata import version
import importlib.util
import itertools
from pathlib import Path
import subprocess
import sys
import time

from absl import flags

from icl_jax.cli import Flag, command, several
from icl_jax.config import ConfigError, StageError
from icl_jax.files.folder_lock import alone_in
from icl_jax.files.step_folder import beside

TOGETHER = 4  # cells of one process
MEASURE = "icl_jax.studies.pods.measure"


def all_cells() -> list:
    """Every cell, the most informative first, in case the run ends early."""
    from icl_jax.studies.pods.cells import CONFIGS, ENCODERS, INDEXES, Cell
    from icl_jax.tpu.chips import one_chip, slices

    indexes = [f"{encoder}-{index}" for encoder in ENCODERS for index in INDEXES]
    return [
        *(Cell("encode", *pair) for pair in itertools.product(ENCODERS, one_chip())),
        *(Cell("search", *pair) for pair in itertools.product(indexes, one_chip())),
        *(Cell("training", *pair) for pair in itertools.product(CONFIGS, slices())),
    ]


def choose(cells: list, patterns: Sequence[str]) -> list:
    """The cells that match a pattern; each pattern must match some."""
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(cell.name, pattern) for cell in cells):
            raise ConfigError(
                f"--only={pattern} matches no cell; expected KIND/SUBJECT/PLACE such as "
                f"{cells[0].name} or {cells[-1].kind}/*; --dry_run lists all"
            )
    wanted = lambda cell: any(fnmatch.fnmatchcase(cell.name, x) for x in patterns)  # noqa: E731
    return [cell for cell in cells if not patterns or wanted(cell)]


def measure_cells(cells: list, to: Path) -> list[str]:
    """Measures the missing cells; returns the names of those that failed."""
    from icl_jax.studies.pods.cells import read_cell

    waiting = [cell for cell in cells if read_cell(cell, to) is None]
    print(f"{len(cells)} cells, {len(cells) - len(waiting)} of them done", flush=True)
    taken, failed, total = [], [], len(waiting)
    while waiting:
        batch = waiting[:TOGETHER]
        names = [cell.name for cell in batch]
        for name, seconds in run_process(list(names), to):
            taken.append((name, seconds))
            names.remove(name)
            waiting = [cell for cell in waiting if cell.name != name]
            print(
                f"[{total - len(waiting)}/{total}] {name}: {seconds:.0f} s, "
                f"{time_left([cell.kind for cell in waiting], taken)} left",
                flush=True,
            )
        if names:  # the process died while measuring the first of these
            failed.append(names[0])
            waiting = [cell for cell in waiting if cell.name != names[0]]
            print(f"failed: {names[0]}; see {to / 'compiler.log'}", flush=True)
    return failed


def run_process(names: list[str], to: Path) -> Iterator[tuple[str, float]]:
    """Measures cells in a separate process; yields the name and seconds of each finished one."""
    command = [sys.executable, "-m", MEASURE, f"--to={to}", *names]
    with (to / "compiler.log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            for line in process.stdout:
                name, _, seconds = line.strip().rpartition(" ")
                if name in names:
                    yield name, float(seconds)
            process.wait()
        finally:
            process.kill()


def time_left(kinds: list[str], taken: list[tuple[str, float]]) -> str:
    """How long cells of these kinds will take, estimated from those measured so far."""
    seconds = {}
    for name, each in taken:
        seconds.setdefault(name.partition("/")[0], []).append(each)
    means = {kind: sum(values) / len(values) for kind, values in seconds.items()}
    usual = sum(each for _, each in taken) / len(taken)
    minutes = sum(means.get(kind, usual) for kind in kinds) / 60
    return f"about {minutes:.0f} min"


def fill(page: Path, to: Path) -> None:
    """Makes the page's tables from the finished cells."""
    from icl_jax.studies.pods.cells import CONFIGS, pack, read_cell, read_config
    from icl_jax.studies.pods.tables import join_table, sentences_table, training_table
    from icl_jax.studies.results import fill_page

    def read(cell) -> dict | None:
        return read_cell(cell, to)

    blocks = {f"pods_{name}": training_table(name, read_config(name), read) for name in CONFIGS}
    blocks |= {"pods_sentences": sentences_table(read), "pods_join": join_table(read)}
    blocks["pods_made_with"] = made_with()
    for name, text in blocks.items():
        with beside(to / f"{name}.md") as partial:
            partial.write_text(text + "\n")
    fill_page(page, page.parent / "figures", {name: [to] for name in blocks})
    pack(all_cells(), to, page.with_suffix(".json"))
    print(f"{page}: {', '.join(blocks)}")


def made_with() -> str:
    """The versions behind the numbers."""
    versions = {name: version(name) for name in ("libtpu", "jax")}
    return "Compiled by " + ", ".join(f"{name} {number}" for name, number in versions.items()) + "."


@command(
    Flag("page=FILE.md", "a Markdown file with places", Path, required=True),
    Flag("to=DIR", "a folder for the numbers", Path, required=True),
    Flag("only=PATTERN,...", "the cells to measure", several(), ()),
    Flag("dry_run", "only list the cells", bool, False),
)
def main(given: flags.FlagValues) -> None:
    """Measures, and fills the page."""
    page, to = given.page, given.to
    if not page.is_file():
        raise ConfigError(f"--page={page} does not exist; expected a Markdown file")
    if importlib.util.find_spec("libtpu") is None:
        raise ConfigError("the TPU compiler, libtpu, is not installed; pip install '.[tpu]'")
    cells = choose(all_cells(), [pattern for pattern in given.only if pattern])
    if given.dry_run:
        print("\n".join(cell.name for cell in cells))
        return
    start = time.perf_counter()
    with alone_in(to):
        from icl_jax.studies.pods.cells import unpack

        (to / "cells").mkdir(exist_ok=True)
        unpack(page.with_suffix(".json"), to)
        failed = measure_cells(cells, to)
        fill(page, to)
    print(f"{(time.perf_counter() - start) / 60:.1f} minutes")
    if failed:
        raise StageError(
            f"{len(failed)} cells failed: {', '.join(failed)}; the rest is in {page}, and "
            f"what the compiler said in {to / 'compiler.log'}"
        )
