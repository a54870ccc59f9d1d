"""The whole design stage on a small corpus: matched arms, resumption, and what stops it."""

from collections import Counter
import dataclasses
import json
from pathlib import Path
import shutil
import types

import numpy as np
import pytest

from icl_jax.config import (
    ConfigError,
    CorpusConfig,
    DataConfig,
    DesignConfig,
    ExamplesConfig,
    GPTConfig,
    MeshConfig,
    OptimizerConfig,
    SearchConfig,
    StageError,
    TrainingConfig,
)
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.data.input_pipeline import GlobalBatches, open_data
from icl_jax.data.shards import Shards, find_shards
from icl_jax.design import stage
from icl_jax.design.arms import ARMS, own_strategies
from icl_jax.design.folders import DesignFolders, arm_folder
from icl_jax.design.groups import Groups
from icl_jax.design.records.records import LAYOUTS
from icl_jax.design.sentences import Sentences
from icl_jax.design.stage import design
from icl_jax.design.strategies.strategy import Strategy, open_strategy
from icl_jax.models import create, huggingface
from icl_jax.retrieval.neighbours import Neighbours
from icl_jax.training.checks import check_run
from tests.data.records import flip_bit
from tests.design.small_build import contents, small_config

MATCHED = [f"{kind}_{layout}" for kind in ("neighbours", "random")
           for layout in ("in_context", "in_batch")]  # fmt: skip


