"""A search by others than the process that opened it: they open the same one, by names alone."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import functools
import json
from pathlib import Path
import threading

from tqdm import tqdm

from icl_jax.config import MeshConfig
from icl_jax.config.tree import from_dict, to_dict
from icl_jax.retrieval.search.pool import Pool
from icl_jax.retrieval.search.search import Search, SearchFolders, open_engine
from icl_jax.retrieval.search.selection import Selection
from icl_jax.retrieval.search.signatures import Signatures
from icl_jax.retrieval.vectors import Vectors
from icl_jax.workers.local import KeptOpen, Runner, progress_bar, run_shards

_searching = threading.Lock()  # a worker may have threads; one search keeps all cores busy


def run_elsewhere(
    function: Callable,
    tasks: Sequence[tuple],
    bar: tqdm,
    sizes: Sequence[int],
    search: Search,
    folder: Path,
    made_from: dict,
) -> list:
    """`function(search, *task)` for every task, by workers of Beam or by all hosts of a job.

    `folder` has the neighbours. `made_from` are the inputs of their step: another search in the
    same folders is another one. Hosts give `function` their `progress` too (`run_shards`).
    """
    described, runner = _describe(search, folder, made_from), search.runner
    if runner.kind != "beam":  # its workers in this process may be several
        _open_search.lend(described, search)
    company = functools.partial(_together, described) if search.whole_job else None
    calls = [(described, function, *task) for task in tasks]
    return run_shards(_call, calls, bar, sizes, runner, whole_host=True, company=company)


def ask(search: Search, folder: Path, made_from: dict, question: Callable, *arguments) -> object:
    """`question(search, *arguments)`: here, or where the pool lies on all hosts, by all of them."""
    if not search.whole_job:
        return question(search, *arguments)
    with progress_bar(disable=True) as bar:
        task = (question, *arguments)
        return run_elsewhere(_answer, [task], bar, [0], search, folder, made_from)[0]


def _answer(search: Search, question: Callable, *arguments) -> object:
    *arguments, _ = arguments  # there is no progress to tell
    return question(search, *arguments)


def _call(described: str, function: Callable, *arguments) -> object:
    """What is searched stays open for the next task."""
    with _searching:
        return function(_open_search(described), *arguments)


@contextlib.contextmanager
def _together(described: str, agree: Callable[[object], list]) -> Iterator[None]:
    """Around the tasks of a host: it compares the queries of others too, until all are done."""
    engine = _open_search(described).engine
    engine.agree = agree
    try:
        yield
        engine.serve()
    finally:
        engine.agree = None


def _describe(search: Search, folder: Path, made_from: dict) -> str:
    """All that a worker needs to open the same search."""
    same = search.selection.queries is search.pool.signatures
    return json.dumps(
        {
            "folder": str(folder),
            "vectors": str(search.pool.vectors.folder),
            "query_vectors": str(search.query_vectors.folder),
            "own_queries": not same,
            "config": to_dict(search.config),
            "made_from": made_from,
            "threads": search.runner.threads,
            "whole_job": search.whole_job,
        }
    )


@KeptOpen
def _open_search(described: str) -> Search:
    told = json.loads(described)
    config, places = from_dict(told["config"]), SearchFolders(Path(told["folder"]))
    seed = told["made_from"]["seed"]
    signatures = of_queries = Signatures.open(places.signatures)
    vectors = query_vectors = Vectors.open(Path(told["vectors"]))
    if told["own_queries"]:
        of_queries = Signatures.open(places.query_signatures)
        query_vectors = Vectors.open(Path(told["query_vectors"]))
    pool = Pool.open(places.pool, signatures, vectors)
    mesh = None
    if config.engine == "jax":
        from icl_jax.sharding import make_host_mesh, make_mesh

        mesh = (make_mesh if told["whole_job"] else make_host_mesh)(MeshConfig())
    runner = Runner(told["threads"])
    engine = open_engine(pool, config, places.index, seed, mesh, runner)
    return Search(Selection(of_queries, pool, config), query_vectors, engine, runner)
