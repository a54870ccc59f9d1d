"""Vectors of a whole sentence table, shard by shard: what is finished is never made again."""

from collections.abc import Callable
import json
from pathlib import Path
import threading

from jax.sharding import Mesh
import numpy as np

from icl_jax.config import EncoderConfig, MeshConfig, StageError
from icl_jax.config.tree import from_dict, to_dict
from icl_jax.corpus.sentence_table import SentenceTable, open_table
from icl_jax.files.step_folder import StepFolder, require_space
from icl_jax.retrieval.encoders.encoder import Encoder, open_encoder
from icl_jax.retrieval.vectors import Vectors, save_shard, shard_file
from icl_jax.sharding import make_host_mesh
from icl_jax.workers.local import KeptOpen, Runner, progress_bar, run_shards

_one_at_a_time = threading.Lock()  # a worker may have threads, but one set of devices


def embed_table(
    table: SentenceTable,
    encoder: Encoder,
    config: EncoderConfig,
    folder: Path,
    runner: Runner | None = None,
    mesh: Mesh | None = None,
    fitted: Path | None = None,
) -> Vectors:
    """The vectors of all sentences; shards that are there already are kept.

    Here the shards have the encoder's devices one after the other. Workers of Beam, and other hosts
    of a job, open an encoder of their own, from `config` and `fitted` as in `open_encoder`, on a
    mesh cut as `mesh`.
    """
    inputs = {"sentences": table.fingerprint, "encoder": encoder.identity, "store": config.store}
    step = StepFolder(folder, inputs)
    if step.results is None:
        sizes = np.diff(table.starts)
        missing = [s for s in range(table.num_shards) if not shard_file(folder, s).exists()]
        left = int(sizes[missing].sum())
        row_bytes = encoder.width * np.dtype(config.store).itemsize
        require_space(folder, left * row_bytes, f"{left:,} sentence vectors")
        with progress_bar(
            desc="embed", unit=" sentences", total=len(table), initial=len(table) - left
        ) as bar:
            if runner and runner.elsewhere:
                opened = _describe(encoder, config, mesh, fitted)
                if runner.kind != "beam":  # its workers in this process may be several
                    _open_encoder.lend(opened, encoder)
                tasks = [
                    (str(table.folder), table.fingerprint, shard, opened, config.store, str(folder))
                    for shard in missing
                ]
                todo = sizes[missing].tolist()
                run_shards(embed_in_worker, tasks, bar, todo, runner, whole_host=True)
            else:
                for shard in missing:
                    embed_shard(table, shard, encoder, config.store, folder, bar.update)
        step.complete(
            {
                "num_shards": table.num_shards,
                "count": len(table),
                "width": encoder.width,
                "dtype": config.store,
            }
        )
    return Vectors.open(folder)


def embed_shard(
    table: SentenceTable,
    shard: int,
    encoder: Encoder,
    store: str,
    folder: Path,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Writes the vectors of one shard of the table, in the type `store`."""
    vectors = encoder.encode(table.texts(shard).to_pylist(), progress)
    with np.errstate(over="ignore"):  # named below
        stored = vectors.astype(store)
    wrong = np.flatnonzero(~np.isfinite(stored).all(axis=1))
    if len(wrong):
        sentence = int(table.starts[shard] + wrong[0])
        finite = np.isfinite(vectors[wrong[0]]).all()
        fix = "set encoder.store to float32" if finite else "look at the weights of the encoder"
        raise StageError(
            f"the vector of sentence {sentence} is not finite in {store} ({len(wrong)} of shard "
            f"{shard}); {fix}. The sentence: {table.text(sentence)!r}"
        )
    save_shard(folder, shard, stored)


def embed_in_worker(
    table: str,
    fingerprint: str,
    shard: int,
    encoder: str,
    store: str,
    folder: str,
    progress: Callable[[int], None] | None = None,
) -> None:
    """As `embed_shard`, of names alone; table and encoder stay open for the next shard."""
    with _one_at_a_time:
        opened = open_table(table, fingerprint)
        embed_shard(opened, shard, _open_encoder(encoder), store, Path(folder), progress)


def _describe(
    encoder: Encoder, config: EncoderConfig, mesh: Mesh | None, fitted: Path | None
) -> str:
    """All that a worker needs to open the same encoder, on all devices of its own."""
    axes = None if mesh is None else MeshConfig(-1, mesh.shape["fsdp"], mesh.shape["tensor"])
    return json.dumps(
        {
            "config": to_dict(config),
            "mesh": axes and to_dict(axes),
            "fitted": fitted and str(fitted),
            "identity": encoder.identity,
        }
    )


@KeptOpen
def _open_encoder(described: str) -> Encoder:
    told = json.loads(described)
    config = from_dict(told["config"])
    mesh = told["mesh"] and make_host_mesh(from_dict(told["mesh"]))
    encoder = open_encoder(config, mesh, told["fitted"] and Path(told["fitted"]))
    if encoder.identity != told["identity"]:
        raise StageError(
            f"{config.folder or told['fitted']} holds another encoder for a worker than for the "
            "process that started it; expected the same files under that path on every machine"
        )
    return encoder
