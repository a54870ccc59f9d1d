"""Continues prompts with a GPT and a key-value cache: the likeliest tokens, or drawn ones.

Prompts of similar length share a batch, padded on the left; a batch has one fixed shape, compiled
once for each bucket of prompt lengths and of new tokens. All tokens are decoded in one loop on the
devices; the host only interrupts it if it has to decide whether to stop.

Shape suffixes: B batch, T time of the prompts, N new tokens, S slots of the cache (T + N).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
import functools
from typing import NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
import numpy as np

from icl_jax.config import ConfigError
from icl_jax.evaluation.generation.sampling import Draws, Sampling, choose, make_draws
from icl_jax.models import GPT, Model, Roberta
from icl_jax.models.attention import Cache, Place, locate
from icl_jax.models.inputs import position_limit
from icl_jax.models.layers import make_cache
from icl_jax.sharding import constrain, state_shardings, use_mesh_of, with_auto_axes

SMALLEST_BUCKET = 16  # tokens; the others are its doubles
STEPS_BETWEEN_STOPS = 8  # new tokens between two questions whether to stop


class Generated(NamedTuple):
    """What came after a prompt."""

    tokens: np.ndarray  # int32, up to an end token and without it
    cut: int  # tokens of the prompt left out on the left, because positions ran out


class State(NamedTuple):
    """A batch on the devices."""

    cache: Cache | list[Cache]
    places: Place  # of all slots
    tokens_BN: jax.Array  # what came so far
    done_B: jax.Array
    step: jax.Array  # how many tokens came


class Generator:
    """Continues prompts with `model`, `batch_size` at a time, on its own mesh."""

    def __init__(
        self,
        model: GPT,
        mesh: Mesh | None = None,  # lay the model there first
        *,
        end_ids: Collection[int] = (),  # tokens that end a text
        batch_size: int = 32,
    ):
        check_can_generate(type(model))
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if mesh is not None:
            graphdef, params = nnx.split(model)
            shardings = state_shardings(params, with_auto_axes(mesh))
            model = nnx.merge(graphdef, jax.device_put(params, shardings))
        self._model = model
        self._end_ids = np.array(sorted(end_ids) or [-1], np.int32)  # -1 never comes
        sharding = jax.tree.leaves(nnx.state(model))[0].sharding
        sizes = sharding.mesh.shape if isinstance(sharding, NamedSharding) else {}
        parts = sizes.get("data", 1) * sizes.get("fsdp", 1)
        self._batch_size = -(-batch_size // parts) * parts  # each device has as many rows

    def generate(
        self,
        prompts: Sequence[np.ndarray],
        max_new_tokens: int,
        *,
        sampling: Sampling | None = None,
        stop_when: Callable[[np.ndarray], bool] | None = None,
        first: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> list[Generated]:
        """What comes after each prompt, in their order; without `sampling` the likeliest tokens.

        `stop_when` is asked of a row's new tokens, every few of them, whether that is enough.
        `first` is the number of the first prompt: draws depend on the seed and on a prompt's
        number, never on its batch. `progress` hears how many prompts each batch has finished.
        """
        kept, cuts = self._cut(prompts, max_new_tokens)
        results: list[Generated | None] = [None] * len(prompts)
        for length, members in self._batches(kept):
            rows = [kept[n] for n in members]
            draws = make_draws(sampling, self._fill([first + n for n in members]))
            with use_mesh_of(self._model):
                new = self._run(rows, length, max_new_tokens, draws, stop_when)
            for n, tokens in zip(members, new, strict=True):
                results[n] = Generated(tokens, cuts[n])
            if progress:
                progress(len(members))
        return results

    def _cut(self, prompts, max_new_tokens: int) -> tuple[list[np.ndarray], list[int]]:
        """The prompts as far as they fit, and how many tokens each has lost."""
        limit, vocab_size = position_limit(self._model.config), self._model.config.vocab_size
        if max_new_tokens < 1 or (limit is not None and max_new_tokens >= limit):
            most = "" if limit is None else f" and below the {limit} positions of the model"
            raise ValueError(f"max_new_tokens must be at least 1{most}, got {max_new_tokens}")
        kept = [_check_prompt(n, prompt, vocab_size) for n, prompt in enumerate(prompts)]
        if limit is None:
            return kept, [0] * len(kept)
        room = limit - max_new_tokens
        return [p[-room:] for p in kept], [max(0, len(p) - room) for p in kept]

    def _batches(self, prompts: list[np.ndarray]) -> Iterator[tuple[int, list[int]]]:
        """Bucket length and members, at most `batch_size`, of each batch."""
        buckets: dict[int, list[int]] = {}
        for n, prompt in enumerate(prompts):
            buckets.setdefault(bucket(len(prompt)), []).append(n)
        for length, members in sorted(buckets.items()):
            for start in range(0, len(members), self._batch_size):
                yield length, members[start : start + self._batch_size]

    def _fill(self, values: list[int]) -> np.ndarray:
        """The values of the rows, and 0 for those that idle."""
        return np.pad(np.array(values), (0, self._batch_size - len(values)))

    def _run(
        self, prompts: list[np.ndarray], length: int, max_new_tokens: int,
        draws: Draws | None, stop_when: Callable[[np.ndarray], bool] | None,
    ) -> list[np.ndarray]:  # fmt: skip
        """The new tokens of one batch."""
        tokens_BT = np.zeros((self._batch_size, length), np.int32)
        for row, prompt in enumerate(prompts):
            tokens_BT[row, length - len(prompt) :] = prompt
        lengths_B = self._fill([len(prompt) for prompt in prompts])
        fixed = self._model, self._end_ids, draws
        state = prefill(*fixed, tokens_BT, lengths_B, new_slots=bucket(max_new_tokens))
        counts = [max_new_tokens] * len(prompts)
        done_B = np.asarray(state.done_B)
        for step in _stops(max_new_tokens, stop_when is not None):
            state = decode(*fixed, state._replace(done_B=done_B), np.int32(step))
            tokens_BN, done_B = np.array(state.tokens_BN), np.array(state.done_B)
            for row in np.flatnonzero(~done_B) if step < max_new_tokens else ():
                if stop_when(tokens_BN[row, :step]):
                    counts[row], done_B[row] = step, True
            if done_B.all():
                break
        return [self._until_end(tokens_BN[row, :n]) for row, n in enumerate(counts)]

    def _until_end(self, tokens_N: np.ndarray) -> np.ndarray:
        ends = np.flatnonzero(np.isin(tokens_N, self._end_ids))
        return tokens_N[: ends[0]] if len(ends) else tokens_N


def check_can_generate(kind: type[Model]) -> None:
    """Stops on a kind of model that cannot continue a text."""
    if not issubclass(kind, GPT):
        why = " predicts masked tokens and" if issubclass(kind, Roberta) else ""
        raise ConfigError(f"a {kind.__name__} model{why} cannot generate; choose a GPT")


def _check_prompt(n: int, prompt: np.ndarray, vocab_size: int) -> np.ndarray:
    prompt = np.asarray(prompt)
    if prompt.size == 0:
        raise ValueError(f"prompt {n} is empty; begin it with the end-of-text token")
    if prompt.ndim != 1 or not np.issubdtype(prompt.dtype, np.integer):
        raise ValueError(
            f"a prompt must be a row of token ids, got {prompt.dtype} {prompt.shape} for prompt {n}"
        )
    if prompt.min() < 0 or prompt.max() >= vocab_size:
        raise ValueError(
            f"token ids must be within 0..{vocab_size - 1}, got {prompt.min()} to {prompt.max()} "
            f"in prompt {n}; was the text tokenized for this model?"
        )
    return prompt.astype(np.int32)


def bucket(length: int) -> int:
    """The smallest power of two, from the smallest bucket on, that holds so many tokens."""
    return max(SMALLEST_BUCKET, 1 << (length - 1).bit_length())


def _stops(max_new_tokens: int, asked: bool) -> list[int]:
    """The numbers of new tokens after which the devices return what they have."""
    between = range(STEPS_BETWEEN_STOPS, max_new_tokens, STEPS_BETWEEN_STOPS) if asked else ()
    return [*between, max_new_tokens]


@functools.partial(jax.jit, static_argnames="new_slots")
def prefill(
    model: GPT, end_ids, draws: Draws | None, tokens_BT, lengths_B, *, new_slots: int
) -> State:
    """Reads the prompts, which are at the right of their rows, and returns the first new token."""
    batch, length = tokens_BT.shape
    slots = length + new_slots
    group_BS = jnp.arange(slots) >= length - lengths_B[:, None]
    places = locate(slots, group_BS.astype(jnp.int32))
    tokens_BT = constrain(tokens_BT, "batch", None)
    logits_BV, cache = model.extend(tokens_BT, places, 0, make_cache(model.config, batch, slots))
    tokens_BN = jnp.zeros((batch, new_slots), jnp.int32)
    state = State(cache, places, tokens_BN, lengths_B == 0, jnp.int32(0))
    return _whole(_append(state, logits_BV, end_ids, draws))


@functools.partial(jax.jit, donate_argnames="state")
def decode(model: GPT, end_ids, draws: Draws | None, state: State, stop) -> State:
    """Continues until there are `stop` tokens, or all rows are done."""
    prompt_slots = state.places.index_T.shape[0] - state.tokens_BN.shape[1]

    def step(state: State) -> State:
        last_B1 = jax.lax.dynamic_slice_in_dim(state.tokens_BN, state.step - 1, 1, axis=1)
        slot = prompt_slots + state.step - 1
        logits_BV, cache = model.extend(last_B1, state.places, slot, state.cache)
        return _append(state._replace(cache=cache), logits_BV, end_ids, draws)

    return _whole(jax.lax.while_loop(lambda s: (s.step < stop) & ~jnp.all(s.done_B), step, state))


def _append(state: State, logits_BV, end_ids, draws: Draws | None) -> State:
    token_B = choose(logits_BV, draws, state.step)
    done_B = state.done_B | jnp.any(token_B[:, None] == end_ids, axis=-1)
    tokens_BN = jax.lax.dynamic_update_slice_in_dim(
        state.tokens_BN, token_B[:, None], state.step, axis=1
    )
    return state._replace(tokens_BN=tokens_BN, done_B=done_B, step=state.step + 1)


def _whole(state: State) -> State:
    """Every device holds what the host reads."""
    tokens_BN, done_B = constrain(state.tokens_BN, None, None), constrain(state.done_B, None)
    return state._replace(tokens_BN=tokens_BN, done_B=done_B)
