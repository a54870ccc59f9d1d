"""The folders show the architecture: rooms of a readable size, no file that is just a corridor."""

import collections
from pathlib import Path

from tests.test_import_layers import PACKAGE, imported_modules

TOP = {"__init__.py", "main.py", "cli.py", "sharding.py"}
MOST_MODULES = 15
DOORS = {"__init__.py", "__main__.py"}
ALIASES = ("example_design/", "training/compile_for_tpu.py")  # the former names of commands


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Dotted name -> file, of all that is not a door."""
    return {
        ".".join(("icl_jax", *path.relative_to(package).with_suffix("").parts)): path
        for path in sorted(package.rglob("*.py"))
        if path.name not in DOORS and not path.relative_to(package).as_posix().startswith(ALIASES)
    }


def corridors(package: Path = PACKAGE, shorter_than: int = 40) -> list[str]:
    """Short modules that a single other one imports: they belong into it."""
    found, readers = modules(package), collections.defaultdict(set)
    for path in package.rglob("*.py"):
        for name in imported_modules(path) & found.keys():
            readers[name].add(path)
    return [
        name
        for name, path in found.items()
        if len(readers[name] - {path}) == 1 and len(path.read_text().splitlines()) < shorter_than
    ]


def test_no_folder_has_more_modules_than_a_reader_takes_in_at_a_glance():
    sizes = collections.Counter(path.parent for path in modules().values())
    assert not {str(f): n for f, n in sizes.items() if n > MOST_MODULES}


def test_nothing_lies_loose_at_the_top():
    assert {path.name for path in PACKAGE.glob("*.py")} == TOP


def test_no_short_file_has_a_single_reader():
    assert not corridors()


def test_a_corridor_would_be_noticed(tmp_path):
    package = tmp_path / "icl_jax"
    package.mkdir()
    (package / "room.py").write_text("import icl_jax.corridor\n")
    (package / "corridor.py").write_text("X = 1\n")
    assert corridors(package) == ["icl_jax.corridor"]
    (package / "other.py").write_text("from icl_jax.corridor import X\n")
    assert corridors(package) == []
