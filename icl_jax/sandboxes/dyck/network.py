"""Two networks for brackets: one whose first layer is minimal, and an ordinary small GPT.

The first sees (type, depth) tokens and has one layer of attention, a layer norm and a head: that
is assumption 10 of Liu 2024, whose first layer is written down and not trained.
Shape suffixes: B batch, T queries, S keys, M (type, depth) tokens, E their embedding, D width.
"""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import ConfigError, GPTConfig
from icl_jax.models.attention import locate, weigh
from icl_jax.models.gpt import GPT
from icl_jax.models.layers import LayerNorm
from icl_jax.sandboxes.dyck.language import START, Dyck

# Equations 3.37, 3.38 and 3.39.
FORMS = ("pairs", "types and depths", "types and angles")
MOST_POSITIONS = 6000  # the last position of linear positions, in the authors' code
EPSILON = 1e-5


def embed(form: str, language: Dyck) -> np.ndarray:
    """e(type, depth) of every (type, depth) token, START among them, as rows (M, E).

    A closing has the depth of its opening, so that partners differ in type alone; as printed, 3.37
    gives an opening of depth D and a closing of depth 0 one place.
    """
    if form not in FORMS:
        raise ConfigError(f"form must be {', '.join(FORMS)}, got '{form}'")
    types, depth = 2 * language.types, language.depth
    if form == "pairs":
        return np.eye(language.num_typed, dtype=np.float32)
    level_M = np.tile(np.arange(1, depth + 1), types)
    if form == "types and depths":
        of_level_ME = np.eye(depth)[level_M - 1]
    else:
        angle_M = np.arctan(level_M / (depth + 2 - level_M))
        of_level_ME = np.stack([np.cos(angle_M), np.sin(angle_M)], axis=1)
    of_type_ME = np.repeat(np.eye(types), depth, axis=0)
    brackets_ME = np.concatenate([of_type_ME, of_level_ME], axis=1)
    found_ME = np.zeros((language.num_typed, brackets_ME.shape[1] + 1), np.float32)
    found_ME[START, -1] = 1
    found_ME[START + 1 :, :-1] = brackets_ME
    return found_ME


class MinimalFirstLayer(nnx.Module):
    """`model(tokens)` gives the logits of what comes next, from the types and depths of tokens."""

    def __init__(
        self, language: Dyck, form: str, width: int, init_stddev: float = 0.02, *, rngs: nnx.Rngs
    ):
        self.language, self.form = language, form
        inputs = embed(form, language).shape[1]
        started = {"kernel_init": nnx.initializers.normal(init_stddev), "rngs": rngs}
        self.query = nnx.Linear(inputs, width, **started)
        self.key = nnx.Linear(inputs, width, **started)
        self.value = nnx.Linear(inputs, width, **started)
        self.norm = LayerNorm(width, EPSILON)
        self.head = nnx.Linear(width, language.num_tokens, **started)

    def __call__(self, tokens_BT, group=None, *, dropout_key=None) -> jax.Array:
        """Float32 logits (batch, time, tokens); it has neither groups nor dropout."""
        weights_BTS, v_BSD = self._attend(tokens_BT)
        return self.head(self.norm(jnp.einsum("bts,bsd->btd", weights_BTS, v_BSD)))

    def attention_weights(self, tokens_BT) -> jax.Array:
        """As those of a GPT of one layer and head: (1, batch, 1, queries, keys)."""
        return self._attend(tokens_BT)[0][None, :, None]

    def read_off(self) -> tuple[jax.Array, jax.Array]:
        """score[key, query] before the softmax, and what each key adds to the output: (M, D).

        The weights of a query sum to 1, so that the bias of values counts as a part of each.
        """
        e_ME = jnp.asarray(embed(self.form, self.language))
        q_MD, k_MD = self.query(e_ME), self.key(e_ME)
        return k_MD @ q_MD.T / q_MD.shape[1] ** 0.5, self.value(e_ME)

    def _attend(self, tokens_BT) -> tuple[jax.Array, jax.Array]:
        e_ME = jnp.asarray(embed(self.form, self.language))
        e_BTE = e_ME[self.language.typed(tokens_BT)]
        place = locate(tokens_BT.shape[1], None)
        q_B1TD, k_B1SD = self.query(e_BTE)[:, None], self.key(e_BTE)[:, None]
        weights_B1TS = weigh(q_B1TD, k_B1SD, place, place, causal=True, slopes_H=None)
        return weights_B1TS[:, 0], self.value(e_BTE)


def gpt(
    language: Dyck, position: str = "none", layers: int = 2, width: int = 50,
    init_stddev: float = 0.02,
) -> GPTConfig:  # fmt: skip
    """The standard network: one head, with linear positions or none."""
    return GPTConfig(
        vocab_size=language.num_tokens, context_length=MOST_POSITIONS, num_layers=layers,
        embed_dim=width, mlp_dim=width, num_heads=1, position=position, tie_head=False,
        embedding_dropout=0.0, attention_dropout=0.0, residual_dropout=0.0, attention="plain",
        init_stddev=init_stddev,
    )  # fmt: skip


def make_uniform(model: MinimalFirstLayer | GPT) -> MinimalFirstLayer | GPT:
    """Sets queries and keys to zero: every weight is 1 / n, and no gradient ever changes that."""
    layers = (
        [model] if isinstance(model, MinimalFirstLayer) else [b.attention for b in model.blocks]
    )
    for layer in layers:
        for part in (layer.query, layer.key):
            part.kernel[...] = jnp.zeros_like(part.kernel[...])
            part.bias[...] = jnp.zeros_like(part.bias[...])
    return model
