"""Runs GPT-2, RoBERTa or BERT on the mesh to make sentence vectors.

Each step has about `batch_tokens` tokens, in rows that several sentences share (`token_rows`), and
is compiled once for every row length. Token types are all 0. A text without tokens is a zero row.

Shape suffixes: B rows, T time, S slots (sentences of a row), D embed, W width of the vectors.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import functools

from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import numpy as np

from icl_jax.config import ConfigError, EncoderConfig, StageError
from icl_jax.models import GPT, Roberta, huggingface
from icl_jax.retrieval.encoders.folder import read_encoder_folder
from icl_jax.retrieval.encoders.sentence_recipe import DenseLayer, SentenceRecipe
from icl_jax.retrieval.encoders.token_rows import Batch, make_batches, num_slots, rows_of_batch
from icl_jax.sharding import constrain, spec, use_mesh_of, with_auto_axes

CHUNK = 8192  # sentences tokenized and packed together, while the devices run those before
CPU_BATCH_TOKENS = 1024  # of each device at most: 8192 leave the caches and take 1.3 x the time
IN_FLIGHT = 2  # batches on the devices at a time

_ACTIVATIONS = {
    "Identity": lambda x: x,
    "Tanh": jnp.tanh,
    "ReLU": jax.nn.relu,
    "GELU": functools.partial(jax.nn.gelu, approximate=False),
}


def open_transformer(config: EncoderConfig, mesh: Mesh | None) -> "TransformerEncoder":
    """The encoder of a folder."""
    folder = read_encoder_folder(config)
    identity = {**folder.identity(), "dtype": config.dtype}
    model = huggingface.load(folder.network, mesh, dtype=config.dtype)
    return TransformerEncoder(
        model, folder.recipe, mesh, str(folder.network), identity, config.batch_tokens
    )


class TransformerEncoder:
    """A network with what turns its layers into one vector per sentence."""

    def __init__(
        self,
        model: GPT | Roberta,  # on the shards of `mesh`
        recipe: SentenceRecipe,
        mesh: Mesh | None,
        name: str,  # of the network, for errors
        identity: dict,
        batch_tokens: int = EncoderConfig.batch_tokens,
    ):
        self.identity = identity
        self._model, self._recipe, self._name = model, recipe, name
        self._mesh = None if mesh is None else with_auto_axes(mesh)
        self._vocab_size = model.config.vocab_size
        self._pad_id = getattr(model.config, "pad_token_id", 0)
        self.width = _width(model.config.embed_dim, recipe, name)
        sizes = {} if mesh is None else mesh.shape
        self._divisor = sizes.get("data", 1) * sizes.get("fsdp", 1)
        self._batch_tokens = batch_tokens
        device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
        if device.platform == "cpu":
            self._batch_tokens = min(batch_tokens, CPU_BATCH_TOKENS * self._divisor)
        graphdef, self._params = nnx.split(model)
        edges = recipe.unpooled_edges()
        # Of a single layer there is nothing to average.
        first_last = recipe.first_last and model.config.num_layers > 1

        @jax.jit
        def step(params, tokens_BT, group_BT):
            model = nnx.merge(graphdef, params)
            hidden_BTD = model.hidden(tokens_BT, group_BT).astype(jnp.float32)
            if first_last:
                first_BTD = model.first_layer(tokens_BT, group_BT).astype(jnp.float32)
                hidden_BTD = (first_BTD + hidden_BTD) / 2
            vectors_BSW = pool(hidden_BTD, group_BT, recipe.poolings, edges)
            vectors_BSW = functools.reduce(_apply, recipe.after, vectors_BSW)
            return constrain(vectors_BSW, None, None, None)  # whole on every host

        self._step = step

    def compile(self, row_length: int) -> jax.stages.Compiled:
        """The step for rows of a length, also of an abstract model on a mesh that is not there."""
        rows = rows_of_batch(row_length, self._batch_tokens, self._divisor)
        place = NamedSharding(self._mesh, spec(("batch", None), (rows, row_length), self._mesh))
        array = jax.ShapeDtypeStruct((rows, row_length), jnp.int32, sharding=place)
        with jax.set_mesh(self._mesh):
            return self._step.lower(self._params, array, array).compile()

    def encode(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        """Float32 (n, width) in the order of the texts; `progress` hears of each part's size."""
        vectors = np.zeros((len(texts), self.width), np.float32)
        running: deque[tuple[np.ndarray, Batch, jax.Array]] = deque()

        def collect() -> None:
            ids, batch, result = running.popleft()
            vectors[ids] = np.asarray(result)[batch.rows, batch.slots]
            if progress:
                progress(len(ids))

        done = 0
        for start, batches in self._batches(texts):
            for batch in batches:
                running.append((start + batch.sentences, batch, self._launch(batch)))
                done += len(batch.sentences)
                if len(running) > IN_FLIGHT:
                    collect()
        while running:
            collect()
        if progress and done < len(texts):  # those without tokens
            progress(len(texts) - done)
        return vectors

    def _batches(self, texts: Sequence[str]) -> Iterator[tuple[int, list[Batch]]]:
        """Start of a chunk of texts and its batches; the next chunk is made meanwhile."""
        with concurrent.futures.ThreadPoolExecutor(1) as ahead:
            made = ahead.submit(self.pack, texts[:CHUNK])
            for start in range(0, len(texts), CHUNK):
                batches = made.result()
                made = ahead.submit(self.pack, texts[start + CHUNK : start + 2 * CHUNK])
                yield start, batches

    def pack(self, texts: Sequence[str]) -> list[Batch]:
        """The texts as token rows, as the devices will see them."""
        tokens = [e.ids for e in self._recipe.encode(texts)]
        highest = max((max(ids, default=0) for ids in tokens), default=0)
        if highest >= self._vocab_size:
            raise StageError(
                f"the tokenizer of {self._name} gives token {highest}, but the network "
                f"has only {self._vocab_size}; put the tokenizer.json of this network there"
            )
        return make_batches(tokens, self._batch_tokens, self._divisor, self._pad_id)

    def _launch(self, batch: Batch) -> jax.Array:
        arrays = batch.tokens_BT, batch.group_BT
        if self._mesh is not None:
            place = spec(("batch", None), batch.tokens_BT.shape, self._mesh)
            arrays = jax.device_put(arrays, NamedSharding(self._mesh, place))
        with use_mesh_of(self._model):
            return self._step(self._params, *arrays)


