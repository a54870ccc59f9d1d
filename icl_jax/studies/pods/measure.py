"""Measures cells of the tables: compiles a step for a slice with libtpu.

python -m icl_jax.studies.pods.measure --to=DIR KIND/SUBJECT/PLACE ...

`pods` starts this for a few cells at a time, because a separate process returns the compiler's
memory, and if one dies, no other cell is lost.
"""

import dataclasses
from pathlib import Path
import time

from absl import flags
from flax import nnx
import jax

from icl_jax.cli import Flag, command
from icl_jax.config import (
    ConfigError,
    EncoderConfig,
    ExperimentConfig,
    MeshConfig,
    RobertaConfig,
    TrainingConfig,
)
from icl_jax.models import abstract
from icl_jax.retrieval.encoders.sentence_recipe import SentenceRecipe
from icl_jax.retrieval.encoders.token_rows import SHORTEST_ROW, rows_of_batch
from icl_jax.retrieval.encoders.transformer import TransformerEncoder
from icl_jax.retrieval.search.jax_engine import QUERIES, compile_search
from icl_jax.sharding import make_mesh, variable_sharding
from icl_jax.studies.pods.cells import (
    DTYPE,
    ENCODERS,
    SENTENCE_TOKENS,
    SENTENCES,
    Cell,
    read_config,
    search_config,
    topologies_of,
    write_cell,
)
from icl_jax.tpu.compile import (
    DoesNotFitError,
    measure,
    measure_program,
    topology_devices,
)
from icl_jax.training.metrics import flops_per_token

EXACT_PASSES = 6  # bfloat16 products that make one float32 product (`Precision.HIGHEST`)


def measure_cell(cell: Cell) -> dict:
    """Compiles the step of a cell; if it does not fit, `fits` is False and `why` says why."""
    for topology in topologies_of(cell):
        try:
            return {"fits": True, **_MEASURES[cell.kind](cell, topology)}
        except DoesNotFitError as error:
            numbers = {"fits": False, "topology": topology, "why": str(error)}
        except ConfigError as error:
            return {"fits": False, "topology": topology, "why": str(error)}
    return numbers


def _measure_training(cell: Cell, topology: str) -> dict:
    return measure(read_config(cell.subject), topology)


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
    """A model that has only shapes, each placed on the mesh."""
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
    search = lambda: compile_search(SENTENCES, width, search_config(), mesh, exact)  # noqa: E731
    flops = 2.0 * QUERIES * SENTENCES * width
    numbers = measure_program(search, mesh, topology, flops)
    return {"queries": QUERIES, "passes": EXACT_PASSES if exact else 1, **numbers}


_MEASURES = {
    "training": _measure_training,
    "encode": _measure_encode,
    "search": _measure_search,
}


@command(
    Flag("to=DIR", "the folder of the numbers", Path, required=True),
    words="KIND/SUBJECT/PLACE ...",
)
def main(given: flags.FlagValues, names: list[str]) -> None:
    """Measures the cells one after the other and says when each is written."""
    jax.config.update("jax_enable_compilation_cache", False)  # needs a device to read it back
    for name in names:
        cell, start = Cell(*name.split("/")), time.perf_counter()
        write_cell(cell, given.to, measure_cell(cell))
        print(f"{cell.name} {time.perf_counter() - start:.1f}", flush=True)


if __name__ == "__main__":
    main()
