import dataclasses
import json
import shutil

import numpy as np
import pytest

from icl_jax.config import ConfigError, MeshConfig, SearchConfig, StageError
from icl_jax.files.step_folder import StepFolder
from icl_jax.retrieval.search import find as search
from icl_jax.retrieval.search import search as search_shards
from icl_jax.retrieval.search.faiss_engine import FaissSearch
from icl_jax.retrieval.search.find import find_neighbours
from icl_jax.retrieval.search.results import describe_thresholds
from icl_jax.retrieval.search.search import SearchFolders
from icl_jax.retrieval.search.signatures import load_signatures
from icl_jax.retrieval.vectors import save_shard
from icl_jax.sharding import make_mesh
from icl_jax.workers import shards
from icl_jax.workers.local import Runner
from tests.retrieval.made_up import (
    Table,
    assert_equal_to_loops,
    cosine,
    made_up,
    neighbours_by_loops,
    words_of,
)

pytestmark = pytest.mark.delicate

CONFIG = SearchConfig(neighbours=4, min_similarity=0.5, recall_sample=30)


def run(folder, table, rows, config=CONFIG, queries=None, query_rows=None, **options):
    queries, query_rows = queries or table, rows if query_rows is None else query_rows
    if config.engine == "jax":
        options["mesh"] = make_mesh(MeshConfig())
    vectors = table.vectors(rows)
    return find_neighbours(
        queries, queries.vectors(query_rows), table, vectors, config, folder, **options
    )


def files(folder):
    return {file.name: file.read_bytes() for file in folder.glob("neighbours-*.arrow")}


@pytest.mark.parametrize("engine", ["faiss", "jax"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"same_document": True, "min_similarity": -1.0, "neighbours": 7},
        {"duplicate_jaccard": 2.0, "min_similarity": 0.9},
    ],
)
def test_neighbours_are_those_of_the_rules_written_as_loops(tmp_path, engine, changes):
    table, rows = made_up(211)
    config = dataclasses.replace(CONFIG, engine=engine, **changes)
    found = run(tmp_path, table, rows, config)
    expected = neighbours_by_loops(table, rows, table, rows, config)
    assert_equal_to_loops(found, expected)
    assert found.results["recall"]["neighbours"] == 1.0
    assert found.results["mean_neighbours"] == pytest.approx(
        np.mean([len(x) for x in expected]), abs=1e-3
    )


def test_queries_of_another_table_have_no_document_in_common_with_the_pool(tmp_path):
    table, rows = made_up(151)
    queries, query_rows = made_up(53, name="task")  # the same beginning: equal sentences
    found = run(tmp_path, table, rows, queries=queries, query_rows=query_rows)
    expected = neighbours_by_loops(queries, query_rows, table, rows, CONFIG)
    assert_equal_to_loops(found, expected)
    same = table.documents[:53] == queries.documents
    assert any(i < 53 and same[i] for wanted in expected for i, _ in wanted)


def share_found_of(wanted: dict[int, list[int]], found: dict[int, list[int]]) -> float:
    hits = [other in found[query] for query, others in wanted.items() for other in others]
    return np.mean(hits)


def test_recall_is_the_share_of_brute_force_that_a_poor_index_finds(tmp_path):
    """One list of 6 is looked at, so much is missed."""
    table, rows = made_up(301, clusters=150)
    config = dataclasses.replace(
        CONFIG, index="IVF6,Flat", probes=1, recall_sample=301, min_similarity=0.6
    )
    results = run(tmp_path / "found", table, rows, config).results
    anything = dataclasses.replace(config, min_similarity=-np.inf)
    ours = run(tmp_path / "all", table, rows, anything)
    ours = {query: ours.of(query)[0].tolist() for query in range(301)}
    lists = dict(enumerate(neighbours_by_loops(table, rows, table, rows, anything)))
    wanted = {query: [other for other, _ in others] for query, others in lists.items()}
    above = {query: [i for i, score in others if score > 0.6] for query, others in lists.items()}
    recall = results["recall"]
    assert recall["queries"] == 301
    assert recall["neighbours"] == pytest.approx(share_found_of(wanted, ours), abs=1e-3)
    assert recall["above_threshold"] == pytest.approx(share_found_of(above, ours), abs=1e-3)
    assert 0.2 < recall["neighbours"] < recall["above_threshold"] < 0.9

    # `candidates`: of the nearest, before any rule but that a sentence is not its own neighbour.
    first = {}
    for i in np.flatnonzero(rows.any(axis=1)):
        first.setdefault(tuple(words_of(table.all[i])), i)
    pool = np.array(list(first.values()))
    shown = np.flatnonzero(rows.any(axis=1))
    near = {
        query: [i for i in pool[np.argsort([-cosine(rows[query], rows[i]) for i in pool])[:5]]
                if words_of(table.all[i]) != words_of(table.all[query])]
        for query in shown
    }  # fmt: skip
    index = FaissSearch(table.vectors(rows), pool, config, SearchFolders(tmp_path / "found").index)
    proposed = index.candidates(table.vectors(rows).take(shown), index.first_count)
    proposed = {query: set(found) for query, found in zip(shown, proposed.tolist(), strict=True)}
    assert recall["candidates"] == pytest.approx(share_found_of(near, proposed), abs=1e-3)
    assert 0.2 < recall["candidates"] < 0.9


