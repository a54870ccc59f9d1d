"""The losses of a model on many passages, several per row, on the mesh.

Shape suffixes: B rows, T time, C time of one chunk, D embed, V vocab.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
import itertools
from typing import NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import numpy as np

from icl_jax.models import Model
from icl_jax.models.kinds import predicts_masked
from icl_jax.sharding import constrain, spec, use_mesh_of, with_auto_axes

DEVICE_TOKENS, CPU_TOKENS = 16384, 1024  # approximate tokens of a batch on each device
CHUNK_BYTES = 256 * 2**20  # of one chunk's float32 logits on one device
IN_FLIGHT = 2  # batches on the devices at a time
REMEMBERED_TOKENS = 2**22  # of passages whose losses are kept for reuse: about 55 MB
ROW_STEP = 128  # the length of a row is a multiple of this, or all positions


class Passage(NamedTuple):
    """Tokens that see each other and nothing else."""

    inputs: np.ndarray  # int32
    targets: np.ndarray  # int32: the token to predict at each place
    chosen: np.ndarray  # bool: whether the place counts
    owner: int  # whose loss it adds to


class Losses(NamedTuple):
    """The losses of each owner, over its chosen tokens."""

    sums: np.ndarray  # float64, nats
    counts: np.ndarray  # int64
    greedy: np.ndarray  # bool: every chosen token was the most likely one


class PassageLosses:
    """A model that reads passages of at most `limit` tokens, compiled once."""

    def __init__(self, model: Model, limit: int, mesh: Mesh | None):
        self.limit, self._mesh = limit, None if mesh is None else with_auto_axes(mesh)
        self._model = model
        self.masked = predicts_masked(self._model.config)
        sizes = {} if mesh is None else mesh.shape
        parts = sizes.get("data", 1) * sizes.get("fsdp", 1)
        device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
        tokens = CPU_TOKENS if device.platform == "cpu" else DEVICE_TOKENS
        rows = max(1, tokens // limit)
        self.batch_size = rows * parts
        chunk = max(1, CHUNK_BYTES // (4 * rows * self._model.config.vocab_size))
        graphdef, self._params = nnx.split(self._model)

        @jax.jit
        def step(params, inputs_BT, group_BT, targets_BT):
            model = nnx.merge(graphdef, params)
            found = token_losses(model, model.hidden(inputs_BT, group_BT), targets_BT, chunk)
            return tuple(constrain(x_BT, None, None) for x_BT in found)  # every host reads all

        self._step = step

    def losses(
        self,
        passages: Iterable[Passage],
        num_owners: int,
        progress: Callable[[int], None] = lambda count: None,
    ) -> Losses:
        """The losses of `num_owners` owners; calls `progress` for each finished passage."""
        sums, counts = np.zeros(num_owners), np.zeros(num_owners, np.int64)
        greedy = np.ones(num_owners, bool)
        for passage, losses, likeliest in self.each(passages):
            sums[passage.owner] += losses.sum()
            counts[passage.owner] += len(losses)
            greedy[passage.owner] &= likeliest.all()
            progress(1)
        return Losses(sums, counts, greedy)

    def each(self, passages: Iterable[Passage]) -> Iterator[tuple[Passage, np.ndarray, np.ndarray]]:
        """Yields each passage, the losses of its chosen tokens (float64, nats), and whether each
        of them was the most likely one.

        The last bits depend on the place in a row and on the CPU, so equal passages are computed
        once (unless more than `REMEMBERED_TOKENS` are between them) and get equal losses.
        """
        turn: deque[tuple[Passage, list]] = deque()  # a list is filled once its losses are there
        asked: deque[list] = deque()  # the lists that the rows fill, in order
        known: dict[bytes, list] = {}

        def distinct() -> Iterator[Passage]:
            for passage in passages:
                key = passage.inputs.tobytes() + passage.targets.tobytes()
                new = key not in known
                turn.append((passage, known.setdefault(key, [])))
                if new:
                    asked.append(known[key])
                    if len(known) > max(1, REMEMBERED_TOKENS // self.limit):
                        del known[next(iter(known))]
                    yield passage

        running: deque[tuple[list[list[Passage]], tuple[jax.Array, jax.Array]]] = deque()
        packed = pack(distinct(), self.limit)
        while True:
            if rows := list(itertools.islice(packed, self.batch_size)):
                running.append((rows, self._launch(rows)))
            if running and (not rows or len(running) > IN_FLIGHT):
                for found in _unpack(*running.popleft()):
                    asked.popleft().extend(found)
            while turn and turn[0][1]:
                passage, (losses, likeliest) = turn.popleft()
                chosen = passage.chosen
                yield passage, losses[chosen].astype(np.float64), likeliest[chosen]
            if not rows and not running:
                return

    def _launch(self, rows: list[list[Passage]]) -> tuple[jax.Array, jax.Array]:
        arrays = np.zeros((3, self.batch_size, self.limit), np.int32)
        inputs_BT, group_BT, targets_BT = arrays
        for row, passages in enumerate(rows):
            end = 0
            for group, passage in enumerate(passages, start=1):
                start, end = end, end + len(passage.inputs)
                inputs_BT[row, start:end] = passage.inputs
                targets_BT[row, start:end] = passage.targets
                group_BT[row, start:end] = group
        batch = inputs_BT, group_BT, targets_BT
        if self._mesh is not None:
            place = spec(("batch", None), inputs_BT.shape, self._mesh)
            batch = jax.device_put(batch, NamedSharding(self._mesh, place))
        with use_mesh_of(self._model):
            return self._step(self._params, *batch)


def row_length(longest: int, positions: int) -> int:
    """The `limit` for passages of at most `longest` tokens; few lengths mean few compilations."""
    return min(positions, -(-longest // ROW_STEP) * ROW_STEP)


def ask(tokens: np.ndarray, chosen: np.ndarray, owner: int, mask_id: int | None = None) -> Passage:
    """The passage that measures the losses of the chosen tokens.

    Without `mask_id` it is for a GPT, which predicts the next token and so never the first.
    """
    if mask_id is None:
        return Passage(tokens, np.roll(tokens, -1), np.append(chosen[1:], False), owner)
    return Passage(np.where(chosen, np.int32(mask_id), tokens), tokens, chosen, owner)


def pack(passages: Iterable[Passage], limit: int) -> Iterator[list[Passage]]:
    """Rows of at most `limit` tokens, in the order of the passages."""
    row, used = [], 0
    for passage in passages:
        if len(passage.inputs) > limit:
            raise ValueError(f"a passage has {len(passage.inputs)} tokens, but a row only {limit}")
        if row and used + len(passage.inputs) > limit:
            yield row
            row, used = [], 0
        row.append(passage)
        used += len(passage.inputs)
    if row:
        yield row


def _unpack(rows: list[list[Passage]], found: tuple[jax.Array, jax.Array]) -> Iterator[tuple]:
    """For each passage in the rows: the losses of all tokens, and which were the most likely."""
    losses_BT, top_BT = (np.asarray(x_BT) for x_BT in found)
    for n, row in enumerate(rows):
        end = 0
        for passage in row:
            start, end = end, end + len(passage.inputs)
            yield losses_BT[n, start:end].copy(), top_BT[n, start:end].copy()


def token_losses(
    model, hidden_BTD: jax.Array, targets_BT: jax.Array, chunk: int
) -> tuple[jax.Array, jax.Array]:
    """The cross-entropy of every target (batch, time), and whether it is the most likely token.

    Computed in chunks of time, so that the logits never exist all at once.
    """
    length = targets_BT.shape[1]
    chunk = min(chunk, length)
    padding = -length % chunk
    hidden_BTD = jnp.pad(hidden_BTD, ((0, 0), (0, padding), (0, 0)))
    targets_BT = jnp.pad(targets_BT, ((0, 0), (0, padding)))

    def one_chunk(start: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden_BCD = jax.lax.dynamic_slice_in_dim(hidden_BTD, start, chunk, axis=1)
        targets_BC = jax.lax.dynamic_slice_in_dim(targets_BT, start, chunk, axis=1)
        logits_BCV = model.logits(hidden_BCD)
        hit_BC = jnp.take_along_axis(logits_BCV, targets_BC[..., None], axis=-1)[..., 0]
        top_BC = hit_BC == jnp.max(logits_BCV, axis=-1)
        return jax.nn.logsumexp(logits_BCV, axis=-1) - hit_BC, top_BC

    chunks = jax.lax.map(one_chunk, jnp.arange(0, length + padding, chunk))
    losses_BT, top_BT = (
        jnp.moveaxis(x_NBC, 0, 1).reshape(targets_BT.shape)[:, :length] for x_NBC in chunks
    )
    return losses_BT, top_BT
