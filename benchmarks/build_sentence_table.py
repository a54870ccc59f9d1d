"""Throughput of the whole sentence table (reading, splitting, tokenising, writing) against the
`tokenizers` library alone on the same sentences, with as many processes.

Rounds alternate and medians are compared; starting the processes counts on both sides.

Run: python benchmarks/build_sentence_table.py [--files=docs.jsonl.gz] [--tokenizer=FOLDER]
"""

from collections.abc import Callable
import json
from pathlib import Path
import tempfile
import time

from absl import flags
import numpy as np
import tokenizers as library

from icl_jax.cli import Flag, command, number, several, whole
from icl_jax.config import CorpusConfig
from icl_jax.corpus import tokenizers
from icl_jax.corpus.sentence_table import SentenceTable, build_table
from icl_jax.corpus.train_tokenizer import sample_sentences, train
from icl_jax.workers.local import Runner, count_cores, progress_bar, run_shards

VOCAB_SIZE = 8192
SAMPLE_BYTES = 2_000_000  # of text, to train a tokenizer on


@command(
    Flag("files=FILE,...", "the corpus; by default a made-up one", several(), ()),
    Flag("tokenizer=FOLDER", "by default one trained on the text"),
    Flag("megabytes=N", "size of a made-up corpus", whole(least=1), 16),
    Flag("shard_megabytes=N", "size of a shard", number, 4.0),
    Flag("workers=N", "processes of each side", whole(least=1), count_cores()),
    Flag("rounds=N", "timed rounds of each side", whole(least=1), 3),
    words="[more files ...]",
)
def main(options: flags.FlagValues, more: list[str]) -> None:
    """Prints both rates, and as the last line one JSON object."""
    shard_bytes = int(options.shard_megabytes * 1e6)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = (*options.files, *more)
        files = files or (str(make_corpus(folder / "made_up.jsonl", options.megabytes)),)
        config = CorpusConfig(files=files)
        if options.tokenizer:
            tokenizer = tokenizers.load(options.tokenizer)
        else:
            tokenizer = train(sample_sentences(config, shard_bytes, SAMPLE_BYTES), VOCAB_SIZE)
        tokenizer.save(folder / "tokenizer")
        measure(config, folder, shard_bytes, options.workers, options.rounds)


def measure(
    config: CorpusConfig, folder: Path, shard_bytes: int, workers: int, rounds: int
) -> None:
    """Both sides in turns."""
    place, runner = folder / "tokenizer", Runner(workers)
    ours, theirs, megabytes = [], [], 0.0
    for turn in range(rounds):
        table_folder = folder / f"table-{turn}"
        build = lambda to=table_folder: build_table(config, place, to, shard_bytes, runner)  # noqa: E731
        ours.append(seconds(build))
        table = SentenceTable.open(table_folder)
        tasks = [(str(table_folder), str(place), shard) for shard in range(table.num_shards)]
        megabytes = sum(table.texts(s).nbytes - 4 * len(table.texts(s)) for s in range(len(tasks)))
        megabytes /= 1e6
        with progress_bar(total=len(tasks), desc="the library alone") as bar:
            encode = lambda: run_shards(encode_shard, tasks, bar, [1] * len(tasks), runner)  # noqa: B023, E731
            theirs.append(seconds(encode))
    our_rate, their_rate = (megabytes / float(np.median(times)) for times in (ours, theirs))
    print(f"{len(table):,} sentences, {megabytes:.1f} MB of text, {workers} processes")
    print(f"sentence table     {our_rate:6.2f} MB/s   {[round(t, 1) for t in ours]} s")
    print(f"tokenizers alone   {their_rate:6.2f} MB/s   {[round(t, 1) for t in theirs]} s")
    results = {
        "sentences": len(table),
        "megabytes": round(megabytes, 2),
        "workers": workers,
        "table_megabytes_per_second": round(our_rate, 3),
        "library_megabytes_per_second": round(their_rate, 3),
        "ratio": round(our_rate / their_rate, 3),
        "tokenizers": library.__version__,
    }
    print(json.dumps(results))


def encode_shard(table: str, tokenizer: str, shard: int) -> int:
    """The library's work on the sentences of one shard."""
    texts = SentenceTable.open(Path(table)).texts(shard).to_pylist()
    encoder = library.Tokenizer.from_file(str(Path(tokenizer) / "tokenizer.json"))
    return sum(len(row.ids) for row in encoder.encode_batch_fast(texts, add_special_tokens=False))


def make_corpus(path: Path, megabytes: int) -> Path:
    """Documents of made-up words with natural frequencies (Zipf)."""
    rng = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er")]
    words = np.array(["".join(rng.choice(syllables, size)) for size in rng.integers(1, 6, 100_000)])
    with path.open("w") as file:
        while file.tell() < megabytes * 1e6:
            lines = [" ".join(make_sentence(words, rng) for _ in range(5)) for _ in range(20)]
            file.write(json.dumps({"title": "Made up", "text": "\n".join(lines)}) + "\n")
    return path


def make_sentence(words: np.ndarray, rng: np.random.Generator) -> str:
    """About 20 words with an occasional comma."""
    ranks = (len(words) ** rng.random(rng.integers(8, 32))).astype(int) - 1
    chosen = [word + "," if rng.random() < 0.07 else word for word in words[ranks]]
    return " ".join(chosen).rstrip(",").capitalize() + "."


def seconds(run: Callable) -> float:
    """Wall time of a call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
