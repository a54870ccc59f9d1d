"""A pool that no host holds alone: real processes, each with a part of it, search together."""

import dataclasses
import pickle
import time

import jax
import pyarrow as pa
import pytest

from icl_jax.config import MeshConfig, SearchConfig
from icl_jax.design.folders import DesignFolders
from icl_jax.design.stage import find_related
from icl_jax.files.step_folder import read_results
from icl_jax.retrieval.search.jax_engine import _needed
from icl_jax.retrieval.vectors import Vectors
from icl_jax.sharding import make_mesh
from tests.a_job import end_job, start_job
from tests.design.test_find_related import experiment, write_corpus

PROCESSES, DEVICES = 2, 2


def shards(workdir) -> dict[str, pa.Table]:
    files = DesignFolders(workdir).neighbours.glob("neighbours-*.arrow")
    return {file.name: pa.ipc.open_file(file).read_all() for file in sorted(files)}


@pytest.fixture(scope="module")
def small_room(tmp_path_factory):
    """(folder, results) of a search by one process, and a config whose pool no host holds alone."""
    folder = tmp_path_factory.mktemp("search")
    # So many candidates are duplicates that some queries ask again, for more.
    rules = SearchConfig(engine="jax", min_similarity=-1.0, neighbours=5, duplicate_jaccard=0.05)
    config = experiment(write_corpus(folder), search=rules, shard_megabytes=0.002)
    config.mesh = MeshConfig()
    alone = find_related(config, folder / "alone").results
    vectors = Vectors.open(DesignFolders(folder / "alone").corpus_vectors)
    together = make_mesh(MeshConfig(), jax.devices()[: PROCESSES * DEVICES])
    room = 1.2 * _needed(len(vectors), vectors.width, together)
    config.design.search = dataclasses.replace(rules, memory_gigabytes=DEVICES * room / 1e9)
    (folder / "config").write_bytes(pickle.dumps(config))
    return folder, alone


def run_job(folder, workdir, how: str) -> list[tuple[int, str, str]]:
    command = ["tests/retrieval/search_of_a_job.py", str(folder / "config"), str(workdir), how]
    return end_job(start_job(command, PROCESSES, DEVICES))


def check_found(workdir, alone: dict) -> None:
    """That a search found what the other did, on the devices of all processes."""
    assert shards(workdir) == shards(workdir.parent / "alone")
    results = read_results(DesignFolders(workdir).neighbours)
    assert results["devices"] == PROCESSES * DEVICES
    assert results["recall"] == alone["recall"] and results["recall"]["neighbours"] == 1


@pytest.mark.parametrize("how", ["well", pytest.param("larger", marks=pytest.mark.slow)])
def test_hosts_that_hold_a_part_of_the_pool_each_find_what_one_finds_alone(small_room, how):
    folder, alone = small_room
    assert len(shards(folder / "alone")) > PROCESSES and alone["asked_again"] > 0
    for code, _, errors in run_job(folder, folder / f"job {how}", how):
        assert code == 0, errors
    check_found(folder / f"job {how}", alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "error"),
    [("no_room", 2, "error: there is no room on the disk\n"), ("no_memory", 1, "no memory on the")],
)
def test_a_host_that_fails_amid_the_search_says_why_and_nobody_waits(small_room, how, code, error):
    folder, alone = small_room
    started = time.monotonic()
    (other, _, told), (own, _, why) = run_job(folder, folder / how, how)
    assert time.monotonic() - started < 60
    assert own == code and error in why
    assert other != 0 and "start all processes again with the same command" in told
    for code, _, errors in run_job(folder, folder / how, "well"):  # continues
        assert code == 0, errors
    check_found(folder / how, alone)
