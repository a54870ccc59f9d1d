"""What a model learns from a batch: the tokens that it sees, the targets, and their weights.

Shape suffixes: B batch, T time.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from icl_jax.config import RobertaConfig, TrainingConfig


class Task(NamedTuple):
    """A prepared batch; tokens of weight 0 are not predicted."""

    inputs_BT: jax.Array
    group_BT: jax.Array
    targets_BT: jax.Array
    weights_BT: jax.Array


def next_token(tokens_BT: jax.Array, group_BT: jax.Array) -> Task:
    """Each token predicts the one after it in its group; padding is never a target."""
    follows_BT = jnp.roll(tokens_BT, -1, axis=1)
    same_BT = (group_BT == jnp.roll(group_BT, -1, axis=1)) & (group_BT > 0)
    last = jnp.arange(tokens_BT.shape[1]) == tokens_BT.shape[1] - 1
    weights_BT = jnp.where(last, 0.0, same_BT.astype(jnp.float32))
    return Task(tokens_BT, group_BT, follows_BT, weights_BT)


def masked_token(
    tokens_BT: jax.Array,
    group_BT: jax.Array,
    key: jax.Array,
    config: TrainingConfig,
    model: RobertaConfig,
) -> Task:
    """A share of the tokens is chosen and predicted: 80% hidden, 10% replaced, 10% kept.

    Replacements are drawn uniformly from all ids except special ones, the mask and the padding.

    `key` depends on (seed, step); each row has its own key, whichever device holds it.
    """
    special = jnp.array(config.special_token_ids, jnp.int32)
    never = {*config.special_token_ids, config.mask_token_id, model.pad_token_id}
    never = sorted(id for id in never if 0 <= id < model.vocab_size)
    free_BT = (group_BT > 0) & ~jnp.isin(tokens_BT, special)

    def choose(row: jax.Array, tokens_T: jax.Array):
        chosen_key, fate_key, token_key = jax.random.split(jax.random.fold_in(key, row), 3)
        chosen_T = jax.random.uniform(chosen_key, tokens_T.shape) < config.mask_share
        fate_T = jax.random.uniform(fate_key, tokens_T.shape)
        ordinary = model.vocab_size - len(never)
        random_T = jax.random.randint(token_key, tokens_T.shape, 0, ordinary, jnp.int32)
        for id in never:  # ascending: the n-th ordinary id, counted past those before it
            random_T += random_T >= id
        changed_T = jnp.where(fate_T < 0.9, random_T, tokens_T)
        return chosen_T, jnp.where(fate_T < 0.8, config.mask_token_id, changed_T)

    chosen_BT, changed_BT = jax.vmap(choose)(jnp.arange(tokens_BT.shape[0]), tokens_BT)
    chosen_BT &= free_BT
    inputs_BT = jnp.where(chosen_BT, changed_BT, tokens_BT)
    return Task(inputs_BT, group_BT, tokens_BT, chosen_BT.astype(jnp.float32))
