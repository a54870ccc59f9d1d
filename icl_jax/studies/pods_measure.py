"""One cell of the tables of `pods`: a step, a slice, and what libtpu makes of the two.

python -m icl_jax.studies.pods_measure --to=DIR KIND/SUBJECT/PLACE ...

is what `pods` starts, for a few cells at a time: a process of its own gives back what the compiler
took, and one that dies takes no other cell with it.
"""

import argparse
import dataclasses
import hashlib
from importlib.metadata import version
import json
from pathlib import Path
import runpy
import time
from typing import NamedTuple

from flax import nnx
import jax

from icl_jax.config import (
    ConfigError,
    EncoderConfig,
    ExperimentConfig,
    MeshConfig,
    RobertaConfig,
    SearchConfig,
    TrainingConfig,
)
from icl_jax.config_tree import to_dict
from icl_jax.example_design.presets import preset as design_preset
from icl_jax.models import abstract
from icl_jax.models.presets import preset as model_preset
from icl_jax.retrieval.encoder_transformer import TransformerEncoder
from icl_jax.retrieval.search_jax import QUERIES, compile_search, first_count
from icl_jax.retrieval.sentence_recipe import SentenceRecipe
from icl_jax.retrieval.token_rows import SHORTEST_ROW, rows_of_batch
from icl_jax.sharding import make_mesh, variable_sharding
from icl_jax.step_folder import write_json
from icl_jax.studies.pods_slices import ONE_CHIP, SLICES, generation_of
from icl_jax.training.compile_for_tpu import (
    DoesNotFitError,
    measure,
    measure_program,
    topology_devices,
)
from icl_jax.training.metrics import flops_per_token

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
SENTENCES = 100_000_000  # of the paper's corpus, each of which asks (Levine et al. 2022, section 3)
SENTENCE_TOKENS = SHORTEST_ROW // 2  # `token_rows`: rows are twice as long as the usual sentence
EXACT_PASSES = 6  # of bfloat16 products make one of float32 (`Precision.HIGHEST`)
DTYPE = "bfloat16"  # of the products, as `EncoderConfig.dtype` says for accelerators

# What a step is made of: if it changes, so may the numbers.
_THIS = "studies/pods_measure.py"
_COUNTING = ("training/compile_for_tpu.py", "training/tpu_program.py", "training/hardware.py")
_MODEL = ("config.py", "sharding.py", "models/*.py", *_COUNTING)
_TRAINING = (
    *_MODEL, "training/metrics.py", "training/objectives.py", "training/optimizer.py",
    "training/train_state.py",
)  # fmt: skip
_CODE = {
    "training": _TRAINING,
    "dropout": _TRAINING,
    "encode": (*_MODEL, "retrieval/encoder_transformer.py", "retrieval/token_rows.py", _THIS),
    "search": (*_COUNTING, "retrieval/search_jax.py", _THIS),
}


class Cell(NamedTuple):
    """A step on a place: a slice, or a generation that has one chip or the smallest slice."""

    kind: str  # training, dropout (the same step with dropout), encode, search
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
        raise ConfigError(f"there is no {file} here; run this in the folder of the repository")
    return runpy.run_path(file)["get_config"](*filter(None, [argument]))


def inputs_of(cell: Cell) -> dict:
    """What a cell is made from: while it stays the same, the numbers do."""
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
        made = to_dict(_training_config(cell))
        for part in ("design", "data", "evaluation"):  # are not in the step
            del made[part]
    versions = {name: version(name) for name in ("jax", "libtpu")}
    told = {"topologies": _topologies(cell), **versions, "code": _digest(cell.kind), "step": made}
    return json.loads(json.dumps(told))  # as it will be read back


def _digest(kind: str) -> str:
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for pattern in _CODE[kind]:
        for file in sorted(package.glob(pattern)):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _topologies(cell: Cell) -> list[str]:
    """Where the step is compiled for: the first that it fits."""
    if cell.kind == "encode":
        return [ONE_CHIP[cell.place]]
    if cell.kind == "search":
        return [to for name, to in SLICES.items() if generation_of(name) == cell.place]
    return [SLICES[cell.place]]


