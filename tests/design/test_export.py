"""Exported arms under the attention rules of other trainers: groups stay whole, nothing leaks."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from icl_jax.config import StageError
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.data.shards import Shards, find_shards
from icl_jax.design.export import export, main
from icl_jax.design.folders import DesignFolders
from icl_jax.design.groups import GroupShard
from icl_jax.design.records.layout import Marks
from icl_jax.design.records.records import write_arm
from icl_jax.files.step_folder import read_results
from icl_jax.workers.local import Runner
from tests.design.made_up import (
    make_tables,
    related_groups,
    running_groups,
    write_strategy,
)

LIMIT = 127


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """With the arms `related`, `running` (some groups without end-of-text) and `batched`."""
    workdir = tmp_path_factory.mktemp("export")
    sentences = make_tables(workdir, documents=80)
    folders = DesignFolders(workdir)
    marks = Marks.of(Tokenizer.open(folders.tokenizer))
    related = [related_groups(sentences, 200, LIMIT)]
    running = [running_groups(sentences, LIMIT, marks.end), full_group(sentences, marks)]
    for arm, layout, groups in (
        ("related", "in_context", related),
        ("running", "in_context", running),
        ("batched", "in_batch", related),
    ):
        folder = write_strategy(folders.groups / arm, groups)
        write_arm(
            str(workdir),
            sentences,
            folder,
            arm,
            layout,
            LIMIT,
            0,
            5000,
            Runner(1),
            folders.arms / arm,
        )
    return workdir


def full_group(sentences, marks) -> GroupShard:
    """Groups as long as can be: one without end-of-text, one with a document's end inside."""
    room = LIMIT - (0 if marks.begin is None else 2)
    tokens = np.resize(sentences.tokens(0), (2, room))
    tokens[1, 50], tokens[1, -1] = marks.end, marks.end
    return GroupShard(
        np.array([0, 1, 2]), np.array([0, 1]), np.full(2, np.nan), tokens.ravel(),
        np.array([0, room, 2 * room]), np.array([0, 0]),
    )  # fmt: skip


def read_rows(folder) -> dict[str, list[np.ndarray]]:
    """The columns of all files, in order."""
    files = sorted((folder / "data").iterdir())
    assert len(files) > 1
    tables = [pq.read_table(file) for file in files]
    return {
        name: [np.array(row) for table in tables for row in table[name].to_pylist()]
        for name in tables[0].column_names
    }


def our_groups(workdir, arm) -> list[tuple[int, ...]]:
    """The groups of the arm as the tokens of each."""
    shards = Shards(find_shards(str(DesignFolders(workdir).arms / arm)))
    records = [shards[i] for i in range(len(shards))]
    return sorted(
        tuple(record["tokens"][record["group"] == group].tolist())
        for record in records
        for group in np.unique(record["group"])
    )


def levanter_segments(row: np.ndarray, eos: int) -> np.ndarray:
    """The rule: a token opens a segment if the one before is end-of-text; the first is in 0."""
    opens = np.roll(row, 1) == eos
    opens[0] = False
    return np.cumsum(opens)


def attention(segments: np.ndarray) -> np.ndarray:
    """Which token may see which: causal, within a segment."""
    return np.tril(segments[:, None] == segments[None, :])


def visible_together(row: np.ndarray, seen: np.ndarray) -> list[tuple[int, ...]]:
    """The runs of tokens that see each other; stops if one sees only a part, or more."""
    runs, begin = [], 0
    for t in range(len(row)):
        first = int(np.flatnonzero(seen[t])[0])
        if first == t:
            begin = t
            runs.append([])
        assert first == begin and seen[t, begin : t + 1].all(), "a group is cut or leaks"
        runs[-1].append(int(row[t]))
    return [tuple(run) for run in runs]


def ended(group: tuple[int, ...], tokenizer: Tokenizer, row_length: int) -> tuple[int, ...]:
    """What a group is after the export: one end-of-text, at its end, where there is room."""
    eos, separator = tokenizer.end_of_text_id, tokenizer.separator_id
    inside = tuple(separator if token == eos else token for token in group[:-1])
    more = (eos,) if group[-1] != eos and len(group) < row_length else ()
    return (*inside, group[-1], *more)


@pytest.mark.parametrize("row_length", [LIMIT, LIMIT + 1, 300])
@pytest.mark.parametrize("arm", ["related", "running"])
def test_groups_survive_where_attention_is_cut_at_end_of_text(workdir, tmp_path, arm, row_length):
    counts = export(str(workdir), arm, tmp_path / "out", "eos", row_length)
    tokenizer = Tokenizer.open(DesignFolders(workdir).tokenizer)
    eos = tokenizer.end_of_text_id
    rows = read_rows(tmp_path / "out")
    assert {len(row) for row in rows["input_ids"]} == {row_length}
    found = []
    for row, weights in zip(rows["input_ids"], rows["loss_weights"]):
        segments = levanter_segments(row, eos)
        groups = visible_together(row, attention(segments))
        filler = [group for group in groups if group == (eos,)]
        found += [group for group in groups if group != (eos,)]
        assert all(eos not in group[:-1] for group in groups)
        same = np.append(segments[1:] == segments[:-1], False)
        np.testing.assert_array_equal(weights, same.astype(np.float32))
        assert (row[len(row) - len(filler) :] == eos).all()
    groups = our_groups(workdir, arm)
    assert sorted(found) == sorted(ended(group, tokenizer, row_length) for group in groups)
    assert counts["groups"] == len(groups) == len(found)
    assert counts["tokens"] == sum(map(len, groups)) and counts["rows"] == len(rows["input_ids"])