def test_a_similarity_at_the_threshold_is_not_enough(tmp_path):
    rows = np.array([[1, 0], [0.6, 0.8], [0.8, 0.6], [0, 1]], np.float32)
    table = Table(["a b", "c d", "e f", "g h"], [0, 1, 2, 3], shards=1)
    config = dataclasses.replace(CONFIG, min_similarity=float(np.float32(0.8)))
    found = run(tmp_path, table, rows, config)
    assert [found.of(i)[0].tolist() for i in range(4)] == [[], [2], [1], []]


def test_a_sampled_query_has_no_neighbour_at_a_threshold_that_its_best_just_reaches(tmp_path):
    rows = np.array([[1, 0], [0.6, 0.8], [0.8, 0.6], [0, 1]], np.float32)
    table = Table(["a b", "c d", "e f", "g h"], [0, 1, 2, 3], shards=1)
    share = run(tmp_path, table, rows).results["share_at_threshold"]
    assert (share["0.9"], share["0.8"], share["0.7"]) == (0.5, 0.5, 1.0)


def test_more_candidates_are_asked_for_where_the_rules_leave_too_few(tmp_path):
    rng = np.random.default_rng(0)
    # 300 sentences of one document lie nearer to each other than to the two elsewhere.
    rows = np.concatenate(
        [[1, 0, 0] + 0.01 * rng.normal(size=(300, 3)), [[1, 0.2, 0], [1, 0, 0.3]]]
    )
    table = Table([f"word{i} x{i} y{i}" for i in range(302)], [0] * 300 + [1, 2])
    config = dataclasses.replace(CONFIG, min_similarity=0.9)
    found = run(tmp_path, table, rows.astype(np.float32), config)
    assert {tuple(found.of(i)[0]) for i in range(300)} == {(300, 301)}
    assert found.results["asked_again"] >= 300
    assert found.results["too_few_candidates"] == 0
    assert found.results["candidates_left_out"]["same_document"] > 300 * 250


def test_a_bound_on_the_candidates_that_is_reached_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(search_shards, "_MOST_CANDIDATES", 64)
    table = Table([f"word{i} x{i} y{i}" for i in range(100)], [0] * 99 + [1])
    rows = np.ones((100, 2), np.float32) + 0.01 * np.random.default_rng(0).normal(size=(100, 2))
    rows[99] = [1, 0.8]
    found = run(tmp_path, table, rows.astype(np.float32))
    assert found.results["too_few_candidates"] == 99


def test_a_query_that_has_enough_once_it_asks_again_is_not_counted_as_short(tmp_path, monkeypatch):
    """Fifty sentences of one document lie before the ten that they may take; sixty lie far off."""
    monkeypatch.setattr(search_shards, "_MOST_CANDIDATES", 64)
    rows = np.random.default_rng(0).normal(scale=0.01, size=(120, 64)).astype(np.float32)
    rows[:60, 0] = 1
    rows[50:60, 1] = 0.3
    rows[np.arange(60, 120), np.arange(2, 62)] = 1
    table = Table([f"word{i} x{i} y{i}" for i in range(120)], [0] * 50 + [*range(1, 71)])
    results = run(tmp_path, table, rows).results
    assert (results["asked_again"], results["too_few_candidates"]) == (50, 0)


