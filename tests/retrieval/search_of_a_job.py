"""What each process of the job in `test_search_of_a_job.py` runs; prints what stopped it.

python tests/retrieval/search_of_a_job.py CONFIG FOLDER well|wrong --coordinator=... ...
"""

from pathlib import Path
import pickle
import sys

from icl_jax.cli import ends_in_one_line
from icl_jax.config import StageError
from icl_jax.design.stage import find_related
from icl_jax.retrieval.search import jax_engine as search_jax
from icl_jax.retrieval.search import search as search_shards
from icl_jax.workers.hosts import by_leader
from icl_jax.workers.job import ends_with_job, job_place, join_job


def find(config, workdir: Path) -> None:
    find_related(config, workdir)


def no_room(*arguments) -> None:
    raise StageError("there is no room on the disk")


def no_memory(*arguments) -> None:
    raise RuntimeError("there is no memory on the device")


def main() -> None:
    config, folder = pickle.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2])
    coordinator, processes, place = (argument.partition("=")[2] for argument in sys.argv[4:])
    join_job(coordinator, int(processes), int(place))
    with ends_with_job(), ends_in_one_line():
        if sys.argv[3] == "well":
            by_leader(find, config, folder / "job", workdir=folder / "job")
        else:
            fail_and_go_on(config, folder)


def fail_and_go_on(config, folder: Path) -> None:
    write = search_shards.write_shard
    for failing in (0, 1):
        search_shards.write_shard = no_room if job_place() == failing else write
        try:
            by_leader(find, config, folder / f"fails{failing}")
        except StageError as error:
            print(error)
    search_shards.write_shard = write
    by_leader(find, config, folder / "fails0")
    if job_place() == 1:
        search_jax._own_rows = no_memory
    by_leader(find, config, folder / "fails1")


if __name__ == "__main__":
    main()
