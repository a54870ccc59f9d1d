"""The cells of the tables: what each depends on, and where its numbers are stored."""

import ast
import dataclasses
import functools
import hashlib
from importlib.metadata import version
import json
from pathlib import Path
import runpy
from typing import NamedTuple

from icl_jax.config import ConfigError, EncoderConfig, ExperimentConfig, RobertaConfig, SearchConfig
from icl_jax.config.tree import to_dict
from icl_jax.design.presets import preset as design_preset
from icl_jax.files.step_folder import beside, write_json
from icl_jax.models.kinds import preset as model_preset
from icl_jax.retrieval.encoders.token_rows import SHORTEST_ROW
from icl_jax.retrieval.search.jax_engine import first_count
from icl_jax.tpu.chips import CHIPS, generation_of, one_chip, slices

CONFIGS = {
    "gpt_base_knn": "configs/gpt_base_knn.py",
    "gpt_medium_knn": "configs/gpt_medium_knn.py",
    "roberta_base_knn_tapt": "configs/roberta_base_knn_tapt.py:neighbours_in_context",
}
_BERT = {**dataclasses.asdict(model_preset("bert-base-uncased")), "mlm_head": False}
ENCODERS: dict[str, RobertaConfig] = {
    "MiniLM-L6": RobertaConfig(**{**_BERT, "num_layers": 6, "embed_dim": 384}),
    "RoBERTa-base": dataclasses.replace(model_preset("roberta-base"), mlm_head=False),
    "RoBERTa-large": dataclasses.replace(model_preset("roberta-large"), mlm_head=False),
}
INDEXES = ("approximate", "exact")
SENTENCES = 100_000_000  # of the paper's corpus; each is a query (Levine et al. 2022, section 3)
SENTENCE_TOKENS = SHORTEST_ROW // 2  # `token_rows`: rows are twice as long as a usual sentence
DTYPE = "bfloat16"  # of the products, as `EncoderConfig.dtype` recommends for accelerators

# The code of a step: if it changes, so may the numbers. Configs and chips are compared by their
# values, so a new chip leaves the cells of the others as they are.
_COUNTING = ("tpu/compile.py", "tpu/program.py", "tpu/kernels.py")
_MODEL = (
    "sharding.py", "models/attention.py", "models/dropout.py", "models/gpt.py", "models/layers.py",
    "models/losses.py", "models/roberta.py", "models/splash.py", *_COUNTING,
)  # fmt: skip
_TRAINING = (
    *_MODEL, "training/metrics.py", "training/objectives.py", "training/optimizer.py",
    "training/train_state.py",
)  # fmt: skip
_MEASURE = "studies/pods/measure.py"
_CODE = {
    "training": _TRAINING,
    "encode": (
        *_MODEL,
        "retrieval/encoders/transformer.py",
        "retrieval/encoders/token_rows.py",
        _MEASURE,
    ),
    "search": (*_COUNTING, "retrieval/search/jax_engine.py", _MEASURE),
}


class Cell(NamedTuple):
    """A step on a place: a slice; or a generation, for one chip or its smallest slice that fits."""

    kind: str  # training, encode, search
    subject: str  # a config, an encoder, or an encoder and an index
    place: str

    @property
    def name(self) -> str:
        return "/".join(self)

    def file(self, to: Path) -> Path:
        return to / "cells" / f"{'-'.join(self)}.json"


def read_config(name: str) -> ExperimentConfig:
    """A config of the paper."""
    file, _, argument = CONFIGS[name].partition(":")
    if not Path(file).is_file():
        raise ConfigError(f"{file} does not exist here; run this in the folder of the repository")
    return runpy.run_path(file)["get_config"](*filter(None, [argument]))


def inputs_of(cell: Cell) -> dict:
    """What a cell depends on: as long as this stays the same, so do the numbers."""
    if cell.kind == "search":
        encoder, _, index = cell.subject.rpartition("-")
        made = {
            "rows": SENTENCES, "width": ENCODERS[encoder].embed_dim, "index": index,
            "candidates": search_candidates(),
        }  # fmt: skip
    elif cell.kind == "encode":
        tokens = EncoderConfig.batch_tokens
        made = {"model": to_dict(ENCODERS[cell.subject]), "batch_tokens": tokens, "dtype": DTYPE}
    else:
        made = to_dict(read_config(cell.subject))
        for part in ("design", "data", "evaluation"):  # not part of the step
            del made[part]
    versions = {name: version(name) for name in ("jax", "libtpu")}
    topologies = topologies_of(cell)
    chip = CHIPS[generation_of(topologies[0])]._asdict()
    del chip["slices"]  # only the topologies that are tried matter
    inputs = {"topologies": topologies, "chip": chip, **versions}
    inputs |= {"code": _digest(cell.kind), "step": made}
    return json.loads(json.dumps(inputs))  # as it will be read back


@functools.cache
def _digest(kind: str) -> str:
    package, digest = Path(__file__).parents[2], hashlib.sha256()
    for name in _CODE[kind]:
        digest.update(code_that_counts((package / name).read_text()).encode())
    return digest.hexdigest()


def code_that_counts(source: str) -> str:
    """The code without docstrings, comments, imports, formatting and error messages."""
    return ast.unparse(_Stripped().visit(ast.parse(source)))


class _Stripped(ast.NodeTransformer):
    def visit_Import(self, node: ast.AST) -> None:
        return None

    visit_ImportFrom = visit_Import

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        return ast.Raise()


def topologies_of(cell: Cell) -> list[str]:
    """The topologies to compile the step for: the first that it fits counts."""
    if cell.kind == "encode":
        return [one_chip()[cell.place]]
    if cell.kind == "search":
        return [to for name, to in slices().items() if generation_of(name) == cell.place]
    return [slices()[cell.place]]


def search_config() -> SearchConfig:
    """The search of the paper's design."""
    return design_preset("knn-pretraining").search


def search_candidates() -> int:
    """How many candidates each query of the paper's design requests."""
    return first_count(search_config())


def read_cell(cell: Cell, to: Path) -> dict | None:
    """The numbers of a cell; None if there are none, or its inputs have changed."""
    file = cell.file(to)
    if not file.exists():
        return None
    held = json.loads(file.read_text())
    return held["numbers"] if held["inputs"] == inputs_of(cell) else None


def write_cell(cell: Cell, to: Path, numbers: dict) -> None:
    """Writes the numbers of a cell together with its inputs."""
    write_json(cell.file(to), {"inputs": inputs_of(cell), "numbers": numbers})


def pack(cells: list[Cell], to: Path, packed: Path) -> None:
    """Writes all finished cells into one file, a line each."""
    held = {
        cell.name: json.loads(cell.file(to).read_text()) for cell in cells if read_cell(cell, to)
    }
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in held.items())
    with beside(packed) as partial:
        partial.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def unpack(packed: Path, to: Path) -> None:
    """Copies the cells of such a file to `to`, except those already there."""
    for name, value in json.loads(packed.read_text()).items() if packed.exists() else ():
        file = Cell(*name.split("/")).file(to)
        if not file.exists():
            write_json(file, value)
