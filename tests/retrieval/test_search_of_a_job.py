"""A pool that no host holds alone: real processes, each with a part of it, search together."""

import dataclasses
import pickle
import socket

import jax
import pyarrow as pa

from icl_jax.config import MeshConfig, SearchConfig
from icl_jax.retrieval.design_folders import DesignFolders
from icl_jax.retrieval.find_related import find_related
from icl_jax.retrieval.search_jax import _needed
from icl_jax.retrieval.vectors import Vectors
from icl_jax.sharding import make_mesh
from icl_jax.step_folder import read_results
from tests.a_job import end_job, start_job
from tests.retrieval.test_find_related import experiment, write_corpus

PROCESSES, DEVICES = 2, 2


def shards(workdir) -> dict[str, pa.Table]:
    files = DesignFolders(workdir).neighbours.glob("neighbours-*.arrow")
    return {file.name: pa.ipc.open_file(file).read_all() for file in sorted(files)}


def test_hosts_that_hold_a_part_of_the_pool_each_find_what_one_finds_alone(tmp_path):
    # So many candidates are duplicates that some queries ask again, for more.
    rules = SearchConfig(engine="jax", min_similarity=-1.0, neighbours=5, duplicate_jaccard=0.05)
    config = experiment(write_corpus(tmp_path), search=rules, shard_megabytes=0.002)
    config.mesh = MeshConfig()
    alone = find_related(config, tmp_path / "alone").results
    vectors = Vectors.open(DesignFolders(tmp_path / "alone").corpus_vectors)
    together = make_mesh(MeshConfig(), jax.devices()[: PROCESSES * DEVICES])
    room = 1.2 * _needed(len(vectors), vectors.width, together)
    rules = dataclasses.replace(rules, memory_gigabytes=DEVICES * room / 1e9)
    config.design.search = rules
    held = tmp_path / "config.pickle"
    held.write_bytes(pickle.dumps(config))

    command = ["tests/retrieval/search_of_a_job.py", str(held), str(tmp_path)]
    (code, told, errors), (other, heard, why) = end_job(start_job(command, PROCESSES, DEVICES))
    first, second = (f"process {place} ({socket.gethostname()})" for place in range(PROCESSES))

    expected = shards(tmp_path / "alone")
    assert len(expected) > PROCESSES and alone["asked_again"] > 0
    for name in ("job", "fails0"):  # which goes on after what went wrong
        assert shards(tmp_path / name) == expected, errors
        results = read_results(DesignFolders(tmp_path / name).neighbours)
        assert results["devices"] == PROCESSES * DEVICES
        assert results["recall"] == alone["recall"] and results["recall"]["neighbours"] == 1
    wrong = "there is no room on the disk"
    said = [[line for line in text.splitlines() if wrong in line] for text in (told, heard)]
    assert said == [[wrong, f"{second}: {wrong}"], [f"{first}: {wrong}", f"{second}: {wrong}"]]
    assert code == 134 and other == 1  # the first was left alone in a round
    assert "there is no memory on the device" in why
