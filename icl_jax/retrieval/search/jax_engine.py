"""Candidates by brute force on the devices: the pool's rows cut over the mesh, queries streamed.

Exact with `jax.lax.top_k`; on a TPU `jax.lax.approx_max_k` is nearly as good and much faster.
Q queries of a block, q of them on a device, C chunks of the pool, R rows of a chunk, D width,
K candidates.
"""

import copy
import functools

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from icl_jax.config import ConfigError, MeshConfig, SearchConfig
from icl_jax.retrieval.vectors import Vectors
from icl_jax.sharding import make_mesh
from icl_jax.workers.job import gather

QUERIES = 1024  # of one block; smaller blocks are padded, so that one compiled program serves all
_CHUNK = 65_536  # rows that a device compares at once: 268 MB of scores
_APPROXIMATE_FROM = 1_000_000  # rows, for index 'auto' on a TPU; elsewhere it would gain nothing
_RECALL_TARGET = 0.98  # of each approximate step


class JaxSearch:
    """The rows `ids` of the pool on the devices of a mesh.

    On a mesh of several hosts each host has its own queries, and all devices compare the queries of
    all: every host asks (`candidates`) as often as the others, for as many candidates.
    """

    def __init__(self, vectors: Vectors, ids: np.ndarray, config: SearchConfig, mesh: Mesh | None):
        check_memory(len(ids), vectors.width, mesh, config)
        self.ids, self.mesh, self.width = ids, mesh, vectors.width
        large = len(ids) >= _APPROXIMATE_FROM and mesh.devices.flat[0].platform == "tpu"
        by_size = "approximate" if large else "exact"
        self.index = by_size if config.index == "auto" else config.index
        self.first_count = first_count(config)
        shape = _shape(len(ids), vectors.width, mesh)
        self.bytes_per_device = 4 * int(np.prod(shape)) // mesh.size
        self.pool = jax.make_array_from_callback(
            shape,
            _split(mesh),
            lambda part: _read_chunks(vectors, ids, *part[0].indices(shape[0])[:2], shape[1]),
        )

    def describe(self) -> dict:
        """What the results of a step say about the search."""
        return {
            "index": self.index,
            "devices": self.mesh.size,
            "bytes_per_device": self.bytes_per_device,
        }

    def exact(self) -> "JaxSearch":
        """Exact brute force over the same rows."""
        other = copy.copy(self)
        other.index = "exact"
        return other

    def candidates(self, queries: np.ndarray, count: int) -> np.ndarray:
        """Ids of the `count` nearest of each query, nearest first; -1 where there are none."""
        exact, size = self.index == "exact", _of_host(self.mesh)
        blocks = -(-max(1, len(queries)) // size)
        if self.mesh.is_multi_process:  # equal rounds: a host with fewer queries pads with zeros
            blocks = max(gather("blocks of queries", blocks))
        own, found = np.zeros((blocks * size, self.width), np.float32), []
        own[: len(queries)] = queries
        for start in range(0, len(own), size):
            block_QD = _place_block(own[start : start + size], self.mesh)
            found.append(_nearest(self.pool, block_QD, self.mesh, len(self.ids), count, exact))
        rows = np.concatenate([_own_rows(block_QK) for block_QK in found])[: len(queries)]
        return np.where(rows < 0, -1, self.ids[rows])


def first_count(config: SearchConfig) -> int:
    """Candidates that a query asks for at first; some will be excluded."""
    return 4 * config.neighbours + 24


def compile_search(
    num_rows: int, width: int, config: SearchConfig, mesh: Mesh, exact: bool
) -> jax.stages.Compiled:
    """The step of a block of queries, for a pool and a mesh that need not exist."""
    arrays = (
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=_split(mesh))
        for shape in (_shape(num_rows, width, mesh), (_of_device(mesh) * mesh.size, width))
    )
    return _nearest.lower(*arrays, mesh, num_rows, first_count(config), exact).compile()


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _nearest(
    pool_CRD: jax.Array, queries_QD: jax.Array, mesh: Mesh, num_rows: int, count: int, exact: bool
) -> jax.Array:
    """Rows of the nearest to each query over all devices; -1 behind the last row."""
    axes = mesh.axis_names

    def of_device(pool_CRD: jax.Array, queries_qD: jax.Array) -> jax.Array:
        queries_QD = jax.lax.all_gather(queries_qD, axes, tiled=True)
        chunks, height, _ = pool_CRD.shape
        first_row = jax.lax.axis_index(axes) * (chunks * height)
        first_rows_C = first_row + height * jnp.arange(chunks, dtype=jnp.int32)
        compare = functools.partial(
            _compare_chunk, queries_QD=queries_QD, num_rows=num_rows, exact=exact
        )
        nothing = (
            jnp.full((len(queries_QD), count), -jnp.inf),
            jnp.full((len(queries_QD), count), -1, jnp.int32),
        )
        best, _ = jax.lax.scan(compare, nothing, (pool_CRD, first_rows_C))
        # Each device gets what all found for its own queries, in the order of the pool.
        return _best(*(jax.lax.all_to_all(x, axes, 0, 1, tiled=True) for x in best), count)[1]

    split = PartitionSpec(axes)
    # check_vma: the scan begins with what is the same on all devices.
    search = jax.shard_map(
        of_device, mesh=mesh, in_specs=(split, split), out_specs=split, check_vma=False
    )
    return search(pool_CRD, queries_QD)