def _training_config(cell: Cell) -> ExperimentConfig:
    config = read_config(cell.subject)
    config.training.dropout = cell.kind == "dropout"
    return config


def _search_config() -> SearchConfig:
    return design_preset("knn-pretraining").search


def search_candidates() -> int:
    """That each query of the paper's design asks for."""
    return first_count(_search_config())


def read_cell(cell: Cell, to: Path) -> dict | None:
    """The numbers of a cell; None if it is not there, or was made from something else."""
    file = cell.file(to)
    held = json.loads(file.read_text()) if file.exists() else {"inputs": None}
    return held["numbers"] if held["inputs"] == inputs_of(cell) else None


def measure_cell(cell: Cell) -> dict:
    """Compiles the step of a cell; `fits` False: it does not, and `why` says by what."""
    for topology in _topologies(cell):
        try:
            return {"fits": True, **_MEASURES[cell.kind](cell, topology)}
        except DoesNotFitError as error:
            told = {"fits": False, "topology": topology, "why": str(error)}
        except ConfigError as error:
            return {"fits": False, "topology": topology, "why": str(error)}
    return told


def _measure_training(cell: Cell, topology: str) -> dict:
    return measure(_training_config(cell), topology)


def _measure_encode(cell: Cell, topology: str) -> dict:
    config = dataclasses.replace(ENCODERS[cell.subject], dtype=DTYPE)
    mesh = make_mesh(MeshConfig(), topology_devices(topology))
    encoder = TransformerEncoder(
        abstract_on(config, mesh), SentenceRecipe(None, None, after=("normalize",)), mesh,
        cell.subject, {},
    )  # fmt: skip
    rows = rows_of_batch(SHORTEST_ROW, EncoderConfig.batch_tokens, mesh.size)
    # A forward pass is a third of a training step, and there is no head.
    headless = TrainingConfig(objective="masked_token", mask_share=0.0)
    step = ExperimentConfig(model=config, sequence_length=SHORTEST_ROW, training=headless)
    flops = flops_per_token(step) / 3 * rows * SHORTEST_ROW
    numbers = measure_program(lambda: encoder.compile(SHORTEST_ROW), mesh, topology, flops)
    return {"sentences": rows * SHORTEST_ROW // SENTENCE_TOKENS, **numbers}


def abstract_on(config: RobertaConfig, mesh) -> nnx.Module:
    """A model of shapes alone, each with its place on the mesh."""
    graphdef, shapes = abstract(config)

    def place(variable: nnx.Variable) -> nnx.Variable:
        sharding = variable_sharding(variable, mesh)
        shape = jax.ShapeDtypeStruct(variable.shape, variable.dtype, sharding=sharding)
        return variable.replace(shape)

    is_variable = lambda x: isinstance(x, nnx.Variable)  # noqa: E731
    return nnx.merge(graphdef, jax.tree.map(place, shapes, is_leaf=is_variable))


def _measure_search(cell: Cell, topology: str) -> dict:
    encoder, _, index = cell.subject.rpartition("-")
    width, exact = ENCODERS[encoder].embed_dim, index == "exact"
    mesh = make_mesh(MeshConfig(), topology_devices(topology))
    search = lambda: compile_search(SENTENCES, width, _search_config(), mesh, exact)  # noqa: E731
    flops = 2.0 * QUERIES * SENTENCES * width
    numbers = measure_program(search, mesh, topology, flops)
    return {"queries": QUERIES, "passes": EXACT_PASSES if exact else 1, **numbers}


_MEASURES = {
    "training": _measure_training,
    "dropout": _measure_training,
    "encode": _measure_encode,
    "search": _measure_search,
}


def main(argv: list[str] | None = None) -> None:
    """Measures the cells one after the other and says when each is written."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", required=True, type=Path)
    parser.add_argument("cells", nargs="+")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_compilation_cache", False)  # needs a device to read it back
    for name in args.cells:
        cell, start = Cell(*name.split("/")), time.perf_counter()
        numbers = measure_cell(cell)
        write_json(cell.file(args.to), {"inputs": inputs_of(cell), "numbers": numbers})
        print(f"{cell.name} {time.perf_counter() - start:.1f}", flush=True)


if __name__ == "__main__":
    main()
