"""The losses of a published or exported model on many passages, several to a row, on the mesh.

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

from icl_jax.config import ConfigError, ExamplesConfig, GPTConfig
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.example_design.gain_inputs import tokenizer_problem
from icl_jax.models import huggingface
from icl_jax.models.inputs import position_limit
from icl_jax.sharding import spec, use_mesh_of, with_auto_axes

DEVICE_TOKENS, CPU_TOKENS = 16384, 1024  # of a batch on each device, about
CHUNK_BYTES = 256 * 2**20  # of one chunk's float32 logits on one device
IN_FLIGHT = 2  # batches on the devices at a time


def check_gain_model(
    examples: ExamplesConfig, limit: int, tokenizer: Tokenizer | None = None
) -> None:
    """Stops on a model that cannot judge groups of `limit` tokens; reads no weights."""
    field = f"design.examples.gain_model: {examples.gain_model}"
    try:
        config = huggingface.read_config(examples.gain_model)
    except huggingface.FolderError as error:
        raise ConfigError(f"design.examples.gain_model: {error}") from None
    most, found = position_limit(config), []
    if most is not None and most < limit:
        found.append(
            f"it has {most} positions, fewer than the {limit} tokens of an example; lower "
            "design.examples.max_tokens, or choose another model"
        )
    masked = not isinstance(config, GPTConfig)
    if masked and not config.mlm_head:
        found.append("it has no MLM head, so it predicts no token; choose one that has")
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        found.append(
            f"it knows {config.vocab_size} tokens, but the tokenizer has {tokenizer.vocab_size}, "
            "its separator included; choose a model trained with this tokenizer "
            "(python -m icl_jax.training.export)"
        )
    elif tokenizer is not None and (problem := tokenizer_problem(examples.gain_model, tokenizer)):
        found.append(
            f"{problem}; choose a model trained with this tokenizer, or this model's tokenizer "
            "(design.tokenizer.folder)"
        )
    if tokenizer is not None and masked and tokenizer.mask_id is None:
        found.append(
            "it predicts masked tokens, but the tokenizer has no mask token; choose a GPT, or "
            "another tokenizer (design.tokenizer)"
        )
    if found:
        raise ConfigError("; ".join(f"{field}: {problem}" for problem in found))


class Passage(NamedTuple):
    """Tokens that see each other and nothing else."""

    inputs: np.ndarray  # int32
    targets: np.ndarray  # int32: what is to be predicted at each place
    chosen: np.ndarray  # bool: whether it counts
    owner: int  # whose loss it adds to


class GainModel:
    """A model that reads passages of at most `limit` tokens, compiled once."""

    def __init__(self, folder: str, limit: int, mesh: Mesh | None):
        self.limit, self._mesh = limit, None if mesh is None else with_auto_axes(mesh)
        self._model = huggingface.load(folder, self._mesh)
        self.masked = not isinstance(self._model.config, GPTConfig)
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
            return token_losses(model, model.hidden(inputs_BT, group_BT), targets_BT, chunk)

        self._step = step

    def losses(
        self,
        passages: Iterable[Passage],
        num_owners: int,
        progress: Callable[[int], None] = lambda count: None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of each owner: the sum of its losses in nats (float64), and of how many tokens."""
        sums, counts = np.zeros(num_owners), np.zeros(num_owners, np.int64)
        running: deque[tuple[list[list[Passage]], jax.Array]] = deque()

        def collect() -> None:
            rows, losses_BT = running.popleft()
            losses_BT = np.asarray(losses_BT, np.float64)
            for row, losses_T in zip(rows, losses_BT, strict=False):  # some rows may be empty
                end = 0
                for passage in row:
                    start, end = end, end + len(passage.inputs)
                    sums[passage.owner] += losses_T[start:end][passage.chosen].sum()
                    counts[passage.owner] += np.count_nonzero(passage.chosen)
            progress(sum(map(len, rows)))

        packed = pack(passages, self.limit)
        while rows := list(itertools.islice(packed, self.batch_size)):
            running.append((rows, self._launch(rows)))
            if len(running) > IN_FLIGHT:
                collect()
        while running:
            collect()
        return sums, counts

    def _launch(self, rows: list[list[Passage]]) -> jax.Array:
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


def pack(passages: Iterable[Passage], limit: int) -> Iterator[list[Passage]]:
    """Rows of at most `limit` tokens, in the order of the passages."""
    row, used = [], 0
    for passage in passages:
        if row and used + len(passage.inputs) > limit:
            yield row
            row, used = [], 0
        row.append(passage)
        used += len(passage.inputs)
    if row:
        yield row


def token_losses(model, hidden_BTD: jax.Array, targets_BT: jax.Array, chunk: int) -> jax.Array:
    """The cross-entropy of every target (batch, time), in chunks of time: never all logits."""
    length = targets_BT.shape[1]
    chunk = min(chunk, length)
    padding = -length % chunk
    hidden_BTD = jnp.pad(hidden_BTD, ((0, 0), (0, padding), (0, 0)))
    targets_BT = jnp.pad(targets_BT, ((0, 0), (0, padding)))

    def one_chunk(start: jax.Array) -> jax.Array:
        hidden_BCD = jax.lax.dynamic_slice_in_dim(hidden_BTD, start, chunk, axis=1)
        targets_BC = jax.lax.dynamic_slice_in_dim(targets_BT, start, chunk, axis=1)
        logits_BCV = model.logits(hidden_BCD)
        hit_BC = jnp.take_along_axis(logits_BCV, targets_BC[..., None], axis=-1)[..., 0]
        return jax.nn.logsumexp(logits_BCV, axis=-1) - hit_BC

    losses_NBC = jax.lax.map(one_chunk, jnp.arange(0, length + padding, chunk))
    return jnp.moveaxis(losses_NBC, 0, 1).reshape(targets_BT.shape)[:, :length]
