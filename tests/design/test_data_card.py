"""The data card of a real build shows what its folders hold."""

import json
from pathlib import Path
import shutil

import numpy as np
import pytest

from icl_jax.config import CorpusConfig, DesignConfig, ExamplesConfig, SearchConfig
from icl_jax.config.tree import to_dict
from icl_jax.design.arms import ARMS
from icl_jax.design.card.data_card import (
    make_card,
    same_sentences,
    write_card,
)
from icl_jax.design.card.samples import take_samples
from icl_jax.design.folders import DesignFolders
from icl_jax.design.groups import Groups, keep_file
from icl_jax.design.sentences import Sentences
from icl_jax.design.stage import design
from icl_jax.design.steps import steps_of
from icl_jax.files.step_folder import write_json
from tests.design.small_build import small_config

NAMES = (
    "contiguous", "neighbours_in_context", "random_in_context", "neighbours_in_batch",
    "random_in_batch", "document_path",
)  # fmt: skip
SAMPLES = 11


def build(folder: Path, **examples) -> Path:
    items = folder / "questions.txt"
    items.write_text("Mar3ek was born in the harbour town of what?\nwho is it\n")
    given = {"arms": NAMES, "card_samples": SAMPLES, "evaluation_files": (str(items),)}
    config = small_config(
        folder,
        corpus=CorpusConfig(files=(str(folder / "people.jsonl"),), max_bad_share=0.1),
        search=SearchConfig(min_similarity=0.3, neighbours=3),
        examples=ExamplesConfig(**given | {"overlap_words": 8} | examples),
    )
    with (folder / "people.jsonl").open("a") as file:
        file.write('{"text": ""}\n{"text": "A <b>bold</b> & quoted \\"page\\" of its own here."}\n')
    design(config, folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return build(tmp_path_factory.mktemp("card"))


@pytest.fixture(scope="module")
def card(workdir):
    return json.loads((DesignFolders(workdir).path / "card.json").read_text())


def test_counts_are_those_of_the_steps(card, workdir):
    sentences = Sentences.open(workdir)
    assert card["corpus"]["documents"] == sentences.num_documents == 81
    assert card["corpus"]["sentences"] == len(sentences)
    assert card["corpus"]["bad_documents"] == {"empty": 1}
    (bad,) = card["corpus"]["first_bad_documents"]
    assert bad["place"].startswith("byte ") and bad["file"].endswith("people.jsonl")
    assert card["search"]["queries"] == len(sentences)
    assert set(card["search"]["recall"]) >= {"neighbours", "above_threshold"}
    assert list(card["arms"]) == list(NAMES)
    for arm, found in card["arms"].items():
        groups = Groups.open(DesignFolders(workdir).groups / ARMS[arm].strategy)
        assert found["groups"] == len(groups) and found["sentences"] == groups.sizes.sum()
        assert found["filled"] == pytest.approx(found["tokens"] / (found["rows"] * 256), abs=1e-4)


def test_arms_of_the_same_sentences_are_named_together(card):
    assert card["same_sentences"] == [["contiguous", "document_path"], list(NAMES[1:5])]
    alike = {name: {"sentence_multiset": name[0]} for name in ("ab", "b", "ac")}
    assert same_sentences(alike) == [["ab", "ac"], ["b"]]


def test_overlap_cost_versions_and_inputs_are_there(card, workdir):
    (found,) = card["overlap"]["files"].values()
    assert (found["items"], found["overlapping"], found["too_short"]) == (2, 1, 1)
    hit = found["samples"][0]["sentence"]
    assert "Mar3ek was born in the harbour town" in card["sentences"][str(hit)]["text"]
    assert [step["step"] for step in card["cost"]] == [
        "tokenizer", "corpus", "encoder", "corpus_vectors", "neighbours_signatures/pool",
        "neighbours_pool", "neighbours_index", "neighbours", "groups/contiguous",
        "groups/neighbours", "groups/random", "groups/document_path/path", "groups/document_path",
        *(f"arms/{arm}" for arm in NAMES), "overlap",
    ]  # fmt: skip
    assert all(step["seconds"] >= 0 for step in card["cost"])
    assert {"python", "jax", "numpy", "faiss-cpu", "sentencex"} <= set(card["versions"])
    (facts,) = card["inputs"]["corpus files"].values()
    size = (workdir.parent / "people.jsonl").stat().st_size
    assert facts["bytes"] == size and len(facts["checksum"]) == 8
    assert card["inputs"]["tokenizer"]["fingerprint"] and card["inputs"]["encoder"]
    assert card["config"]["examples"]["card_samples"] == SAMPLES


def test_a_sample_is_one_sentence_as_every_arm_groups_it(card, workdir):
    folders, sentences = DesignFolders(workdir), Sentences.open(workdir)
    assert len(card["samples"]) == SAMPLES
    assert len({sample["sentence"] for sample in card["samples"]}) == SAMPLES
    for sample in card["samples"]:
        anchor = sample["sentence"]
        assert set(sample["groups"]) == {"contiguous", "neighbours", "random", "document_path"}
        for strategy, group in sample["groups"].items():
            ids, similarities = Groups.open(folders.groups / strategy).of(group["group"])
            assert group["ids"] == ids.tolist() and anchor in group["ids"]
            assert group["kept"] and not group["elsewhere"]
            told = [np.nan if s is None else s for s in group["similarities"]]
            np.testing.assert_allclose(told, similarities, atol=1e-4)
            special = len(group["before"]) + sum(map(len, group["after"]))
            assert sum(group["lengths"]) + special == group["tokens"] <= 256
        neighbours, random = sample["groups"]["neighbours"], sample["groups"]["random"]
        assert neighbours["ids"][0] == random["ids"][0] == anchor
        assert neighbours["after"][0] == ["<|separator|>"]
        assert neighbours["after"][-1] == ["<|endoftext|>"]
        assert not any(sample["groups"]["contiguous"]["after"][:-1])
        for id in neighbours["ids"] + random["ids"]:
            told = card["sentences"][str(id)]
            assert told["text"] == sentences.text(id)
            assert told["position"] == sentences.position(id)
            place = card["documents"][str(told["document"])]
            assert place == sentences.document(int(sentences.documents_of(id)))._asdict()


def test_the_card_is_the_same_each_time_but_for_cost_and_versions(card, workdir):
    again = json.loads(json.dumps(make_card(workdir)))
    for part in ("cost", "versions"):
        assert again.pop(part) is not None
    assert again == {name: card[name] for name in again}


def test_the_page_holds_the_counts_and_escapes_the_config(workdir):
    text = DesignFolders(workdir).card.read_text()
    assert "<h1>Data card</h1>" in text and "neighbours_in_context" in text
    assert text.count("<script") == 2 and "document.getElementById" in text


def test_a_build_without_neighbours_or_evaluation_has_a_card_too(tmp_path):
    run = build(tmp_path, arms=("contiguous",), evaluation_files=(), card_samples=500)
    found = json.loads((DesignFolders(run).path / "card.json").read_text())
    assert found["search"] is None and found["overlap"] is None
    assert len(found["samples"]) == found["arms"]["contiguous"]["groups"]  # all there are
    assert "No evaluation files were given" in DesignFolders(run).card.read_text()


def test_groups_that_the_gain_filter_left_out_are_reported(workdir, tmp_path):
    shutil.copytree(workdir, tmp_path / "run")
    folders = DesignFolders(tmp_path / "run")
    groups = Groups.open(folders.groups / "neighbours")
    for index, shard in enumerate(groups.shards):
        np.save(keep_file(folders.groups / "neighbours", index), np.arange(len(shard)) % 2 == 0)
        np.save(keep_file(folders.groups / "random", index), np.arange(len(shard)) % 4 == 0)
    shown = take_samples(tmp_path / "run", ["random", "neighbours"], 30, seed=0)["samples"]
    assert shown and all(sample["groups"]["neighbours"]["kept"] for sample in shown)
    assert {sample["groups"]["random"]["kept"] for sample in shown} == {True, False}


def test_enough_groups_are_shown_where_the_gain_filter_kept_few(workdir, tmp_path):
    shutil.copytree(workdir, tmp_path / "run")
    folder = DesignFolders(tmp_path / "run").groups / "neighbours"
    groups, kept = Groups.open(folder), []
    for index, shard in enumerate(groups.shards):
        keep = np.arange(len(shard)) % 12 == 5
        np.save(keep_file(folder, index), keep)
        kept += (groups.starts[index] + np.flatnonzero(keep)).tolist()
    assert len(kept) > 8

    def shown(count):
        samples = take_samples(tmp_path / "run", ["neighbours"], count, seed=3)["samples"]
        return [sample["groups"]["neighbours"]["group"] for sample in samples]

    assert len(set(shown(8))) == 8 and set(shown(8)) < set(kept)
    assert shown(8) == shown(8) and sorted(shown(500)) == kept


def test_a_task_that_asks_is_shown_beside_any_running_text(tmp_path):
    task = tmp_path / "task.txt"
    task.write_text("Mar7ek was born somewhere near a harbour.\nMar12ek first saw light.\n")
    queries = CorpusConfig(files=(str(task),), text_documents="line", clean=False)
    config = small_config(tmp_path, queries=queries, examples=ExamplesConfig(arms=NAMES[:2]))
    design(config, tmp_path / "run")
    found = json.loads((DesignFolders(tmp_path / "run").path / "card.json").read_text())
    assert found["queries"]["sentences"] == len(found["samples"]) == 2
    corpus_size = found["corpus"]["sentences"]
    for sample in found["samples"]:
        assert sample["sentence"] >= corpus_size
        assert sample["groups"]["contiguous"]["elsewhere"]
        assert "task.txt" in found["documents"][
            str(found["sentences"][str(sample["sentence"])]["document"])]["file"]  # fmt: skip


def test_the_cost_of_steps_that_this_build_does_not_have_is_left_out(card, workdir, tmp_path):
    shutil.copytree(workdir, tmp_path / "run")
    folders = DesignFolders(tmp_path / "run")
    for other in ("arms/shared_entity", "groups/shared_entity", "queries", "query_vectors",
                  "entity_neighbours", "groups/neighbours/gain", "elsewhere"):  # fmt: skip
        (folders.path / other).mkdir()
        write_json(folders.path / other / "cost.json", {"seconds": 1})
    assert make_card(tmp_path / "run")["cost"] == card["cost"]


def test_the_steps_of_a_build_follow_its_config():
    examples = ExamplesConfig(arms=("shared_entity", "contiguous"), gain_model="folder")
    config = DesignConfig(queries=CorpusConfig(files=("task.txt",)), examples=examples)
    assert steps_of(to_dict(config)) == [
        "tokenizer", "corpus", "queries", "groups/contiguous", "entity_neighbours_terms",
        "neighbours_signatures/pool", "neighbours_signatures/queries", "entity_neighbours",
        "groups/shared_entity", "groups/shared_entity/gain", "arms/shared_entity",
        "arms/contiguous",
    ]  # fmt: skip


def test_steps_without_a_measured_cost_are_left_out(workdir, tmp_path):
    shutil.copytree(workdir, tmp_path / "run")
    for file in (tmp_path / "run").rglob("cost.json"):
        file.unlink()
    write_json(DesignFolders(tmp_path / "run").corpus / "cost.json", {"seconds": 61.5})
    write_card(tmp_path / "run")
    assert make_card(tmp_path / "run")["cost"] == [{"step": "corpus", "seconds": 61.5}]
    assert "61.5" in DesignFolders(tmp_path / "run").card.read_text()
