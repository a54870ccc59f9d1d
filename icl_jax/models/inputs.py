"""Checks of a model's inputs: shapes always, values wherever they are known."""

import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import ModelConfig


def parameter_dtype(dtype: str) -> jnp.dtype:
    """The dtype of parameters and logits in a network that computes in `dtype`."""
    return jnp.float64 if dtype == "float64" else jnp.float32


def position_limit(config: ModelConfig) -> int | None:
    """How many positions the model has; None: no limit."""
    return config.context_length if getattr(config, "position", None) == "learned" else None


def check_tokens(tokens, group, vocab_size: int, limit: int | None, offset=None):
    """Tokens and groups as int32 arrays; stops on impossible ids, shapes or lengths."""
    _check_integers("tokens", tokens)
    _check_range("token ids", tokens, vocab_size, "was the text tokenized for this model?")
    return jnp.asarray(tokens, jnp.int32), check_group(group, tokens.shape, limit, offset)


def check_offset(offset):
    """The position of the first token of each group as an array, or None."""
    if offset is None:
        return None
    offset = jnp.asarray(offset, jnp.int32)
    if offset.shape != ():
        raise ValueError(f"offset must be one whole number, got an array of {offset.shape}")
    if _values_known(offset) and int(offset) < 0:
        raise ValueError(f"offset must be at least 0, got {int(offset)}")
    return offset


def check_raw(raw, kernel_size: int, input_dim: int, dtype: str):
    """The input of a convolution, and the (batch, time) of its output."""
    raw = jnp.asarray(raw, parameter_dtype(dtype))
    if raw.ndim != 3 or raw.shape[2] != input_dim or raw.shape[1] % kernel_size:
        raise ValueError(
            f"inputs of a convolution must be (batch, a multiple of kernel_size {kernel_size}, "
            f"input_dim {input_dim}), got {raw.shape}"
        )
    return raw, (raw.shape[0], raw.shape[1] // kernel_size)


def check_group(group, shape: tuple[int, int], limit: int | None, offset=None):
    """Groups as an int32 array or None; stops on a group with more tokens than positions.

    `offset` is the position of the first token of each group.
    """
    length = shape[1]
    first = int(offset) if offset is not None and _values_known(offset) else 0
    start = f" from position {first} on" if first else ""
    if group is None:
        if limit is not None and first + length > limit:
            raise ValueError(
                f"rows have {length} tokens{start}, but the model has {limit} positions"
            )
        return None
    _check_integers("group", group, shape)
    if _values_known(group):
        rows = np.asarray(group)
        wrong = rows[(rows < 0) | (rows > np.iinfo(np.int32).max)]
        if wrong.size:
            raise ValueError(
                f"group ids must be 1 to {np.iinfo(np.int32).max}, or 0 for padding, got {wrong[0]}"
            )
        for row in rows if limit is not None and first + length > limit else ():
            ids, counts = np.unique(row[row > 0], return_counts=True)
            if first + counts.max(initial=0) > limit:
                raise ValueError(
                    f"group {ids[counts.argmax()]} has {counts.max()} tokens{start}, "
                    f"but the model has {limit} positions"
                )
    return jnp.asarray(group, jnp.int32)


def check_token_types(token_types, shape: tuple[int, int], rows: int):
    """Token types as an int32 array; None becomes all 0."""
    if token_types is None:
        return jnp.zeros(shape, jnp.int32)
    _check_integers("token_types", token_types, shape)
    _check_range("token types", token_types, rows, "set token_types to as many as the text has")
    return jnp.asarray(token_types, jnp.int32)


def check_sentences(sentence, association, shape: tuple[int, int, int], dtype: str):
    """Sentence marks and the pair (a, b) of the sentence association as arrays."""
    if sentence is None or association is None:
        raise ValueError("sentence association needs both `sentence` and `association`")
    _check_integers("sentence", sentence, shape[:2])
    _check_range("sentence marks", sentence, 3, "1 is the first, 2 the second, 0 neither")
    association = jnp.asarray(association, parameter_dtype(dtype))
    if association.shape != (2, shape[2]):
        raise ValueError(f"association must be (2, {shape[2]}): a and b, got {association.shape}")
    return jnp.asarray(sentence, jnp.int32), association


def _check_integers(name: str, ids, shape: tuple[int, ...] | None = None) -> None:
    if not isinstance(ids, np.ndarray | jax.Array):
        raise ValueError(f"{name} must be a NumPy or JAX array, got {type(ids).__name__}")
    if not jnp.issubdtype(ids.dtype, jnp.integer) or ids.ndim != 2 or ids.size == 0:
        raise ValueError(
            f"{name} must be an integer array (batch, time), got {ids.dtype} {ids.shape}"
        )
    if shape is not None and ids.shape != tuple(shape):
        raise ValueError(
            f"{name} must have the shape of the tokens {tuple(shape)}, got {ids.shape}"
        )


def _check_range(name: str, ids, size: int, hint: str) -> None:
    if not _values_known(ids):
        return
    ids = np.asarray(ids)
    wrong = np.argwhere((ids < 0) | (ids >= size))
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        raise ValueError(
            f"{name} must be within 0..{size - 1}, got {ids[place]} at {place}; {hint}"
        )


def _values_known(array) -> bool:
    """False while tracing, and for arrays that are partly on other hosts."""
    if isinstance(array, jax.core.Tracer):
        return False
    return not isinstance(array, jax.Array) or array.is_fully_addressable