@pytest.mark.parametrize("index", ["Flat", "IVF5,PQ8x4fs"])
def test_files_are_the_same_whatever_the_number_of_workers(tmp_path, index):
    table, rows = made_up(331)
    config = dataclasses.replace(CONFIG, index=index, probes=2)
    for workers in (1, 2, 3):
        run(tmp_path / str(workers), table, rows, config, runner=Runner(workers))
    assert files(tmp_path / "1") == files(tmp_path / "2") == files(tmp_path / "3")


def test_similarities_do_not_depend_on_the_company_of_a_query(tmp_path, monkeypatch):
    table, rows = made_up(331, width=23)
    run(tmp_path / "a", table, rows)
    monkeypatch.setattr(search_shards, "_BLOCK", 17)
    monkeypatch.setattr(search_shards, "_PIECE", 3)
    run(tmp_path / "b", table, rows)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_a_worker_that_lives_on_sees_that_the_same_folders_hold_another_search(
    tmp_path, monkeypatch
):
    def run_here(function, tasks, *rest, **how):  # as a worker of Beam does
        for task in tasks:
            function(*task)

    monkeypatch.setattr(shards, "run_shards", run_here)
    beam, place = Runner(1, "beam"), tmp_path / "living"
    for seed in (0, 1):
        table, rows = made_up(120, seed=seed)
        vectors = table.vectors(rows)
        vectors.folder = place / "vectors"
        StepFolder(vectors.folder, {}).complete({"num_shards": 3})
        for shard, part in enumerate(vectors.shards):
            save_shard(vectors.folder, shard, part)
        load_signatures(table, SearchFolders(place / "found").signatures)
        both, inputs = (table, vectors), {"encoder": seed}
        find_neighbours(*both, *both, CONFIG, place / "found", runner=beam, inputs=inputs)
        run(tmp_path / f"local{seed}", table, rows)
        assert files(place / "found") == files(tmp_path / f"local{seed}")
        shutil.rmtree(place)


