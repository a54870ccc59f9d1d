"""Fills a page of documentation with the tables and figures of experiments.

python -m icl_jax.studies.results --page=docs/results.md NAME=WORKDIR [NAME=WORKDIR,WORKDIR ...]

Replaces what the page has between `<!-- NAME -->` and `<!-- /NAME -->`. For one workdir, by the
results of its branches; for several, by a line for each arm and a column for each workdir; for
rounds, a table 1 and anything else that wrote a NAME.md and NAME.png, by those. The figure is
copied to docs/figures/NAME.png (--figures) and shown there, unless the page shows it elsewhere.
"""

import json
import os
from pathlib import Path
import re

from absl import flags
from etils import epath

from icl_jax.cli import Flag, command
from icl_jax.config import ConfigError
from icl_jax.evaluation.compare.table import show_p
from icl_jax.experiment.report.numbers import headlines, main_metric, show_value
from icl_jax.experiment.report.report import make_findings
from icl_jax.files.remote import read_bytes, read_text
from icl_jax.files.step_folder import beside

TITLE = re.compile(r"\A# .*\n+")


def fill_page(page: Path, figures: Path, blocks: dict[str, list[epath.Path]]) -> None:
    """Writes the page with the given blocks replaced; all others stay as they are."""
    text = page.read_text()
    for name, workdirs in blocks.items():
        pattern = rf"(?s)(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)"
        if not re.search(pattern, text):
            raise ConfigError(
                f"{page} has no place for {name}: <!-- {name} --> and <!-- /{name} -->"
            )
        made, figure = make_block(name, workdirs)
        file = figures / f"{name}.png"
        if figure:
            figures.mkdir(parents=True, exist_ok=True)
            with beside(file) as partial:
                partial.write_bytes(read_bytes(figure))
        shown = f"]({os.path.relpath(file, page.parent)})"
        if figure and shown not in re.sub(pattern, "", text):
            made += f"\n\n![{name.replace('_', ' ')}{shown}"
        text = re.sub(pattern, lambda match: f"{match[1]}{made}\n{match[2]}", text)  # noqa: B023
    with beside(page) as partial:
        partial.write_text(text)


def make_block(name: str, workdirs: list[epath.Path]) -> tuple[str, epath.Path | None]:
    """Tables and sentences of an experiment, or of several that differ in the seed; its figure.

    A workdir with its own NAME.md gives that.
    """
    if len(workdirs) > 1:
        return _seeds_table([_read(workdir) for workdir in workdirs]), None
    (workdir,) = workdirs
    for source in (name, "rounds", "table1"):
        if (workdir / f"{source}.md").exists():
            text = TITLE.sub("", read_text(workdir / f"{source}.md")).strip()
            return re.sub(r"(?m)^!\[.*\n?", "", text).strip(), _if_there(workdir / f"{source}.png")
    return make_findings(_read(workdir), "###"), _if_there(workdir / "comparison.png")


def _if_there(file: epath.Path) -> epath.Path | None:
    return file if file.exists() else None


def _read(workdir: epath.Path) -> dict:
    file = workdir / "comparison" / "comparison.json"
    if not file.exists():
        raise ConfigError(f"{workdir} has no {file.name}; complete its stage evaluate first")
    return json.loads(read_text(file))


def _seeds_table(comparisons: list[dict]) -> str:
    """The main number of each arm in each comparison, and each arm's largest p."""
    headline = headlines(comparisons[0])[0]
    metric = main_metric(comparisons[0], headline)
    words = metric.replace("_", " ")
    header = ["arm", *(f"{words}, run {n}" for n in range(len(comparisons)))]
    lines = [[*header, "largest p against the reference"], ["---"] * (len(header) + 1)]
    for arm in comparisons[0]["arms"]:
        cells = [comparison["arms"][arm][headline.task][metric] for comparison in comparisons]
        ps = [cell["p"] for cell in cells if cell["p"] is not None]
        shown = [show_value(headline, cell) for cell in cells]
        shown = [
            text if cell["right"] is None else f"{text} ({cell['right']:.0f} of {cell['items']})"
            for text, cell in zip(shown, cells, strict=True)
        ]
        lines.append([arm, *shown, show_p(max(ps)) if ps else "reference"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@command(
    Flag("page=FILE.md", "a Markdown file with places", Path, required=True),
    Flag("figures=FOLDER", "the folder of the figures", Path, Path("docs/figures")),
    words="NAME=WORKDIR[,WORKDIR...] ...",
)
def main(given: flags.FlagValues, entries: list[str]) -> None:
    """Fills the page."""
    blocks = {}
    for entry in entries:
        name, equals, paths = entry.partition("=")
        if not (name and equals and paths):
            raise ConfigError(f"expected NAME=WORKDIR[,WORKDIR...], got '{entry}'")
        blocks[name] = [epath.Path(path) for path in paths.split(",")]
    fill_page(given.page, given.figures, blocks)
    print(f"{given.page}: {', '.join(blocks)}")


if __name__ == "__main__":
    main()