def _compare_chunk(best, chunk, *, queries_QD: jax.Array, num_rows: int, exact: bool):
    """The best so far, (scores, rows), and those of one more chunk of the pool."""
    pool_RD, first_row = chunk
    # Float32 throughout where the answer is to be exact: a TPU would multiply in bfloat16.
    precision = jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT
    scores_QR = jnp.einsum("qd,rd->qr", queries_QD, pool_RD, precision=precision)
    rows_R = first_row + jnp.arange(len(pool_RD), dtype=jnp.int32)
    scores_QR = jnp.where(rows_R < num_rows, scores_QR, -jnp.inf)
    count = best[0].shape[1]
    size = min(count, len(pool_RD))
    if exact:
        scores_QK, place_QK = jax.lax.top_k(scores_QR, size)
    else:
        scores_QK, place_QK = jax.lax.approx_max_k(scores_QR, size, recall_target=_RECALL_TARGET)
    both = (
        jnp.concatenate([best[0], scores_QK], axis=1),
        jnp.concatenate([best[1], first_row + place_QK], axis=1),
    )
    return _best(*both, count), None


def _best(scores_QN: jax.Array, rows_QN: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    scores_QK, place_QK = jax.lax.top_k(scores_QN, count)
    rows_QK = jnp.take_along_axis(rows_QN, place_QK, axis=1)
    return scores_QK, jnp.where(scores_QK > -jnp.inf, rows_QK, -1)


def _read_chunks(
    vectors: Vectors, ids: np.ndarray, first: int, last: int, chunk: int
) -> np.ndarray:
    """Chunks first .. last - 1 of the pool, zeros behind its end; a host reads only its own."""
    out = np.zeros(((last - first) * chunk, vectors.width), np.float32)
    rows = ids[first * chunk : last * chunk]
    out[: len(rows)] = vectors.take(rows)
    return out.reshape(last - first, chunk, vectors.width)


def choose_mesh(
    count: int, width: int, config: SearchConfig, mesh: Mesh | None, with_others: bool
) -> Mesh:
    """This host's mesh if each holds the pool (then no query has to travel), else that of the job.

    `with_others`: whether all hosts of a job search here.
    """
    alone = not with_others or mesh is None
    if not alone:  # hosts may have devices of different sizes
        fits = _needed(count, width, mesh) <= _memory(mesh, config)
        alone = all(gather("who can hold the pool", int(fits)))
    if alone:
        check_memory(count, width, mesh, config)
        return mesh
    everyone = make_mesh(MeshConfig())
    check_memory(count, width, everyone, config)
    return everyone


def check_memory(count: int, width: int, mesh: Mesh | None, config: SearchConfig) -> None:
    """Stops if the pool is larger than the devices' memory."""
    if mesh is None:
        raise ConfigError("search.engine 'jax' needs a mesh, got None; use sharding.make_mesh")
    needed, room = _needed(count, width, mesh), _memory(mesh, config)
    if needed > room:
        raise ConfigError(
            f"search.engine 'jax' needs {needed / 1e9:.3g} GB on each of {mesh.size} devices for "
            f"{count:,} vectors, but each has {room / 1e9:.3g} GB; use at least "
            f"{-(-needed * mesh.size // room)} devices, or search.engine 'faiss' (on a CPU, "
            "search.memory_gigabytes is what all devices of a host share)"
        )


def _needed(count: int, width: int, mesh: Mesh) -> int:
    """Bytes on each device: its part of the pool, and the scores of one chunk."""
    shape = _shape(count, width, mesh)
    return 4 * int(np.prod(shape)) // mesh.size + 4 * QUERIES * shape[1]


def _shape(count: int, width: int, mesh: Mesh) -> tuple[int, int, int]:
    """(chunks, rows of a chunk, width) of the pool, with as many chunks on each device."""
    rows = max(1, -(-count // mesh.size))
    chunk = min(_CHUNK, rows)
    return mesh.size * -(-rows // chunk), chunk, width


def _memory(mesh: Mesh, config: SearchConfig) -> float:
    """Bytes of one device; CPU devices of a host share what the config allows."""
    stats = mesh.local_devices[0].memory_stats() or {}
    return stats.get("bytes_limit", 1e9 * config.memory_gigabytes / len(mesh.local_devices))


def _split(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


def _of_device(mesh: Mesh) -> int:
    """Queries of a block on one device."""
    return -(-QUERIES // mesh.size)


def _of_host(mesh: Mesh) -> int:
    """Queries of a block that are this host's."""
    return _of_device(mesh) * len(mesh.local_devices)


def _place_block(own_QD: np.ndarray, mesh: Mesh) -> jax.Array:
    """A block of the queries of all hosts; this one fills in its own."""
    shape, size = (_of_device(mesh) * mesh.size, own_QD.shape[1]), _of_device(mesh)
    places = _split(mesh).addressable_devices_indices_map(shape).values()
    starts = sorted(place[0].indices(shape[0])[0] for place in places)

    def part(place: tuple[slice, ...]) -> np.ndarray:
        at = size * starts.index(place[0].indices(shape[0])[0])
        return own_QD[at : at + size]

    return jax.make_array_from_callback(shape, _split(mesh), part)


def _own_rows(rows_QK: jax.Array) -> np.ndarray:
    """The rows that a block found for the queries of this host."""
    parts = sorted(rows_QK.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in parts])