def test_a_killed_search_continues_after_the_finished_shards(tmp_path, monkeypatch):
    table, rows = made_up(211)
    whole = run(tmp_path / "whole", table, rows)
    write, asked = search_shards.write_shard, []

    def die_at_the_second(folder, shard, *rest):
        if shard == 1:
            raise KeyboardInterrupt
        write(folder, shard, *rest)

    monkeypatch.setattr(search_shards, "write_shard", die_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", table, rows)
    monkeypatch.setattr(
        search_shards, "write_shard", lambda f, s, *r: (asked.append(s), write(f, s, *r))
    )
    resumed = run(tmp_path / "killed", table, rows)
    assert asked == [1, 2]
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    for key in ("candidates_left_out", "similarity_counts", "recall", "queries", "mean_neighbours"):
        assert resumed.results[key] == whole.results[key]


def test_a_finished_search_is_taken_as_it_is_and_other_inputs_are_named(tmp_path, monkeypatch):
    table, rows = made_up(61)
    first = run(tmp_path, table, rows, inputs={"encoder": "a"})
    monkeypatch.delattr(search, "prepare_search")
    assert run(tmp_path, table, rows, inputs={"encoder": "a"}).results == first.results
    with pytest.raises(StageError, match="encoder"):
        run(tmp_path, table, rows, inputs={"encoder": "b"})


def test_results_say_what_was_found_and_what_was_left_out(tmp_path):
    table, rows = made_up(211)
    run(tmp_path, table, rows)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["queries"] == results["pool"] == 211
    assert sum(results["similarity_counts"]) == round(results["mean_neighbours"] * 211)
    assert results["pool_zero_vectors"] == (~rows.any(axis=1)).sum() > 0
    assert results["pool_exact_duplicates"] > 10
    assert results["candidates_left_out"]["near_duplicate_of_query"] > 0
    assert results["candidates_left_out"]["near_duplicate_of_neighbour"] > 0
    assert results["index"] == "Flat"
    assert results["recall"]["queries"] == 30


def test_what_cannot_work_stops_before_anything_is_computed(tmp_path, monkeypatch):
    monkeypatch.delattr(search, "prepare_search")
    table, rows = made_up(61)
    other = Table(table.all, table.documents, name="other")
    with pytest.raises(StageError, match="width, got 5 and 16"):
        run(tmp_path / "a", table, rows, queries=other, query_rows=rows[:, :5])
    with pytest.raises(StageError, match=r"61 sentences, but there are 60 vectors"):
        find_neighbours(
            table, table.vectors(rows), table, table.vectors(rows[:60]), CONFIG, tmp_path / "b"
        )
    with pytest.raises(ConfigError, match=r"at least 156 different .* there are 61"):
        run(tmp_path / "c", table, rows, dataclasses.replace(CONFIG, index="IVF4,Flat"))
    with pytest.raises(StageError, match="no sentence to search among"):
        run(tmp_path / "d", Table([], [], shards=1), np.empty((0, 4), np.float16))


@pytest.mark.parametrize("engine", ["faiss", "jax"])
def test_a_shard_without_sentences_has_no_neighbours_and_harms_nobody(tmp_path, engine):
    table, rows = made_up(90)
    expected = run(tmp_path / "whole", table, rows, dataclasses.replace(CONFIG, engine=engine))
    table.starts = np.array([0, 50, 50, 90])
    got = run(tmp_path / "gap", table, rows, dataclasses.replace(CONFIG, engine=engine))
    assert [len(got.shard(shard)) for shard in range(3)] == [50, 0, 40]
    assert all(got.of(i)[0].tolist() == expected.of(i)[0].tolist() for i in range(90))


def test_a_pool_of_zero_vectors_is_reported(tmp_path):
    table, rows = made_up(40)
    with pytest.raises(StageError, match="every vector of the pool is zero"):
        run(tmp_path / "zero", table, 0 * rows)


def test_another_threshold_takes_the_same_index_and_signatures(tmp_path, monkeypatch):
    table, rows = made_up(90)
    run(tmp_path / "found", table, rows)
    shutil.rmtree(tmp_path / "found")
    monkeypatch.setattr(table, "texts", None)  # no text is looked at again
    strict = run(tmp_path / "found", table, rows, dataclasses.replace(CONFIG, min_similarity=0.9))
    assert all((strict.of(i)[1] > 0.9).all() for i in range(90))


def test_an_index_of_another_kind_or_seed_is_not_taken_for_the_one_asked_for(tmp_path):
    table, rows = made_up(300)
    run(tmp_path / "found", table, rows)
    shutil.rmtree(tmp_path / "found")
    lists = dataclasses.replace(CONFIG, index="IVF4,Flat")
    with pytest.raises(StageError, match=r"found_index was made.*'Flat' there, 'IVF4,Flat' here"):
        run(tmp_path / "found", table, rows, lists)
    shutil.rmtree(tmp_path / "found")
    with pytest.raises(StageError, match=r"found_index was made from.*seed: 0 there, 1 here"):
        run(tmp_path / "found", table, rows, seed=1)


def test_results_say_how_many_queries_would_have_a_neighbour_at_other_thresholds(tmp_path):
    table, rows = made_up(211)
    config = dataclasses.replace(CONFIG, min_similarity=0.85, recall_sample=0)
    results = run(tmp_path / "all", table, rows, config).results
    assert results["threshold_sample"] == 200 and results["recall"] == {"queries": 0}
    sample = np.random.default_rng([0, 2]).permutation(211)[:200]
    for threshold, share in results["share_at_threshold"].items():
        config = dataclasses.replace(CONFIG, min_similarity=float(threshold), recall_sample=0)
        there = run(tmp_path / threshold, table, rows, config)
        assert share == pytest.approx(np.mean([len(there.of(i)[0]) > 0 for i in sample]))


def test_no_neighbour_above_the_threshold_is_no_error_but_can_be_reported(tmp_path):
    table, rows = made_up(211)
    rows = rows + 0.1 * np.random.default_rng(0).normal(size=rows.shape).astype(np.float16)
    config = dataclasses.replace(CONFIG, min_similarity=0.9999999)
    results = run(tmp_path, table, rows, config).results
    assert results["queries_with_neighbours"] == 0
    told = describe_thresholds(results)
    at_half = round(200 * results["share_at_threshold"]["0.5"])
    assert told.startswith(
        "of 200 sampled queries 0 have a neighbour above 0.9999999, and would have "
    )
    assert f"{at_half} at 0.5, " in told and at_half > 100
    assert told.endswith("; lower design.search.min_similarity")
