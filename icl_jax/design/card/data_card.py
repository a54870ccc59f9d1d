"""The data card: what a finished design stage made, its inputs and its cost, with samples.

`card.json` holds all of it for programs, `card.html` (see `page.py`) for people.
"""

import importlib.metadata
import json
import os
from pathlib import Path
import platform

from icl_jax.corpus.table_results import BAD_DOCUMENTS
from icl_jax.design.arms import ARMS, strategies_of
from icl_jax.design.card.page import render_page
from icl_jax.design.card.samples import take_samples
from icl_jax.design.folders import DesignFolders
from icl_jax.design.steps import steps_of
from icl_jax.design.strategies.strategy import need_neighbours, open_strategy
from icl_jax.files.step_folder import beside, read_inputs, read_results, write_json

_PACKAGES = ("jax", "numpy", "faiss-cpu", "sentencex", "tokenizers", "pyarrow", "scikit-learn")
_BAD_SHOWN = 50  # documents
_NOT_SHOWN = {"shard_sentences", "shard_documents"}  # as long as the corpus is large


def write_card(workdir: str | os.PathLike) -> None:
    """Writes `card.json` and `card.html` of a workdir whose arms are finished."""
    folders = DesignFolders(workdir)
    card = make_card(workdir)
    write_json(folders.path / "card.json", card)
    with beside(folders.card) as partial:
        partial.write_text(render_page(card), encoding="utf-8")


def make_card(workdir: str | os.PathLike) -> dict:
    """The content of the card. All but `cost` and `versions` follows from the inputs."""
    folders = DesignFolders(workdir)
    config = json.loads(folders.config.read_text())
    examples = config["examples"]
    arms = {arm: _arm(folders, arm) for arm in examples["arms"]}
    strategies = strategies_of(examples["arms"])
    seed = read_inputs(folders.arms / next(iter(arms))).get("seed", 0)
    overlap = _results(folders.overlap) if examples["evaluation_files"] else None
    files = overlap["files"].values() if overlap else ()
    overlapping = [sample["sentence"] for file in files for sample in file["samples"]]
    of_arms = {ARMS[arm].strategy for arm in arms}
    shown = [name for name in strategies if name in of_arms]
    samples = take_samples(workdir, shown, examples["card_samples"], seed, overlapping)
    return {
        "corpus": _table(folders.corpus),
        "queries": _table(folders.queries) if folders.has_queries else None,
        "search": _results(folders.neighbours) if need_neighbours(strategies) else None,
        **_own_searches(folders, strategies),
        "strategies": {name: _strategy(folders.groups / name) for name in strategies},
        "arms": arms,
        "same_sentences": same_sentences(arms),
        "overlap": overlap,
        "cost": read_costs(folders, config),
        "versions": read_versions(),
        "inputs": _inputs(folders, overlap is not None),
        "config": config,
        **samples,
    }


def same_sentences(arms: dict[str, dict]) -> list[list[str]]:
    """Arms that hold the same sentences, each as often: they differ in arrangement alone."""
    by_content: dict[str, list[str]] = {}
    for arm, results in arms.items():
        by_content.setdefault(results["sentence_multiset"], []).append(arm)
    return list(by_content.values())


def read_costs(folders: DesignFolders, config: dict) -> list[dict]:
    """Time and memory of each step that was measured, by the name of its folder."""
    files = [(step, folders.path / step / "cost.json") for step in steps_of(config)]
    return [{"step": step, **json.loads(file.read_text())} for step, file in files if file.exists()]


def read_versions() -> dict[str, str]:
    """Of this package and those that the content of the files depends on."""
    found = {"python": platform.python_version()}
    for package in ("icl_jax", *_PACKAGES):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # of a source tree that is not installed
    return found


def _table(folder: Path) -> dict:
    """The results of a sentence table, and the first unreadable documents."""
    bad = folder / BAD_DOCUMENTS
    lines = bad.read_text().splitlines()[:_BAD_SHOWN] if bad.exists() else []
    return {**_results(folder), "first_bad_documents": [json.loads(line) for line in lines]}


def _own_searches(folders: DesignFolders, strategies: list[str]) -> dict[str, dict | None]:
    """The results of every search that only one strategy needs; None: not in this build."""
    found = {}
    for name in strategies_of(ARMS):
        if search := open_strategy(name).own_search:
            made = name in strategies
            found[search.card_key] = _results(folders.path / search.folder) if made else None
    return found


def _arm(folders: DesignFolders, arm: str) -> dict:
    facts = {name: getattr(ARMS[arm], name) for name in ("strategy", "layout", "has_queries")}
    return facts | _results(folders.arms / arm)


def _strategy(folder: Path) -> dict:
    """Its results, and those of the gain filter if its groups are filtered."""
    kept = folder / "kept.json"
    if not kept.exists():
        return _results(folder)
    gain = _results(folder / "gain") | json.loads(kept.read_text())
    return _results(folder) | {"gain": gain}


def _results(folder: Path) -> dict | None:
    results = read_results(folder)
    return results and {name: results[name] for name in results if name not in _NOT_SHOWN}


def _inputs(folders: DesignFolders, overlap: bool) -> dict:
    """Files with size and checksum; fingerprints of what was made or came from elsewhere."""
    found = {"corpus files": read_inputs(folders.corpus).get("files")}
    if folders.has_queries:
        found["query files"] = read_inputs(folders.queries).get("files")
    if overlap:
        found["evaluation files"] = read_inputs(folders.overlap)["files"]
    found["sentences"] = read_results(folders.corpus)["fingerprint"]
    found["tokenizer"] = read_results(folders.tokenizer)
    if folders.corpus_vectors.exists():
        found["encoder"] = read_inputs(folders.corpus_vectors).get("encoder")
    return found
