"""Sentences per second, peak memory and bytes on disk of every step of the design stage.

Each size runs the whole stage in its own process and workdir, and reads the cost of each step
(`cost.json`). `--estimate` extrapolates to more sentences from the largest size.

Run: python benchmarks/design_stage.py [--files=docs.jsonl.gz] [--tokenizer=FOLDER]
         [--encoder=FOLDER] [--sizes=10000,100000,all] [--json=FILE]
     python benchmarks/design_stage.py --json=FILE --estimate=100e6 --machines=8 --cores=32
"""

from collections.abc import Iterator
import json
from pathlib import Path
import subprocess
import sys
import tempfile
import time

from absl import flags
import numpy as np

from icl_jax.cli import Flag, command, number, several, whole
from icl_jax.config import CorpusConfig, SearchConfig
from icl_jax.corpus.documents import BadDocument, read_documents
from icl_jax.corpus.sentences import split_document
from icl_jax.corpus.shards import plan_shards
from icl_jax.design.arms import ARMS
from icl_jax.design.folders import DesignFolders
from icl_jax.tpu.chips import CHIPS
from icl_jax.workers.local import count_cores, progress_bar

ROOT = Path(__file__).parents[1]
MADE_UP = 200_000  # sentences, if no files are given
# How steps scale to more machines. All others are cut into shards that any machine can take.
SAMPLED = {"tokenizer", "encoder"}  # fitted on a sample: more sentences cost nothing
ONE_MACHINE = {"neighbours_index"}  # all cores of one
ONE_CORE = {"neighbours_pool", "groups/document_path/path", "groups/random"}
# The lists of the index grow as the square root of the sentences, and so does the time for each.
BY_ROOT = {"neighbours_index", "neighbours"}
# What the search looks up for each sentence: hash, sketch, number of shingles, document, length of
# the vector, id. Mapped from files, so it is in memory once for all processes of a machine.
LOOKED_UP_BYTES = 8 + 8 + 4 + 4 + 4 + 8
CHIP, USED = CHIPS["v5e"], 0.5  # of its peak, in a product of large matrices


@command(
    Flag("files=FILE,...", "the corpus; by default a made-up one", several(), ()),
    Flag("tokenizer=FOLDER", "by default one trained on the corpus"),
    Flag("encoder=FOLDER", "by default TF-IDF"),
    Flag("sizes=N,...", "sentences, about", str, "10000,100000,all"),
    Flag("arms=ARM,...", "the arms to design", str, ",".join(a for a in ARMS if a != "task_only")),
    Flag("min_similarity=NUMBER", "by default 0.7, with TF-IDF 0.3", number),
    Flag("json=FILE", "where the measurements are kept", Path),
    Flag("estimate=N", "sentences to work out the cost of", number),
    Flag("machines=N", "machines of the estimate", whole(least=1), 1),
    Flag("cores=N", "of each machine", whole(least=1), 32),
    words="[more files ...] [--config.FIELD=value ...]",
    passes_on=True,
)
def main(args: flags.FlagValues, more: list[str]) -> None:
    """Measures, or reads what was measured; prints Markdown."""
    overrides = [word for word in more if word.startswith("--")]  # for the stage
    files = [*args.files, *(word for word in more if not word.startswith("--"))]
    if args.estimate and args.json and args.json.exists():
        measured = json.loads(args.json.read_text())
    else:
        measured = measure(files, args, overrides)
        if args.json:
            args.json.write_text(json.dumps(measured, indent=2) + "\n")
        print_runs(measured["runs"])
    if args.estimate:
        print_estimate(measured, args.estimate, args.machines, args.cores)


def measure(files: list[str], args: flags.FlagValues, overrides: list[str]) -> dict:
    """The stage at every size."""
    runs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = files or [str(make_up(folder / "made_up.jsonl", MADE_UP))]
        for size in args.sizes.split(","):
            part = files
            if size != "all":
                part = [str(cut(files, int(size), folder / f"{size}.jsonl"))]
            runs.append(run_stage(part, folder / size, args, overrides))
    return {"cores": count_cores(), "encoder": args.encoder or "TF-IDF", "runs": runs}