def _width(embed_dim: int, recipe: SentenceRecipe, name: str) -> int:
    """Of the vectors; stops on a layer after the pooling that takes another one."""
    width = embed_dim * len(recipe.poolings)
    for layer in recipe.after:
        if isinstance(layer, str):
            continue
        if layer.kernel.shape[0] != width:
            raise ConfigError(
                f"{name}: a Dense module takes vectors of width {layer.kernel.shape[0]}, but what "
                f"comes before it makes {width}"
            )
        width = layer.kernel.shape[1]
    return width


def pool(
    hidden_BTD: jax.Array,
    group_BT: jax.Array,
    poolings: tuple[str, ...],
    edges: tuple[int, int] = (0, 0),  # tokens left out before and behind each sentence
) -> jax.Array:
    """Float32 (row, slot, width): of each sentence its poolings one after the other."""
    hidden_BTD = hidden_BTD.astype(jnp.float32)
    slots_S = jnp.arange(1, num_slots(group_BT.shape[1]) + 1)
    here_BTS = group_BT[:, :, None] == slots_S
    if any(edges):
        place_BTS = jnp.cumsum(here_BTS, axis=1)  # from 1
        last_BTS = jnp.sum(here_BTS, axis=1, keepdims=True) - edges[1]
        here_BTS &= (place_BTS > edges[0]) & (place_BTS <= last_BTS)
    pooled = []
    for pooling in poolings:
        if pooling == "max":
            tokens_BTSD = jnp.where(here_BTS[..., None], hidden_BTD[:, :, None], -jnp.inf)
            best_BSD = jnp.max(tokens_BTSD, axis=1)
            pooled.append(jnp.where(jnp.any(here_BTS, axis=1)[..., None], best_BSD, 0.0))
        else:
            weights_BTS = _weights(here_BTS, pooling)
            pooled.append(jnp.einsum("bts,btd->bsd", weights_BTS, hidden_BTD, precision="highest"))
    return jnp.concatenate(pooled, axis=-1)


def _weights(here_BTS: jax.Array, pooling: str) -> jax.Array:
    """What each token adds to the vector of each sentence."""
    place_BTS = jnp.where(here_BTS, jnp.cumsum(here_BTS, axis=1), 0).astype(jnp.float32)  # from 1
    count_BTS = jnp.max(place_BTS, axis=1, keepdims=True)
    here_BTS = here_BTS.astype(jnp.float32)
    if pooling == "cls":
        return (place_BTS == 1.0).astype(jnp.float32)
    if pooling == "lasttoken":
        return here_BTS * (place_BTS == count_BTS).astype(jnp.float32)
    if pooling == "weightedmean":
        return place_BTS / jnp.maximum(jnp.sum(place_BTS, axis=1, keepdims=True), 1.0)
    power = 0.5 if pooling == "mean_sqrt_len_tokens" else 1.0
    return here_BTS / jnp.maximum(count_BTS, 1.0) ** power


def _apply(vectors_BSW: jax.Array, layer: DenseLayer | str) -> jax.Array:
    """A layer after the pooling."""
    if isinstance(layer, str):  # normalize
        lengths = jnp.linalg.norm(vectors_BSW, axis=-1, keepdims=True)
        return vectors_BSW / jnp.maximum(lengths, 1e-12)  # a zero vector stays one
    out = jnp.einsum("bsw,wv->bsv", vectors_BSW, layer.kernel, precision="highest")
    return _ACTIVATIONS[layer.activation](out if layer.bias is None else out + layer.bias)
