"""Neighbour gain, against losses of one passage at a time, and with a model that copies."""

import dataclasses
import json
from pathlib import Path

from etils import epath
import numpy as np
import pytest

from icl_jax.config import ConfigError, GPTConfig, NeighbourGainConfig, RobertaConfig, StageError
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.design.folders import DesignFolders
from icl_jax.design.groups import GroupShard
from icl_jax.evaluation.likelihood import ROUNDS
from icl_jax.evaluation.task import read_rows, run_task
from icl_jax.evaluation.tasks.neighbour_gain import NeighbourGain, find_design, read_queries
from icl_jax.models import huggingface
from icl_jax.training.model_at import Place
from tests.design.gain.test_filter import LIMIT, copying_model
from tests.design.made_up import make_tables, write_strategy
from tests.evaluation import small
from tests.models.small import make_model

pytestmark = pytest.mark.delicate

SIZES = {"vocab_size": 331, "context_length": LIMIT, "num_layers": 1, "embed_dim": 8,
         "num_heads": 2}  # fmt: skip
QUERIES = 12


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A design in which the neighbours of a query are itself and a few others."""
    workdir = tmp_path_factory.mktemp("design")
    sentences = make_tables(workdir, 40)
    random = np.random.RandomState(0)
    short = np.flatnonzero(sentences.lengths_of(np.arange(len(sentences))) < 30)
    near, far = [], []
    for n, query in enumerate(random.permutation(short)[:QUERIES].tolist()):
        others = random.choice(short, n % 11, replace=False).tolist()  # the first has none
        near.append([query, *[query] * (n > 0), *others])
        far.append([query, *random.choice(short, len(near[-1]) - 1).tolist()])
    DesignFolders(workdir).config.write_text('{"queries": {"files": []}}')
    groups = DesignFolders(workdir).groups
    write_strategy(groups / "neighbours", [shard(near[:5]), shard(near[5:])])
    write_strategy(groups / "random", [shard(far[:2]), shard(far[2:-1])])  # the last is left out
    return workdir


def shard(groups):
    ids = np.concatenate(groups)
    offsets = np.cumsum([0, *map(len, groups)])
    return GroupShard(offsets, ids, np.ones(len(ids), np.float32))


def save(kind, folder: Path, workdir: Path, **fields) -> Path:
    huggingface.save(make_model(kind(**SIZES | fields)), folder)
    Tokenizer.open(DesignFolders(workdir).tokenizer).save(folder)
    return folder


def open_task(folder, workdir, queries=0):
    gain = NeighbourGainConfig(design=str(workdir), queries=queries)
    return NeighbourGain(small.subject_of(folder), small.evaluation(neighbour_gain=gain))


def run(task, folder):
    table = run_task(task, "neighbour_gain", {}, {}, folder, small.mesh_of())
    return read_rows(folder), json.loads((folder / "results.json").read_text()), table


def loss_by_loops(model, masked, context, own, tokenizer):
    """The loss of the query's tokens behind a context, alone in its row."""
    context = context[max(0, len(context) + len(own) + masked - LIMIT) :]
    tokens, total = [*context, *own], 0.0
    places = list(range(len(context) + (not masked), len(tokens)))
    for chosen in [places[k::ROUNDS] for k in range(ROUNDS)] if masked else [places]:
        row, group = np.zeros((2, 1, LIMIT), np.int32)
        inputs = [*tokens, tokenizer.end_of_text_id] if masked else tokens
        row[0, : len(inputs)], group[0, : len(inputs)] = inputs, 1
        if masked:
            row[0, chosen] = tokenizer.mask_id
        logits = np.asarray(model(row, group), np.float64)[0]
        for place in chosen:
            scores = logits[place - (not masked)]
            total += np.log(np.exp(scores).sum()) - scores[tokens[place]]
    return total


@pytest.mark.parametrize("kind", [GPTConfig, RobertaConfig])
def test_losses_are_those_of_one_passage_at_a_time(kind, workdir, tmp_path):
    task = open_task(save(kind, tmp_path / "model", workdir), workdir)
    rows, results, table = run(task, tmp_path / "out")
    tokenizer = Tokenizer.open(DesignFolders(workdir).tokenizer)
    model, masked = huggingface.load(tmp_path / "model"), kind is RobertaConfig
    texts = task._sentences.text
    assert len(rows) == QUERIES - 2 and any(row["neighbours_cut"] for row in rows)
    for row in rows:
        own = tokenizer.encode(texts(row["query"])).tolist()
        assert row["text"] == texts(row["query"]) and row["tokens"] == len(own) - (not masked)
        sides = {"alone": (), "with_neighbours": row["neighbour_ids"],
                 "with_random": row["random_ids"]}  # fmt: skip
        for side, others in sides.items():
            context = []
            for other in others[::-1]:  # the nearest stands last
                context += [*tokenizer.encode(texts(other)).tolist(), tokenizer.separator_id]
            expected = loss_by_loops(model, masked, context, own, tokenizer)
            np.testing.assert_allclose(row[side], expected, rtol=1e-5)
    tokens = sum(row["tokens"] for row in rows)
    for name, before, after in (
        ("gain_neighbours", "alone", "with_neighbours"),
        ("gain_random", "alone", "with_random"),
        ("neighbour_gain", "with_random", "with_neighbours"),
    ):
        gains = [row[before] - row[after] for row in rows]
        np.testing.assert_allclose(results[name], sum(gains) / tokens)
        low, high = results[f"{name}_interval95"]
        assert low <= results[name] <= high
        assert results[f"{name}_share"] == np.mean([gain > 0 for gain in gains])
    assert "<|separator|>" in table and results["queries"] == len(rows)
    np.testing.assert_allclose(results["loss_alone"], sum(r["alone"] for r in rows) / tokens)


