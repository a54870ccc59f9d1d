"""Vectors of a whole sentence table, shard by shard: a finished shard is never made again."""

from collections.abc import Callable
import functools
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
from icl_jax.workers.local import Runner
from icl_jax.workers.shards import make_shards

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
    """The vectors of all sentences; shards that already exist are kept.

    The shards take turns on the encoder's devices, in a job on those of each process. Workers of
    Beam open an encoder of their own, from `config` and `fitted` as in `open_encoder`, on a mesh
    with the axes of `mesh`.
    """
    inputs = {"sentences": table.fingerprint, "encoder": encoder.identity, "store": config.store}
    step = StepFolder(folder, inputs)
    if step.results is None:
        sizes = np.diff(table.starts)
        is_made = lambda shard: shard_file(folder, shard).exists()  # noqa: E731
        left = sum(int(size) for shard, size in enumerate(sizes) if not is_made(shard))
        row_bytes = encoder.width * np.dtype(config.store).itemsize
        require_space(folder, left * row_bytes, f"{left:,} sentence vectors")
        make_shards(
            "embed", folder, sizes, is_made, embed_in_worker,
            lambda shard: (
                str(table.folder), table.fingerprint, shard,
                _describe(encoder, config, mesh, fitted), config.store, str(folder),
            ),
            runner or Runner(),
            here=lambda shard, done: embed_shard(
                table, shard, encoder, config.store, folder, done
            ),
        )  # fmt: skip
        results = {"num_shards": table.num_shards, "count": len(table), "width": encoder.width}
        step.complete({**results, "dtype": config.store})
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
    with np.errstate(over="ignore"):  # reported below
        stored = vectors.astype(store)
    wrong = np.flatnonzero(~np.isfinite(stored).all(axis=1))
    if len(wrong):
        sentence = int(table.starts[shard] + wrong[0])
        finite = np.isfinite(vectors[wrong[0]]).all()
        fix = "set encoder.store to float32" if finite else "check the weights of the encoder"
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
) -> None:
    """As `embed_shard`, of names alone; table and encoder stay open for the next shard."""
    with _one_at_a_time:
        opened = open_table(table, fingerprint)
        embed_shard(opened, shard, _open_encoder(encoder), store, Path(folder))


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


@functools.lru_cache(maxsize=1)
def _open_encoder(description: str) -> Encoder:
    held = json.loads(description)
    config, fitted = from_dict(held["config"]), held["fitted"]
    mesh = held["mesh"] and make_host_mesh(from_dict(held["mesh"]))
    encoder = open_encoder(config, mesh, fitted and Path(fitted))
    if encoder.identity != held["identity"]:
        raise StageError(
            f"{config.folder or fitted} holds another encoder for a worker than for the "
            "process that started it; expected the same files under that path on every machine"
        )
    return encoder
