"""What each process of the job in `test_search_of_a_job.py` runs.

python tests/retrieval/search_of_a_job.py CONFIG WORKDIR HOW --coordinator=...
"""

from pathlib import Path
import pickle
import sys

from icl_jax.cli import ends_in_one_line
from icl_jax.config import StageError
from icl_jax.design.stage import find_related
from icl_jax.retrieval.search import jax_engine as search_jax
from icl_jax.retrieval.search import search as search_shards
from icl_jax.workers.job import ends_with_job, job_place, join_job


def no_room(*arguments) -> None:
    raise StageError("there is no room on the disk")


def no_memory(*arguments) -> None:
    raise RuntimeError("there is no memory on the device")


def main() -> None:
    config, workdir, how = pickle.loads(Path(sys.argv[1]).read_bytes()), *sys.argv[2:4]
    coordinator, processes, place = (argument.partition("=")[2] for argument in sys.argv[4:])
    join_job(coordinator, int(processes), int(place))
    with ends_with_job(), ends_in_one_line():
        if how == "no_room" and job_place() == 1:
            search_shards.write_shard = no_room
        if how == "no_memory" and job_place() == 1:
            search_jax._own_rows = no_memory
        if how == "larger" and job_place() == 1:  # its devices could hold the pool alone
            of_others = search_jax._memory
            search_jax._memory = lambda *arguments: int(processes) * of_others(*arguments)
        find_related(config, workdir)


if __name__ == "__main__":
    main()
