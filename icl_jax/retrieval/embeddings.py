"""Vectors of a whole sentence table, shard by shard: what is finished is never made again."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from icl_jax.config import EncoderConfig, StageError
from icl_jax.corpus.sentence_table import SentenceTable
from icl_jax.parallel import progress_bar
from icl_jax.retrieval.encoders import Encoder
from icl_jax.retrieval.vectors import Vectors, save_shard, shard_file
from icl_jax.step_folder import StepFolder, require_space


def embed_table(
    table: SentenceTable, encoder: Encoder, config: EncoderConfig, folder: Path
) -> Vectors:
    """The vectors of all sentences; shards that are there already are kept."""
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
