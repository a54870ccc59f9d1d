"""Imports point one way only, and importing the package stays light."""

import ast
from collections.abc import Sequence
from pathlib import Path
import subprocess
import sys

PACKAGE = Path(__file__).parents[1] / "icl_jax"

# A module may import from its own layer and from those before it.
LAYERS = [
    {"design.arms", "evaluation.tasks", "tpu.chips"},  # tables alone, which import nothing
    {"config"},
    {"cli", "files", "workers", "sharding"},
    {"corpus", "models", "data"},
    {"design.folders"},  # where a design keeps what
    {"retrieval"},
    {"design"},
    {"training"},
    {"tpu"},
    {"evaluation"},
    {"experiment"},
    {"theory", "sandboxes"},
    {"studies"},
    {"main", "example_design"},  # commands; the former names of two
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
APART = {"corpus", "models", "data", "theory", "sandboxes"}  # neighbours that don't know each other

# Heavy libraries and the only modules that may import them.
HEAVY = {
    "faiss": {"retrieval/search/faiss_engine.py"},
    "tensorflow": set(),
    "apache_beam": {"workers/beam.py"},
    "torch": set(),
    "transformers": set(),
    "sentence_transformers": set(),
    "lm_eval": {"evaluation/lm_harness.py"},
    "datasets": {"evaluation/tables.py"},
}


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by the full name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def part_of(parts: Sequence[str]) -> str:
    """The room of a module or of a name in it: the first folder, but tables have a floor apart."""
    table = ".".join(parts[:2])
    inside = PACKAGE.joinpath(*parts[:3])
    is_inside = len(parts) > 2 and (inside.is_dir() or inside.with_suffix(".py").exists())
    return table if table in LEVEL and not is_inside else parts[0]


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return part_of([part for part in parts if part != "__init__"] or parts)


def layer_violations(source: str, modules: set[str]) -> list[str]:
    parts = {part_of(m.split(".")[1:]) for m in modules if m.startswith("icl_jax.")}
    return [
        f"{source} -> {part}"
        for part in sorted(parts & LEVEL.keys())
        if LEVEL[part] > LEVEL[source] or (part != source and {part, source} <= APART
                                           and LEVEL[part] == LEVEL[source])
    ]  # fmt: skip


def test_every_part_of_the_package_has_a_layer():
    parts = {room_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert parts <= LEVEL.keys(), f"without a layer: {sorted(parts - LEVEL.keys())}"


def test_imports_never_point_to_a_later_layer():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        if room_of(path) != "__init__":
            wrong += layer_violations(room_of(path), imported_modules(path))
    assert not wrong


def test_a_backward_import_would_be_noticed():
    assert layer_violations("models", {"icl_jax.training.train"}) == ["models -> training"]
    assert layer_violations("models", {"icl_jax.corpus"}) == ["models -> corpus"]
    assert layer_violations("training", {"icl_jax.models.gpt", "icl_jax.config"}) == []


def test_heavy_libraries_stay_in_their_one_module():
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        for module in imported_modules(path):
            allowed = HEAVY.get(module.split(".")[0])
            assert allowed is None or name in allowed, f"{name} imports {module}"


def test_the_package_and_its_flags_import_without_jax():
    code = "import icl_jax, icl_jax.main, sys; print({'jax', 'flax', 'numpy'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_workers_import_what_they_run_without_jax():
    """JAX would cost each of them seconds and 200 MB."""
    modules = ["corpus.sentence_shards", "retrieval.search.signatures", "retrieval.search.search"]
    modules += ["design.records.records", "design.contamination.overlap"]
    strategies = sorted((PACKAGE / "design" / "strategies").glob("[!_]*.py"))
    modules += [f"design.strategies.{path.stem}" for path in strategies]
    code = "import sys; " + "; ".join(f"import icl_jax.{name}" for name in modules)
    code += "; print({'jax', 'sklearn', 'apache_beam'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_training_knows_of_a_design_only_where_it_lies():
    for room in ("data", "models", "training"):
        for path in (PACKAGE / room).rglob("*.py"):
            modules = {".".join(name.split(".")[1:3]) for name in imported_modules(path)}
            others = {name for name in modules if name.startswith(("design.", "retrieval."))}
            assert others <= {"design.folders"}, f"{path.name} imports {sorted(others)}"