def run_stage(
    files: list[str], workdir: Path, args: flags.FlagValues, overrides: list[str]
) -> dict:
    """Runs the whole stage in a separate process; returns what each step took."""
    similarity = args.min_similarity or (0.7 if args.encoder else 0.3)
    arms = "".join(f"'{arm}'," for arm in args.arms.split(","))
    command = [
        sys.executable, "-m", "icl_jax.main", f"--workdir={workdir}", "--stages=design",
        f"--config={ROOT}/configs/gpt_base_regular.py", "--config.model.vocab_size=65536",
        f"--config.design.corpus.files=({''.join(f'{file!r},' for file in files)})",
        f"--config.design.tokenizer.folder={args.tokenizer or ''}",
        f"--config.design.encoder.folder={args.encoder or ''}",
        f"--config.design.search.min_similarity={similarity}",
        f"--config.design.examples.arms=({arms})", *overrides,
    ]  # fmt: skip
    start = time.perf_counter()
    subprocess.run(command, check=True)
    seconds = time.perf_counter() - start
    design = DesignFolders(workdir).path
    costs = sorted(design.rglob("cost.json"), key=lambda file: file.stat().st_mtime_ns)
    sentences = json.loads((design / "corpus/results.json").read_text())["sentences"]
    steps = {
        str(file.parent.relative_to(design)): {
            **json.loads(file.read_text()),
            "bytes": sum(path.stat().st_size for path in file.parent.iterdir() if path.is_file()),
        }
        for file in costs
    }
    vectors = design / "corpus_vectors/results.json"
    rest = seconds - sum(step["seconds"] for step in steps.values())
    return {
        "sentences": sentences,
        "width": json.loads(vectors.read_text())["width"] if vectors.exists() else 0,
        "seconds": round(seconds, 1),
        "seconds_outside_steps": round(rest, 1),  # start, imports, data card
        "steps": steps,
    }


def print_runs(runs: list[dict]) -> None:
    """Every step at all sizes; its peak memory is that of all its processes together."""
    sizes = [f"{run['sentences']:,}" for run in runs]
    print(
        f"\n| step | {' | '.join(f'sentences/s of {size}' for size in sizes)} | "
        f"{' | '.join(f'peak GB of {size}' for size in sizes)} | bytes per sentence |"
    )
    print("|---" * (2 + 2 * len(runs)) + "|")
    for name, last in runs[-1]["steps"].items():
        steps = [run["steps"][name] for run in runs]
        rates = [run["sentences"] / max(s["seconds"], 0.01) for run, s in zip(runs, steps)]
        cells = [f"{rate:,.0f}" for rate in rates]
        cells += [f"{step['peak_memory_gigabytes']:.2f}" for step in steps]
        print(f"| {name} | {' | '.join(cells)} | {last['bytes'] / runs[-1]['sentences']:,.1f} |")
    for run in runs:
        rest = run["seconds_outside_steps"]
        print(
            f"\n{run['sentences']:,} sentences: {run['seconds']:,.0f} s in all, {rest:,.0f} s of "
            "them to start and for the data card"
        )


def print_estimate(measured: dict, count: float, machines: int, cores: int) -> None:
    """The cost of `count` sentences, from the largest measured size."""
    run = max(measured["runs"], key=lambda run: run["sentences"])
    more = count / run["sentences"]
    print(
        f"\n{count:,.0f} sentences on {machines} machines of {cores} cores, from "
        f"{run['sentences']:,} measured on {measured['cores']} cores ({measured['encoder']}), "
        f"x {more:,.1f}:\n\n| step | GB on disk | runs on | seconds there | hours |\n"
        "|---|---|---|---|---|"
    )
    total = disk = 0.0
    for name, step in run["steps"].items():
        seconds, where, factors = extend(name, step["seconds"], more, measured["cores"], machines,
                                         cores)  # fmt: skip
        size = step["bytes"] / 1e9 * (1 if name in SAMPLED else more)
        total, disk = total + seconds, disk + size
        print(
            f"| {name} | {size:,.1f} | {where} | {step['seconds']:,.2f}{factors} | "
            f"{seconds / 3600:,.2f} |"
        )
    print(f"| all | {disk:,.1f} | | | {total / 3600:,.2f} |")
    if run["width"]:
        print_search(count, run["width"])


