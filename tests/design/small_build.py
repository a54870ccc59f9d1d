"""A small corpus whose sentences and neighbours are found, for the tests of what follows."""

from pathlib import Path

from icl_jax.config import ExperimentConfig
from icl_jax.design.build import Build
from icl_jax.design.folders import DesignFolders
from icl_jax.design.stage import find_related
from tests.design.test_find_related import experiment, write_corpus


def small_config(folder: Path, people: int = 40, **design) -> ExperimentConfig:
    """Two documents for each person; most sentences have a neighbour or two."""
    return experiment(write_corpus(folder, people), **design)


def open_build(config: ExperimentConfig, workdir: Path) -> Build:
    """After the first half of the design stage."""
    return Build.open(config, workdir, find_related(config, workdir))


def contents(workdir: Path) -> dict[str, bytes]:
    """Every file of a design stage that is not about the run itself."""
    path = DesignFolders(workdir).path
    about_the_run = ("cost.json", "config.json", "lock", "card.json", "card.html")
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in about_the_run
    }