@pytest.mark.parametrize("arm", ["related", "running"])
def test_rows_come_back_where_a_trainer_joins_them_and_cuts_again(workdir, tmp_path, arm):
    export(str(workdir), arm, tmp_path / "out", "eos", LIMIT + 20)
    rows = read_rows(tmp_path / "out")["input_ids"]
    joined = np.concatenate(rows)
    cut = joined[: len(joined) // (LIMIT + 20) * (LIMIT + 20)].reshape(-1, LIMIT + 20)
    np.testing.assert_array_equal(cut, rows)


@pytest.mark.parametrize("arm", ["related", "running"])
def test_groups_survive_where_attention_is_cut_by_segments(workdir, tmp_path, arm):
    export(str(workdir), arm, tmp_path / "out", "segments", 300)
    rows = read_rows(tmp_path / "out")
    found = []
    for tokens, segments, positions in zip(
        rows["inputs"], rows["inputs_segmentation"], rows["inputs_position"]
    ):
        assert len(tokens) == len(segments) == len(positions) == 300
        real = segments > 0  # 0 is padding, at the end
        assert (np.diff(real.astype(int)) <= 0).all() and not positions[~real].any()
        groups = visible_together(tokens[real], attention(segments)[np.ix_(real, real)])
        assert (
            np.concatenate([np.arange(len(g)) for g in groups]).tolist() == positions[real].tolist()
        )
        found += groups
    assert sorted(found) == our_groups(workdir, arm)


@pytest.mark.parametrize("arm", ["related", "running"])
def test_groups_survive_where_every_row_is_a_segment(workdir, tmp_path, arm):
    export(str(workdir), arm, tmp_path / "out", "rows", LIMIT)
    rows = read_rows(tmp_path / "out")["tokens"]
    assert sorted(tuple(row.tolist()) for row in rows) == our_groups(workdir, arm)
    assert max(map(len, rows)) <= LIMIT


def test_a_leak_would_be_noticed():
    row = np.array([5, 6, 0, 7, 8, 0])
    assert visible_together(row, attention(levanter_segments(row, 0))) == [(5, 6, 0), (7, 8, 0)]
    with pytest.raises(AssertionError, match="cut or leaks"):
        leaky = attention(np.array([0, 0, 0, 1, 1, 1]))
        leaky[4, 2] = True
        visible_together(row, leaky)


def test_the_folder_says_what_the_trainer_needs(workdir, tmp_path, capsys):
    flags = {"workdir": workdir, "arm": "related", "to": tmp_path / "out", "row_length": 256}
    main([f"--{name}={value}" for name, value in flags.items()] + ["--rules=eos"])
    assert "200 groups in" in capsys.readouterr().out
    tokenizer = Tokenizer.open(DesignFolders(workdir).tokenizer)
    facts = json.loads((tmp_path / "out" / "export.json").read_text())
    assert facts["row_length"] == 256 and facts["vocab_size"] == tokenizer.vocab_size
    assert facts["end_of_text_id"] == tokenizer.end_of_text_id and facts["rules"] == "eos"
    text = (tmp_path / "out" / "README.md").read_text()
    assert f"{tokenizer.vocab_size} ids" in text and "exactly 256 tokens" in text
    named = json.loads((tmp_path / "out" / "tokenizer" / "tokenizer_config.json").read_text())
    assert tokenizer.library.token_to_id(named["eos_token"]) == tokenizer.end_of_text_id
    assert not list(tmp_path.glob("*.partial"))


def test_what_cannot_be_exported_is_reported(workdir, tmp_path):
    def run(arm, row_length=256, to="out"):
        export(str(workdir), arm, tmp_path / to, "eos", row_length)

    (DesignFolders(workdir).arms / "begun").mkdir(exist_ok=True)
    for arm in ("nothing", "begun"):
        with pytest.raises(StageError, match=rf"no arm '{arm}'.* batched, related, running"):
            run(arm)
    with pytest.raises(StageError, match="keeps a group's sentences together in a batch"):
        run("batched")
    longest = read_results(DesignFolders(workdir).arms / "related")["longest_group"]
    with pytest.raises(StageError, match=f"row_length must be at least {longest}.* got 50"):
        run("related", 50)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(StageError, match="new or an empty folder"):
        run("related", to="full")
    assert (tmp_path / "full" / "file").read_text() == "mine" and not (tmp_path / "out").exists()
    (tmp_path / "out.partial").mkdir()  # of an export that was killed
    (tmp_path / "out").mkdir()
    run("related")
    assert (tmp_path / "out" / "README.md").exists()
    with pytest.raises(SystemExit, match="error: there is no arm 'nothing'"):
        main([f"--workdir={workdir}", "--arm=nothing", "--to=x", "--rules=eos", "--row_length=9"])
