"""Records hold every kept group once, whole, in one global shuffle, and say where it comes from."""

from pathlib import Path
import shutil

import numpy as np
import pytest

from icl_jax.config import DataConfig, StageError
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.data.input_pipeline import make_batches, open_data
from icl_jax.data.shards import Shards, find_shards
from icl_jax.data.tfrecord import RecordError
from icl_jax.design.folders import DesignFolders
from icl_jax.design.groups import Groups, GroupShard, keep_file
from icl_jax.design.records.layout import Example, Marks
from icl_jax.design.records.records import count_groups, multiset, write_arm
from icl_jax.design.records.rows import Piece, pack_rows
from icl_jax.design.sentences import Sentences
from icl_jax.files.step_folder import read_results
from icl_jax.workers.local import Runner
from tests.design.made_up import (
    make_tables,
    related_groups,
    running_groups,
    write_strategy,
)

LIMIT, SEED, SHARD_BYTES = 127, 3, 60_000
LAYOUTS = ("in_context", "in_batch")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(workdir, sentences, marks) with the strategies `related` and `running`, and two arms."""
    workdir = tmp_path_factory.mktemp("records")
    sentences = make_tables(workdir, own_queries=True)
    folders = DesignFolders(workdir)
    marks = Marks.of(Tokenizer.open(folders.tokenizer))
    shards = [related_groups(sentences, 300, LIMIT, seed) for seed in range(3)]
    write_strategy(folders.groups / "related", shards)
    write_strategy(folders.groups / "running", [running_groups(sentences, LIMIT, marks.end)])
    for layout in LAYOUTS:
        write(workdir, layout)
    return workdir, sentences, marks


def write(
    workdir, layout, *, to=None, strategy="related", limit=LIMIT, seed=SEED, workers=1, **others
):
    folders = DesignFolders(workdir)
    return write_arm(
        str(workdir), Sentences.open(workdir, True), folders.groups / strategy, layout, layout,
        limit, seed, SHARD_BYTES, Runner(workers), to or folders.arms / layout, **others,
    )  # fmt: skip


def records_of(folder: Path) -> list[dict]:
    shards = Shards(find_shards(str(folder)))
    return [shards[i] for i in range(len(shards))]


def groups_of(record: dict) -> list[dict]:
    """The groups of a record, each as if it were alone."""
    ends_of_groups = np.flatnonzero(np.diff(record["group"], append=-1)) + 1
    found, begin = [], 0
    for end in ends_of_groups.tolist():
        inside = (record["sentence_starts"] >= begin) & (record["sentence_starts"] < end)
        found.append({name: record[name][inside] for name in record if name in PER_SENTENCE})
        found[-1]["sentence_starts"] -= begin
        found[-1]["tokens"] = record["tokens"][begin:end]
        begin = end
    return found


PER_SENTENCE = ("sentence_ids", "document_ids", "similarities", "sentence_starts")


def contents(folder: Path) -> dict[str, bytes]:
    skipped = {"cost.json"}  # seconds
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name not in skipped}


def key(ids, similarities) -> tuple:
    return tuple(ids), tuple(np.float32(similarities).tolist())


def test_in_context_every_group_is_one_example_with_separators(made):
    workdir, sentences, marks = made
    groups = Groups.open(DesignFolders(workdir).groups / "related")
    expected = sorted(key(*groups.of(i)) for i in range(len(groups)))
    found = []
    for record in records_of(DesignFolders(workdir).arms / "in_context"):
        assert len(record["tokens"]) <= LIMIT
        assert np.unique(record["group"]).tolist() == list(range(1, record["group"].max() + 1))
        for group in groups_of(record):
            tokens = [] if marks.begin is None else [marks.begin]
            for sentence, start in zip(group["sentence_ids"], group["sentence_starts"]):
                assert start == len(tokens)
                tokens += [*sentences.tokens(sentence), marks.separator]
            assert group["tokens"].tolist() == [*tokens[:-1], marks.end]
            assert (group["document_ids"] == sentences.documents_of(group["sentence_ids"])).all()
            found.append(key(group["sentence_ids"], group["similarities"]))
    assert sorted(found) == expected


def test_records_name_the_document_of_a_query_apart_from_those_of_the_corpus(made):
    workdir, sentences, _ = made
    corpus, queries = sentences.corpus, sentences.queries
    of_tables = [*corpus.documents, *(corpus.num_documents + queries.documents)]
    ids, documents = (
        np.concatenate([r[name] for r in records_of(DesignFolders(workdir).arms / "in_context")])
        for name in ("sentence_ids", "document_ids")
    )
    assert documents.tolist() == [of_tables[id] for id in ids]
    assert ids.max() >= len(corpus) > ids.min()
    for id in documents[ids >= len(corpus)][:5]:
        assert sentences.document(id) == queries.document(id - corpus.num_documents)


def test_in_batch_every_sentence_is_a_record_and_those_of_a_group_follow_each_other(made):
    workdir, sentences, marks = made
    groups = Groups.open(DesignFolders(workdir).groups / "related")
    begin = [] if marks.begin is None else [marks.begin]
    shards = [
        records_of(path) for path in find_shards(str(DesignFolders(workdir).arms / "in_batch"))
    ]
    numbers = []
    for records in shards:
        i = 0
        while i < len(records):
            number = int(records[i]["batch_group"][0])
            ids, similarities = groups.of(number)
            for sentence, similarity in zip(ids, similarities):  # all in this shard
                record = records[i]
                assert record["batch_group"].tolist() == [number]
                assert record["sentence_ids"].tolist() == [sentence]
                assert record["document_ids"].tolist() == [sentences.documents_of(sentence)]
                assert record["similarities"].tolist() == [similarity]
                assert record["sentence_starts"].tolist() == [len(begin)]
                expected = [*begin, *sentences.tokens(sentence), marks.end]
                assert record["tokens"].tolist() == expected and set(record["group"]) == {1}
                i += 1
            numbers.append(number)
    assert len(shards) > 2 and sorted(numbers) == list(range(len(groups)))


def test_running_text_keeps_its_own_tokens(made, tmp_path):
    workdir, _, marks = made
    results = write(workdir, "in_context", to=tmp_path / "x", strategy="running")
    shard = Groups.open(DesignFolders(workdir).groups / "running").shards[0]
    rows = {
        tuple(shard.ids[a:b]): i for i, (a, b) in enumerate(zip(shard.offsets, shard.offsets[1:]))
    }
    for record in records_of(tmp_path / "x"):
        for group in groups_of(record):
            assert np.isnan(group["similarities"]).all()
            row = rows.pop(tuple(group["sentence_ids"]))
            own = shard.tokens[shard.token_offsets[row] : shard.token_offsets[row + 1]].tolist()
            if marks.begin is not None:
                own = [marks.begin, *own] + [marks.end] * (own[-1] != marks.end)
            assert group["tokens"].tolist() == own
    assert not rows and not any(results["similarity_counts"])


def test_groups_of_all_shards_are_mixed_and_another_seed_mixes_otherwise(made, tmp_path):
    workdir, _, _ = made
    first = records_of(find_shards(str(DesignFolders(workdir).arms / "in_batch"))[0])
    numbers = np.unique([record["batch_group"][0] for record in first])
    thirds = np.bincount(numbers // 300, minlength=3) / len(numbers)
    assert (abs(thirds - 1 / 3) < 0.15).all()
    write(workdir, "in_batch", to=tmp_path / "x", seed=SEED + 1)
    other = records_of(find_shards(str(tmp_path / "x"))[0])
    assert not np.array_equal(numbers, np.unique([record["batch_group"][0] for record in other]))


def test_results_count_what_the_records_hold(made):
    workdir, _, _ = made
    groups = Groups.open(DesignFolders(workdir).groups / "related")
    ids = np.concatenate([shard.ids for shard in groups.shards])
    for layout in LAYOUTS:
        folder = DesignFolders(workdir).arms / layout
        results, records = read_results(folder), records_of(folder)
        lengths = [len(record["tokens"]) for record in records]
        assert results["records"] == len(records) and results["tokens"] == sum(lengths)
        assert results["groups"] == len(groups) == 900 and results["groups_left_out"] == 0
        assert results["sentences"] == len(ids) == sum(len(r["sentence_ids"]) for r in records)
        assert results["sentence_multiset"] == multiset(ids)
        assert results["sentences_per_group"] == np.bincount(groups.sizes).tolist()
        assert sum(results["tokens_per_group_counts"]) == len(groups)
        assert sum(results["similarity_counts"]) == len(ids) - len(groups)  # queries are not scored
        assert results["filled"] == pytest.approx(
            sum(lengths) / (results["rows"] * LIMIT), abs=1e-4
        )
    assert read_results(DesignFolders(workdir).arms / "in_context")["longest_group"] <= LIMIT


def test_the_rows_of_an_in_batch_arm_are_those_that_training_packs(made):
    folder = DesignFolders(made[0]).arms / "in_batch"
    data = open_data(DataConfig(sources=(str(folder),), pack=True), 8, LIMIT, 0)
    results = read_results(folder)
    assert results["rows"] == pytest.approx(data.sources[0].num_rows, rel=0.05)
    assert results["filled"] > 0.9


def test_a_group_as_long_as_an_edge_of_the_histogram_is_in_the_bin_below_it():
    facts = np.array([5]), np.array([0]), np.array([1.0])
    groups = [
        [Piece(Example(np.zeros(length, np.int32), np.zeros(1, np.int32)), *facts)]
        for length in (1, 2, 3, 4, 64, 70)  # edges are 2 apart; the last bin has all beyond too
    ]
    assert count_groups(groups, 64)["tokens_per_group"] == [2, 2, *[0] * 29, 2]


def test_the_checksum_of_sentences_knows_how_often_but_not_in_which_order():
    assert multiset(np.array([3, 1, 1, 0])) == multiset(np.array([1, 0, 3, 1]))
    others = ([3, 1, 0], [3, 1, 0, 0], [2, 2, 1, 0])  # the last has the same sum
    assert multiset(np.array([3, 1, 1, 0])) not in {multiset(np.array(ids)) for ids in others}


@pytest.mark.parametrize("neighbours", [1, 3, 10])
def test_groups_of_usual_lengths_fill_the_rows(neighbours):
    rng = np.random.RandomState(0)
    lengths = []
    for _ in range(3000):  # sentences of 25 tokens on average, at most 128, in rows of 256
        sizes = np.minimum(rng.lognormal(3.0, 0.6, 1 + neighbours).astype(int) + 1, 128)
        used = 1 + np.cumsum(sizes + 1)
        lengths.append(used[used <= 256][-1])
    lengths = np.array(lengths)
    rows = pack_rows(lengths, 256, (0, 0))
    assert sorted(np.concatenate(rows).tolist()) == list(range(3000))
    assert max(lengths[row].sum() for row in rows) <= 256
    assert lengths.sum() / (256 * len(rows)) > 0.9


def test_the_rows_of_a_shard_are_in_an_order_that_the_seed_draws():
    lengths = np.random.default_rng(0).integers(1, 40, 200)
    one, other = ([row.tolist() for row in pack_rows(lengths, 60, (s, 0))] for s in (0, 1))
    assert sorted(one) == sorted(other) and one != other


def test_packed_records_are_full(made):
    assert read_results(DesignFolders(made[0]).arms / "in_context")["filled"] > 0.9


@pytest.mark.parametrize("layout, workers", [("in_context", 2), ("in_batch", 1)])
def test_the_bytes_depend_neither_on_workers_nor_on_a_kill(made, tmp_path, layout, workers):
    workdir, _, _ = made
    expected = contents(DesignFolders(workdir).arms / layout)
    killed = tmp_path / layout
    shutil.copytree(DesignFolders(workdir).arms / layout, killed)
    for name in ("results.json", "dataset_info.json", "counts-00001.json", "counts-00002.json"):
        (killed / name).unlink()
    shards = find_shards(str(killed))
    Path(shards[1]).write_bytes(b"half a")  # its index stays
    Path(shards[2]).unlink()
    (killed / f"{shards[2].name}.0123.partial").write_bytes(b"half a")
    finished = Path(shards[0]).stat().st_mtime_ns
    write(workdir, layout, to=killed, workers=workers)
    assert contents(killed) == expected
    assert Path(shards[0]).stat().st_mtime_ns == finished


def test_a_complete_arm_is_not_made_again_and_another_config_is_refused(made):
    workdir, _, _ = made
    folder = DesignFolders(workdir).arms / "in_context"
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert write(workdir, "in_context") == read_results(folder)
    for change in ({"limit": LIMIT + 1}, {"seed": SEED + 1}, {"strategy": "running"}):
        with pytest.raises(StageError, match="made from other inputs"):
            write(workdir, "in_context", **change)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_groups_that_the_gain_filter_left_out_are_in_no_record(made, tmp_path):
    workdir, _, _ = made
    strategy = DesignFolders(workdir).groups / "filtered"
    shutil.copytree(DesignFolders(workdir).groups / "related", strategy)
    keep = np.arange(300) % 3 > 0
    np.save(keep_file(strategy, 1), keep)
    results = write(workdir, "in_batch", to=tmp_path / "x", strategy="filtered")
    numbers = {int(record["batch_group"][0]) for record in records_of(tmp_path / "x")}
    left_out = set((300 + np.flatnonzero(~keep)).tolist())
    assert numbers == set(range(900)) - left_out
    assert results["groups_left_out"] == len(left_out) == 900 - results["groups"]
    np.save(keep_file(strategy, 1), np.roll(keep, 1))  # as many, but others
    with pytest.raises(StageError, match="made from other inputs"):
        write(workdir, "in_batch", to=tmp_path / "x", strategy="filtered")
    for shard in range(3):
        np.save(keep_file(strategy, shard), np.zeros(300, bool))
    with pytest.raises(StageError, match="left no group at all"):
        write(workdir, "in_batch", to=tmp_path / "y", strategy="filtered")


def test_a_group_longer_than_the_limit_is_named(made, tmp_path):
    workdir, sentences, _ = made
    ids = np.argsort(sentences.corpus.lengths)[-8:]
    groups = GroupShard(np.array([0, 8]), ids, np.ones(8, np.float32))
    write_strategy(DesignFolders(workdir).groups / "long", [groups])
    with pytest.raises(StageError, match=r"group 0, with the sentences .* more than 127"):
        write(workdir, "in_context", to=tmp_path / "x", strategy="long")


def test_training_reads_the_folders_and_keeps_batch_groups_together(made):
    workdir, _, _ = made
    folders = DesignFolders(workdir)
    groups = Groups.open(folders.groups / "related")
    data = open_data(DataConfig(sources=(str(folders.arms / "in_context"),)), 8, LIMIT, 0)
    batch = next(iter(make_batches(data, steps=1, pad_token_id=0)))
    assert batch["group"].max() > 1 and (batch["group"] > 0).mean() > 0.9
    data = open_data(DataConfig(sources=(str(folders.arms / "in_batch"),), pack=True), 8, LIMIT, 0)
    steps = int(data.steps_per_epoch)
    placed = {}
    for step, batch in enumerate(make_batches(data, steps=steps, pad_token_id=0)):
        for tokens, ids in zip(batch["tokens"], batch["group"]):
            for group in range(1, ids.max() + 1):
                placed.setdefault(tuple(tokens[ids == group]), set()).add(step)
    records = records_of(folders.arms / "in_batch")
    tokens_of = {int(r["sentence_ids"][0]): tuple(r["tokens"]) for r in records}
    assert placed.keys() == set(tokens_of.values())
    for number in range(len(groups)):  # some batch holds all sentences of the group
        assert set.intersection(*(placed[tokens_of[int(s)]] for s in groups.of(number)[0]))


def test_one_query_a_row_puts_each_group_into_a_row_of_its_own_in_every_arm(made, tmp_path):
    workdir, _, _ = made
    packed = records_of(DesignFolders(workdir).arms / "in_context")
    groups = [group["tokens"].tolist() for record in packed for group in groups_of(record)]
    for layout in LAYOUTS:
        to = tmp_path / layout
        results = write(workdir, layout, to=to, row_holds="one_query")
        assert results["row_holds"] == "one_query" and results["groups"] == len(groups) == 900
        data = open_data(DataConfig(sources=(str(to),)), 8, LIMIT, 0)
        assert data.steps_per_epoch == 900 / 8
        assert data.sources[0].num_rows == results["rows"] == 900
        with pytest.raises(RecordError, match="designed for one query a row"):
            open_data(DataConfig(sources=(str(to),), pack=True), 8, LIMIT, 0)
        with pytest.raises(StageError, match="made from other inputs"):
            write(workdir, layout, to=to)
    records = records_of(tmp_path / "in_context")
    assert all((record["group"] == 1).all() for record in records)
    assert sorted(record["tokens"].tolist() for record in records) == sorted(groups)
    assert read_results(DesignFolders(workdir).arms / "in_context")["row_holds"] == "packed"