def test_a_model_that_copies_gains_from_neighbours_that_repeat_the_query(workdir, tmp_path):
    folder = copying_model(tmp_path / "model")
    Tokenizer.open(DesignFolders(workdir).tokenizer).save(folder)
    _, results, _ = run(open_task(folder, workdir), tmp_path / "out")
    assert results["neighbour_gain"] > 0.5 and results["neighbour_gain_interval95"][0] > 0
    assert results["neighbour_gain_share"] == 1.0


@pytest.mark.parametrize("kind", [GPTConfig, RobertaConfig])
def test_queries_without_room_for_a_context_are_left_out_and_counted(kind, workdir, tmp_path):
    folder = save(kind, tmp_path / "whole", workdir)
    texts = open_task(folder, workdir)._sentences.text
    encode = Tokenizer.open(DesignFolders(workdir).tokenizer).encode
    lengths = sorted({len(encode(texts(query.id))) for query in read_queries(str(workdir))})
    # one query fills the positions, another leaves room for a separator alone
    positions = lengths[-1] + (kind is RobertaConfig)
    task = open_task(save(kind, tmp_path / "model", workdir, context_length=positions), workdir)
    rows, results, table = run(task, tmp_path / "out")
    room = positions - (kind is RobertaConfig)
    fits = [len(encode(row["text"])) + 1 < room for row in rows]
    assert [row["has_room"] for row in rows] == fits and 0 < sum(fits) < len(fits)
    assert all((row["tokens"] > 0) == row["has_room"] for row in rows)
    left = [row for row in rows if row["has_room"]]
    assert (results["queries"], results["queries_without_room"]) == (
        len(left), len(rows) - len(left)
    )  # fmt: skip
    tokens = sum(row["tokens"] for row in left)
    gains = [row["with_random"] - row["with_neighbours"] for row in left]
    np.testing.assert_allclose(results["neighbour_gain"], sum(gains) / tokens)
    assert f"{len(rows) - len(left)} queries without room for a context skipped." in table
    assert "| the query | loss, nats a token |" in table and "gained by | nats a token |" in table
    single = task.results(left[:1])
    assert single["neighbour_gain_interval95"] is None
    assert f"| {single['neighbour_gain']:+.4f} | - |" in task.table(single)
    for row in left:
        row["has_room"] = False
    with pytest.raises(StageError, match=r"none of \d+ queries leaves room .* more positions"):
        task.results(left)
    short = save(kind, tmp_path / "short", workdir, context_length=lengths[0])
    with pytest.raises(StageError, match=r"none of 10 queries leaves room for a context in the"):
        open_task(short, workdir)


def test_the_sample_is_drawn_by_the_seed_from_queries_with_neighbours(workdir, tmp_path):
    folder = save(GPTConfig, tmp_path / "model", workdir)
    every = read_queries(str(workdir))
    assert len(every) == QUERIES - 2 and all(query.neighbours for query in every)
    assert all(len(query.neighbours) == len(query.random) for query in every)
    some, again = (open_task(folder, workdir, 4) for _ in range(2))
    assert some.items == again.items and some.inputs == again.inputs
    assert len(some.items) == 4 and {*some.items} < {*every}


def test_a_model_without_the_separator_gets_a_new_line(workdir, tmp_path):
    folder = tmp_path / "model"
    huggingface.save(make_model(GPTConfig(**SIZES | {"vocab_size": 320})), folder)
    library = Tokenizer.open(DesignFolders(workdir).tokenizer).library
    library.add_special_tokens(["<|between|>"])
    id = library.token_to_id("<|between|>")
    assert id == 320
    Tokenizer(library, separator_id=id, end_of_text_id=0).save(folder)
    task = open_task(folder, workdir)
    assert task.separator.startswith("a new line")
    assert task._separator_tokens.tolist() == task._model.tokenizer.encode("\n").tolist() != []


def test_a_workdir_without_both_kinds_of_groups_is_refused(workdir, tmp_path):
    folder = save(GPTConfig, tmp_path / "model", workdir)
    with pytest.raises(ConfigError, match="is not a run with a design of its own"):
        open_task(folder, "")
    write_strategy(DesignFolders(tmp_path / "half").groups / "neighbours", [shard([[0, 1]])])
    with pytest.raises(ConfigError, match=r"config\.json and no .*random/results\.json; run the"):
        open_task(folder, tmp_path / "half")


def test_the_design_of_a_run_is_found_from_any_name_of_the_run(workdir, tmp_path):
    folder = small.subject_of(save(GPTConfig, tmp_path / "model", workdir))
    for name in (workdir, workdir / "checkpoints", workdir / "checkpoints" / "20"):
        place = Place(str(name), "run", epath.Path(workdir / "checkpoints"), 20)
        subject = dataclasses.replace(folder, place=place)
        assert find_design(subject, "") == str(workdir)
