"""A small corpus in a workdir, and groups of its sentences drawn at random."""

import json
from pathlib import Path

import numpy as np

from icl_jax.config import (
    CorpusConfig,
    DesignConfig,
    ExperimentConfig,
    GPTConfig,
    MeshConfig,
    TokenizerConfig,
)
from icl_jax.design.groups import NO_SCORE, GroupShard, write_groups
from icl_jax.design.sentences import Sentences
from icl_jax.design.stage import find_related
from icl_jax.files.step_folder import StepFolder

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "pe", "ru") for b in "bdfgkmnrst"]


def write_documents(path: Path, count: int, seed: int = 0) -> Path:
    """Documents of one to seven sentences as JSON lines."""
    rng = np.random.RandomState(seed)
    with path.open("w") as file:
        for n in range(count):
            sentences = []
            for _ in range(rng.randint(1, 8)):
                words = [WORDS[i] for i in rng.randint(0, len(WORDS), rng.randint(4, 16))]
                sentences.append(" ".join(words).capitalize() + ".")
            file.write(json.dumps({"title": f"Page {n}", "text": " ".join(sentences)}) + "\n")
    return path


def experiment(file: Path, queries: Path | None = None, **design) -> ExperimentConfig:
    """A design of small shards, with a tokenizer of its own."""
    return ExperimentConfig(
        model=GPTConfig(vocab_size=400),
        mesh=MeshConfig(data=8),
        design=DesignConfig(
            **{
                "corpus": CorpusConfig(files=(str(file),)),
                "queries": CorpusConfig(files=(str(queries),) if queries else ()),
                "tokenizer": TokenizerConfig(vocab_size=320),
                "shard_megabytes": 0.01,
                "workers": 1,
            }
            | design
        ),
    )


def make_tables(workdir: Path, documents: int = 150, own_queries: bool = False) -> Sentences:
    """The tokenizer and the sentence tables of a workdir; no vectors, no neighbours."""
    workdir.mkdir(parents=True, exist_ok=True)
    file = write_documents(workdir / "documents.jsonl", documents)
    queries = write_documents(workdir / "task.jsonl", 20, seed=1) if own_queries else None
    find_related(experiment(file, queries), workdir, neighbours=False)
    return Sentences.open(workdir, own_queries)


def related_groups(sentences: Sentences, count: int, limit: int, seed: int = 0) -> GroupShard:
    """A query and up to six others, as many as fit, with falling scores."""
    rng = np.random.RandomState(seed)
    offsets, ids, scores = [0], [], []
    for _ in range(count):
        chosen = rng.choice(len(sentences), rng.randint(1, 8), replace=False)
        used = np.cumsum(sentences.lengths_of(chosen) + 1) + 1
        chosen = chosen[: max(1, int((used <= limit).sum()))]
        ids += chosen.tolist()
        scores += [1.0, *np.sort(rng.random_sample(len(chosen) - 1))[::-1]]
        offsets.append(len(ids))
    return GroupShard(np.array(offsets), np.array(ids), np.array(scores, np.float32))


def running_groups(sentences: Sentences, limit: int, end: int) -> GroupShard:
    """Every document of the corpus as one group of running text; long ones are cut off."""
    offsets, ids, tokens, token_offsets, starts = [0], [], [], [0], []
    documents = sentences.corpus.documents
    for document in range(sentences.corpus.num_documents):
        used = 0
        for sentence in np.flatnonzero(documents == document):
            if used + sentences.lengths_of(sentence) + 3 > limit:  # special tokens, RoBERTa's too
                break
            ids.append(sentence)
            starts.append(used)
            tokens += sentences.tokens(sentence).tolist()
            used += sentences.lengths_of(sentence)
        else:
            tokens.append(end)
        offsets.append(len(ids))
        token_offsets.append(len(tokens))
    return GroupShard(
        np.array(offsets), np.array(ids), np.full(len(ids), NO_SCORE), np.array(tokens),
        np.array(token_offsets), np.array(starts),
    )  # fmt: skip


def write_strategy(folder: Path, shards: list[GroupShard], name: str = "made up") -> Path:
    """A finished strategy's folder."""
    step = StepFolder(folder, {"strategy": name})
    for index, groups in enumerate(shards):
        write_groups(folder, index, groups)
    step.complete({"shards": len(shards)})
    return folder
