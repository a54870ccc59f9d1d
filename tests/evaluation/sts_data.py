"""Small STS and SICK files in SentEval's layout."""

from pathlib import Path

import numpy as np

from icl_jax.evaluation.tasks.sts.files import SUBSETS

TEXT = "Ada lives by the old river mill stands at bridge ferry sank in 1903 they say"
WORDS = TEXT.split()


def make_pairs(count: int, seed: int, lowest: int = 0) -> list[tuple[str, str, float]]:
    """Sentences that share some words, and scores with many ties."""
    rng = np.random.RandomState(seed)
    pairs = []
    for _ in range(count):
        first = list(rng.choice(WORDS, rng.randint(2, 9)))
        second = [w if rng.rand() < 0.6 else str(rng.choice(WORDS)) for w in first]
        pairs.append((" ".join(first), " ".join(second), float(rng.randint(lowest, 6))))
    return pairs


def write_senteval(data: Path, level: str = "original", pairs: int = 5) -> Path:
    """All seven sets, each subset of one pair more than the one before."""
    top = data / "sts" / level
    seed = 0
    for name, subsets in SUBSETS.items():
        for n, subset in enumerate(subsets):
            write_subset(top / f"{name}-en-test", subset, make_pairs(pairs + n, seed := seed + 1))
    write_stsb(top / "STSBenchmark/sts-test.csv", make_pairs(pairs, 98))
    write_sick(data / "sick/SICK_test_annotated.txt", make_pairs(pairs, 99, lowest=1))
    return data


def write_subset(folder: Path, subset: str, pairs, stem: str = "STS", more: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texts = "".join(f"{a}\t{b}{more}\n" for a, b, _ in pairs)
    scores = "".join("\n" if score is None else f"{score:g}\n" for *_, score in pairs)
    (folder / f"{stem}.input.{subset}.txt").write_text(texts)
    (folder / f"{stem}.gs.{subset}.txt").write_text(scores)


def write_stsb(file: Path, pairs) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f"main\tMSRvid\t2012test\t{n:04d}\t{s:.3f}\t{a}\t{b}" for n, (a, b, s) in enumerate(pairs)
    ]
    lines[-1] += "\tmore\tcolumns"
    file.write_text("\n".join(lines) + "\n")


def write_sick(file: Path, pairs) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
    lines += [f"{n}\t{a}\t{b}\t{s}\tNEUTRAL" for n, (a, b, s) in enumerate(pairs)]
    file.write_bytes(("\r\n".join(lines) + "\r\n").encode())