def config_for(folder: Path, arms=ARMS, people=40, **changes):
    # So small a corpus has few sentences that are not related.
    given = {"arms": tuple(arms), "max_related_share": 1.0}
    examples = given | changes.pop("examples", {})
    config = small_config(folder, people, examples=ExamplesConfig(**examples), **changes)
    config.sequence_length = 130
    return config


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(config, workdir) of a complete build of all arms."""
    folder = tmp_path_factory.mktemp("built")
    config = config_for(folder)
    design(config, folder / "run")
    return config, folder / "run"


def records(workdir, arm):
    shards = Shards(find_shards(str(arm_folder(workdir, arm))))
    return [shards[i] for i in range(len(shards))]


def sentences_used(workdir, arm):
    return Counter(int(id) for record in records(workdir, arm) for id in record["sentence_ids"])


def test_every_arm_has_its_strategy_and_layout():
    for arm in ARMS.values():
        assert isinstance(open_strategy(arm.strategy), Strategy) and arm.layout in LAYOUTS
        assert {*arm.made_from} <= {*own_strategies()}


def test_matched_arms_hold_the_same_sentences_each_as_often(built):
    _, workdir = built
    used = {arm: sentences_used(workdir, arm) for arm in MATCHED}
    assert all(used[arm] == used[MATCHED[0]] for arm in MATCHED)
    assert max(used[MATCHED[0]].values()) > 1
    queries = sentences_used(workdir, "task_only")
    assert set(queries.values()) == {1} and not queries - used[MATCHED[0]]
    every = Counter(range(len(Sentences.open(workdir))))
    assert sentences_used(workdir, "contiguous") == every
    assert not sentences_used(workdir, "document_path") - every
    checksums = {
        arm: json.loads((arm_folder(workdir, arm) / "results.json").read_text())[
            "sentence_multiset"
        ]
        for arm in ARMS
    }
    assert len({checksums[arm] for arm in MATCHED}) == 1
    others = {checksums[arm] for arm in ("contiguous", "task_only", "shared_entity")}
    assert checksums[MATCHED[0]] not in others


def test_in_context_examples_are_query_and_neighbours_in_order(built):
    _, workdir = built
    sentences, folders = Sentences.open(workdir), DesignFolders(workdir)
    tokenizer, neighbours = Tokenizer.open(folders.tokenizer), Neighbours.open(folders.neighbours)
    seen = 0
    for record in records(workdir, "neighbours_in_context"):
        group_of = record["group"][record["sentence_starts"]]
        for group in np.unique(record["group"]):
            ids = record["sentence_ids"][group_of == group]
            query, *others = ids.tolist()
            found, scores = neighbours.of(query)
            assert others == found[: len(others)].tolist()
            assert np.allclose(
                record["similarities"][group_of == group], [1, *scores[: len(others)]]
            )
            text = f" {'<|separator|>'} ".join(sentences.text_of(ids)).replace(" <|", "<|")
            shown = tokenizer.decode(record["tokens"][record["group"] == group])
            assert shown == text.replace("|> ", "|>") + "<|endoftext|>"
            if len(others) < len(found):  # the next did not fit
                tokens = int((record["group"] == group).sum())
                assert tokens + 1 + sentences.lengths_of(found[len(others)]) > 130
            seen += 1
    assert seen == len(Groups.open(folders.groups / "neighbours")) > 60
    documents = sentences.documents_of(record["sentence_ids"])
    assert (documents == record["document_ids"]).all()


def test_random_arm_has_the_same_queries_and_sizes_with_unrelated_sentences(built):
    _, workdir = built
    folders = DesignFolders(workdir)
    real, random = (Groups.open(folders.groups / name) for name in ("neighbours", "random"))
    assert (real.sizes == random.sizes).all() and real.sizes.max() > 2
    neighbours, cosines = Neighbours.open(folders.neighbours), []
    for group in range(len(real)):
        (query, *_), (same, *others) = real.of(group)[0], random.of(group)[0]
        assert query == same
        assert not {*others} & {*neighbours.of(int(query))[0]} or random.results["still_related"]
        cosines += random.of(group)[1][1:].tolist()
    assert random.results["above_threshold"] == sum(cosine > 0.3 for cosine in cosines)
    related = np.concatenate([shard.similarities for shard in real.shards])
    assert np.mean(cosines) < 0.5 * np.mean(related[related < 1])


def test_related_companions_are_counted_printed_and_too_many_stop_the_build(built, capsys):
    """The limit is no input of the groups: a build that stopped continues once it is raised."""
    config, workdir = built
    results = Groups.open(DesignFolders(workdir).groups / "random").results
    count, dealt = results["above_threshold"], results["dealt"]
    assert 0.01 <= count / dealt < 0.05
    design(config, workdir)
    told = capsys.readouterr().out.splitlines()[-1]
    assert told.startswith("WARNING: a control should have less than 1%. random_in_context, rand")
    assert f"{count:,} of {dealt:,} random companions ({count / dealt:.1%}) are related" in told
    card = (DesignFolders(workdir).card).read_text()
    assert "their share, in every arm random_*" in card and f"{count / dealt:.2%}" in card
    examples = dataclasses.replace(config.design.examples, max_related_share=0.01)
    strict = dataclasses.replace(
        config, design=dataclasses.replace(config.design, examples=examples)
    )
    refused = r"are not a valid control: .*max_related_share = 0\.01\. Use a larger corpus"
    with pytest.raises(StageError, match=refused):
        design(strict, workdir)
    design(config, workdir)


def test_a_batch_holds_whole_groups_of_the_in_batch_arm(built):
    _, workdir = built
    folder = str(arm_folder(workdir, "neighbours_in_batch"))
    groups = Groups.open(DesignFolders(workdir).groups / "neighbours")
    sentences = Sentences.open(workdir)
    for pack in (True, False):
        data = open_data(DataConfig((folder,), pack=pack), 8, 130, seed=3)
        steps = data.sources[0].num_rows // 8
        seen = Counter()
        for step in range(steps):
            batch = GlobalBatches(data, steps)[step]
            inside = Counter()
            for tokens, group in zip(batch["tokens"], batch["group"]):
                for g in range(1, group.max() + 1):
                    inside[tuple(tokens[group == g][:-1])] += 1  # without the end
            for g in range(len(groups)):
                texts = [tuple(sentences.tokens(id)) for id in groups.of(g)[0]]
                seen[g] += all(inside[text] for text in texts)
        assert min(seen[g] for g in range(len(groups))) >= 1
        if pack:
            assert data.sources[0].filled > 0.6


def test_files_do_not_depend_on_workers_and_a_complete_stage_is_not_run_again(built, tmp_path):
    config, workdir = built
    again = config_for(tmp_path, workers=3)
    again.design.corpus = config.design.corpus
    design(again, tmp_path / "run")
    expected, got = contents(workdir), contents(tmp_path / "run")
    assert expected.keys() == got.keys()
    assert [name for name in expected if expected[name] != got[name]] == []
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*.tfrecord*")}
    design(again, tmp_path / "run")
    assert {file: file.stat().st_mtime_ns for file in before} == before


def small_training(config, sources, phases=()):
    return dataclasses.replace(
        config,
        batch_size=8,
        model=GPTConfig(
            vocab_size=300, context_length=130, num_layers=1, embed_dim=16, num_heads=2
        ),
        mesh=MeshConfig(data=8),
        data=DataConfig(tuple(sources), phases),
        optimizer=OptimizerConfig(warmup=1),
        training=TrainingConfig(steps=4),
    )


def test_training_reads_the_arms_of_its_workdir_by_name(built):
    config, workdir = built
    arms = ["design:contiguous", "design:neighbours_in_context"]
    data = check_run(small_training(config, arms, ((0, (1, 0)), (2, (1, 1)))), workdir)
    assert [source.num_records > 0 for source in data.sources] == [True, True]
    with pytest.raises(ConfigError, match=r"no arm 'neighbors'.*available: contiguous, document_p"):
        check_run(small_training(config, ["design:neighbors"]), workdir)


def test_an_arm_can_be_added_to_a_build_and_another_config_is_refused(tmp_path):
    design(config_for(tmp_path, ["contiguous"]), tmp_path / "run")
    folders = DesignFolders(tmp_path / "run")
    assert not folders.corpus_vectors.exists() and not folders.neighbours.exists()
    design(config_for(tmp_path, ["contiguous", "neighbours_in_context"]), tmp_path / "run")
    before = contents(tmp_path / "run")
    other = config_for(tmp_path, ["neighbours_in_context"], examples={"min_neighbours": 2})
    with pytest.raises(StageError, match=r"min_neighbours: 1 there, 2 here"):
        design(other, tmp_path / "run")
    other = config_for(tmp_path, ["contiguous"], examples={"max_tokens": 130})
    design(other, tmp_path / "run")  # the same limit, said otherwise
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize("arm", ["contiguous", "neighbours_in_context"])
def test_groups_of_another_limit_are_refused(built, arm):
    config, workdir = built
    examples = dataclasses.replace(config.design.examples, arms=(arm,))
    longer = dataclasses.replace(config.design, examples=examples)
    longer = dataclasses.replace(config, sequence_length=131, design=longer)
    with pytest.raises(StageError, match=r"limit: 130 there, 131 here"):
        design(longer, workdir)


def test_one_message_names_all_that_another_threshold_makes_useless(tmp_path):
    arms = ["contiguous", "neighbours_in_context", "random_in_context"]
    config = config_for(tmp_path, arms, people=20)
    design(config, tmp_path / "run")
    before = contents(tmp_path / "run")
    other = dataclasses.replace(config, design=dataclasses.replace(config.design))
    other.design.search = SearchConfig(min_similarity=0.5, neighbours=3)
    with pytest.raises(StageError, match=r"min_similarity: 0\.3 there, 0\.5 here") as refused:
        design(other, tmp_path / "run")
    assert contents(tmp_path / "run") == before
    _, _, useless = str(refused.value).partition("rm -r ")
    for folder in useless.split():
        shutil.rmtree(folder)
    design(other, tmp_path / "run")
    kept = {name for name in before if before[name] == contents(tmp_path / "run").get(name)}
    assert any(name.startswith("arms/contiguous") for name in kept)
    assert any(name.startswith("neighbours_index") for name in kept)  # serves any threshold
    assert not any(name.endswith(".tfrecord") and "neighbours" in name for name in kept)


def test_a_task_asks_and_every_sentence_of_it_is_kept(tmp_path):

    task = tmp_path / "task.txt"
    task.write_text("Who was born in the harbour town? Mar7ek.\nMar12ek saw light.\nZzz qqq xxx.\n")
    queries = CorpusConfig(files=(str(task),), text_documents="line", clean=False)
    arms = ["task_only", *MATCHED]
    tapt = config_for(tmp_path, arms, queries=queries, examples={"min_neighbours": 0})
    design(tapt, tmp_path / "run")
    sentences = Sentences.open(tmp_path / "run")
    used = sentences_used(tmp_path / "run", "task_only")
    assert set(used) == {*range(len(sentences.corpus), len(sentences))} and len(used) >= 3
    assert len({str(sorted(sentences_used(tmp_path / "run", arm).items())) for arm in MATCHED}) == 1
    alone = [r for r in records(tmp_path / "run", "neighbours_in_context")
             if any("Zzz" in sentences.text(id) for id in r["sentence_ids"])]  # fmt: skip
    assert len(alone) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sequence_length": 100}, r"at most 100 tokens.*max_sentence_tokens = 128"),
        ({"max_tokens": 60}, r"at most 60 tokens.*max_sentence_tokens = 128"),
        ({"max_tokens": 256}, r"max_tokens 256 is above sequence_length 130"),
        ({"arms": ("neighbors",)}, r"arms: each must be one of contiguous, task_only"),
        ({"gain_model": "nowhere"}, "nowhere"),
        ({"evaluation_files": ("nowhere.txt",)}, "nowhere.txt"),
    ],
)
def test_what_cannot_work_stops_before_anything_is_made(tmp_path, change, message):
    config = config_for(tmp_path, ["contiguous"])
    config.sequence_length = change.pop("sequence_length", 130)
    config.design.examples = dataclasses.replace(config.design.examples, **change)
    with pytest.raises((ConfigError, StageError), match=message):
        design(config, tmp_path / "run")
    assert not (tmp_path / "run" / "design" / "corpus").exists()


def test_a_threshold_that_nothing_passes_says_which_would(tmp_path):
    search = SearchConfig(min_similarity=0.99, neighbours=3, duplicate_jaccard=0.1)
    config = config_for(tmp_path, ["neighbours_in_context"], search=search)
    with pytest.raises(StageError, match=r"above 0\.99.*0\.\d.*min_similarity"):
        design(config, tmp_path / "run")
    assert Neighbours.open(DesignFolders(tmp_path / "run").neighbours).results["queries"]


def test_damaged_records_are_named_before_training(built, tmp_path):
    config, workdir = built
    shutil.copytree(workdir, tmp_path / "run")
    config = small_training(config, ["design:contiguous"])
    assert check_run(config, tmp_path / "run").sources[0].num_records
    (file, *_) = sorted(Path(arm_folder(tmp_path / "run", "contiguous")).glob("*.tfrecord-*[0-9]"))
    flip_bit(file, 40)
    with pytest.raises(ConfigError, match=rf"{file.name} at byte 0: expected payload CRC"):
        check_run(config, tmp_path / "run")


def test_a_refused_command_leaves_the_build_as_it_was(tmp_path):
    task = tmp_path / "task.txt"
    task.write_text("Mar7ek was born in the harbour town.\nMar12ek first saw light.\n")
    queries = CorpusConfig(files=(str(task),), text_documents="line", clean=False)
    tapt = config_for(tmp_path, ["neighbours_in_context"], queries=queries)
    design(tapt, tmp_path / "run")
    before = contents(tmp_path / "run"), DesignFolders(tmp_path / "run").config.read_bytes()
    for arms in (["neighbours_in_context"], ["contiguous"]):
        with pytest.raises(StageError, match=r"other inputs|other sentences"):
            design(config_for(tmp_path, arms), tmp_path / "run")
        assert (
            contents(tmp_path / "run"),
            DesignFolders(tmp_path / "run").config.read_bytes(),
        ) == before


def test_rows_are_as_long_as_training_takes_them(tmp_path):
    config = config_for(tmp_path, ["neighbours_in_context"], examples={"max_tokens": 130})
    config.sequence_length = config.model.context_length = 500
    design(config, tmp_path / "run")
    results = json.loads(
        (arm_folder(tmp_path / "run", "neighbours_in_context") / "results.json").read_text()
    )
    rows = records(tmp_path / "run", "neighbours_in_context")
    assert max(len(row["tokens"]) for row in rows) > 400
    assert max(np.bincount(row["group"]).max() for row in rows) <= 130
    filled = sum(len(row["tokens"]) for row in rows) / (500 * len(rows))
    assert results["filled"] == pytest.approx(filled, abs=1e-4) and filled > 0.6


def test_groups_without_gain_are_in_no_matched_arm(tmp_path):
    model = GPTConfig(vocab_size=300, context_length=130, num_layers=1, embed_dim=16, num_heads=2)
    huggingface.save(create(model, seed=0), tmp_path / "model")
    arms = ["neighbours_in_context", "random_in_context", "task_only"]
    filtered = {"gain_model": str(tmp_path / "model"), "min_gain": 0.0}
    design(config_for(tmp_path, arms, people=20, examples=filtered), tmp_path / "run")
    groups = Groups.open(DesignFolders(tmp_path / "run").groups / "neighbours")
    used = {arm: sentences_used(tmp_path / "run", arm) for arm in arms}
    assert used["neighbours_in_context"] == used["random_in_context"]
    assert 0 < len(used["task_only"]) < len(groups)
    card = json.loads((tmp_path / "run" / "design" / "card.json").read_text())
    assert card["strategies"]["neighbours"]["gain"]["kept"] == len(used["task_only"])


def test_arms_of_groups_that_another_min_gain_kept_are_refused(tmp_path):
    model = GPTConfig(vocab_size=300, context_length=130, num_layers=1, embed_dim=16, num_heads=2)
    huggingface.save(create(model, seed=0), tmp_path / "model")
    arms, given = ["random_in_context", "task_only"], {"gain_model": str(tmp_path / "model")}
    made = config_for(tmp_path, arms, people=20, examples=given | {"min_gain": -100.0})
    design(made, tmp_path / "run")
    for arm in arms:
        other = config_for(tmp_path, [arm], people=20, examples=given | {"min_gain": 0.0})
        with pytest.raises(StageError, match=r"min_gain: -100\.0 there, 0\.0 here"):
            design(other, tmp_path / "run")


@pytest.mark.parametrize(("related", "warned"), [(9, False), (10, True), (11, True)])
def test_a_control_is_warned_of_from_one_percent_related_on(monkeypatch, capsys, related, warned):
    results = {"above_threshold": related, "dealt": 1_000}
    found = types.SimpleNamespace(results=results)
    monkeypatch.setattr(stage.Groups, "open", lambda folder: found)
    design = DesignConfig(examples=ExamplesConfig(arms=("random_in_context",)))
    stage._print_remarks(design, DesignFolders("anywhere"))
    told = capsys.readouterr().out
    assert told.startswith("WARNING: a control should have less than 1%. ") == warned
    assert f"random_in_context: {related} of 1,000 random companions" in told