def extend(
    step: str, seconds: float, more: float, measured_cores: int, machines: int, cores: int
) -> tuple[float, str, str]:
    """Seconds of a step for `more` times the sentences, where it runs, and the arithmetic."""
    if step in SAMPLED:
        return seconds, "one machine", ""
    factors = f" x {more:,.1f}"
    seconds *= more
    if step in BY_ROOT:
        seconds *= more**0.5
        factors += f" x {more**0.5:,.1f}"
    if step in ONE_CORE:
        return seconds, "one core", factors
    share = measured_cores / (cores if step in ONE_MACHINE else cores * machines)
    where = "one machine" if step in ONE_MACHINE else "all machines"
    return seconds * share, where, f"{factors} x {share:.3g}"


def print_search(count: float, width: int) -> None:
    """The index to use, and the cost of an exact join on accelerators."""
    from icl_jax.retrieval.search.faiss_engine import choose_index

    print("\n| design.search.memory_gigabytes | index | GB of codes and ids |\n|---|---|---|")
    for memory in (8, 16, 32, 64):
        try:
            index = choose_index(int(count), width, SearchConfig(memory_gigabytes=memory))
        except ValueError:
            continue
        codes = int(index.partition("PQ")[2].partition("x")[0] or 0)
        print(f"| {memory} | {index} | {count * (codes / 2 + 8) / 1e9:,.1f} |")
    print(
        f"\nand in every machine that searches {LOOKED_UP_BYTES} x {count:.3g} = "
        f"{LOOKED_UP_BYTES * count / 1e9:,.1f} GB for lookups, besides the vectors to "
        f"score: 2 x {width} x {count:.3g} = {2 * width * count / 1e9:,.0f} GB on a fast disk"
    )
    flops, held = 2 * count**2 * width, 4 * count * width
    chips = int(-(-held // (0.8 * CHIP.memory_bytes)))
    seconds = flops / (chips * CHIP.flops * USED)
    print(
        f"\nexact join (engine jax): 2 x {count:.3g}^2 x {width} = {flops:.3g} flops; "
        f"{held / 1e9:,.0f} GB of float32 vectors on {chips} x {CHIP.device_kind} at 0.8 of their "
        f"memory; at {USED:g} of {CHIP.flops:.3g} flops/s each (one pass of bfloat16; six of "
        f"float32): {seconds / 3600:,.1f} h ({6 * seconds / 3600:,.1f} h)"
    )


def cut(files: list[str], count: int, to: Path) -> Path:
    """The first documents of a corpus, of about `count` sentences, as JSON lines."""
    config, held = CorpusConfig(files=tuple(files)), 0
    with to.open("w") as lines, progress_bar(total=count, desc="cutting", unit="sentence") as bar:
        for document in documents(config):
            if held >= count:
                break
            new = len(split_document(document, config)[0])
            held += new
            bar.update(new)
            lines.write(json.dumps({"title": document.title, "text": document.text}) + "\n")
    return to


def documents(config: CorpusConfig) -> Iterator:
    """The readable documents, in order."""
    for shard in plan_shards(config, 4_000_000):
        for document in read_documents(shard, config):
            if not isinstance(document, BadDocument):
                yield document


def make_up(path: Path, count: int) -> Path:
    """Documents about one of many topics, whose words are rare elsewhere."""
    rng = np.random.RandomState(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er")]
    words = np.array(["".join(rng.choice(syllables, size)) for size in rng.randint(2, 6, 50_000)])
    topics = rng.randint(0, len(words), (max(1, count // 60), 25))
    with path.open("w") as file:
        for number in range(count // 20):
            topic = topics[rng.randint(len(topics))]
            text = " ".join(make_sentence(words, topic, rng) for _ in range(20))
            file.write(json.dumps({"title": f"Topic {number}", "text": text}) + "\n")
    return path


def make_sentence(words: np.ndarray, topic: np.ndarray, rng: np.random.RandomState) -> str:
    """Ten words with natural frequencies (Zipf) and ten of the topic."""
    usual = (len(words) ** rng.random_sample(10)).astype(int) - 1
    chosen = rng.permutation(np.concatenate([usual, rng.choice(topic, 10)]))
    return " ".join(words[chosen]).capitalize() + "."


if __name__ == "__main__":
    main()
