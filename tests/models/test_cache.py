"""A GPT that reads a text in parts, through its cache, says what it says of the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.config import GPTConfig
from icl_jax.models.attention import locate
from icl_jax.models.layers import make_cache
from tests.models.small import make_model

pytestmark = pytest.mark.delicate

SMALL = {"vocab_size": 31, "context_length": 23, "num_layers": 2, "embed_dim": 12, "num_heads": 3}
TOKENS = np.random.default_rng(0).integers(0, 31, (3, 13)).astype(np.int32)
GROUP = (np.arange(13) >= np.array([[0], [4], [6]])).astype(np.int32)  # padded on the left
READ = 7  # tokens read at once; the others come one by one
SLOTS = 19  # more than there are tokens

OPTIONS = {  # of position
    "learned": {"scan_layers": True, "embedding_rank": 5, "position_rank": 3},
    "sinusoidal": {"scan_layers": True, "tie_head": False},
    "linear": {"num_layers": 1, "head_dim": 7},
    "none": {"num_layers": 1, "dtype": "bfloat16"},
    "alibi": {"num_layers": 1, "norm": "none", "mlp_layers": 2},
    "rotary": {},
}


@jax.jit
def logits_in_parts(model, tokens_BT, group_BT):
    """The logits after each token from the last of those read at once."""
    batch, length = tokens_BT.shape
    more = jnp.ones((batch, SLOTS - length), jnp.int32)
    places = locate(SLOTS, jnp.concatenate([group_BT, more], axis=1))
    cache = make_cache(model.config, batch, SLOTS)
    first, cache = model.extend(tokens_BT[:, :READ], places, 0, cache)

    def step(cache, slot):
        token = jax.lax.dynamic_slice_in_dim(tokens_BT, slot, 1, axis=1)
        logits, cache = model.extend(token, places, slot, cache)
        return cache, logits

    _, later = jax.lax.scan(step, cache, jnp.arange(READ, length))
    return jnp.concatenate([first[None], later]).transpose(1, 0, 2)


@pytest.mark.parametrize("position", OPTIONS)
def test_logits_through_the_cache_are_those_of_the_whole_row(position):
    config = GPTConfig(**(SMALL | OPTIONS[position]), position=position)
    model = make_model(config)
    whole = np.asarray(model(TOKENS, GROUP))[:, READ - 1 :]
    got = logits_in_parts(model, TOKENS, GROUP)
    assert got.dtype == np.float32
    rounding = 1e-5 if config.dtype == "float32" else 0.02
    np.testing.assert_allclose(got, whole, atol=rounding * np.abs(whole).max())


def test_the_cache_has_the_type_of_the_products():
    shapes = jax.eval_shape(lambda: make_cache(GPTConfig(**SMALL, dtype="bfloat16"), 2, 5))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(shapes)} == {"bfloat16"}
