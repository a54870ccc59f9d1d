"""Pairs of brackets that are closed again, put before a row: what follows must not change.

The contrastive term of Liu 2024, 3.40, compares the logits of a row with and without them.
Shape suffixes: B batch, T time, P tokens of the longer row, D depths, N prefixes.
"""

import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.sandboxes.dyck.language import START, Dyck


def nested_before(
    language: Dyck, key: jax.Array, tokens_BT: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Rows with r nested pairs between START and the rest, r uniform from 1 to D.

    What follows a row that got fewer pairs is filled with START, which no earlier token sees.
    """
    rows, length = tokens_BT.shape
    count_key, type_key = jax.random.split(key)
    count_B1 = jax.random.randint(count_key, (rows, 1), 1, language.depth + 1)
    kind_BD = jax.random.randint(type_key, (rows, language.depth), 0, language.types)
    place_P = jnp.arange(length + 2 * language.depth)[None]
    opened_BP = jnp.clip(place_P - 1, 0, language.depth - 1)
    closed_BP = jnp.clip(2 * count_B1 - place_P, 0, language.depth - 1)
    is_opening_BP = place_P <= count_B1
    level_BP = jnp.where(is_opening_BP, opened_BP, closed_BP)
    pairs_BP = jnp.take_along_axis(kind_BD, level_BP, axis=1) + 1
    pairs_BP += jnp.where(is_opening_BP, 0, language.types)
    own_BP = place_P - 2 * count_B1  # the place in the row
    rest_BP = jnp.take_along_axis(tokens_BT, jnp.clip(own_BP, 0, length - 1), axis=1)
    rest_BP = jnp.where(own_BP < length, rest_BP, START)
    longer_BP = jnp.where(own_BP > 0, rest_BP, pairs_BP)
    return jnp.where(place_P == 0, START, longer_BP), 2 * count_B1[:, 0] + 1


def fixed_before(
    language: Dyck, key: jax.Array, tokens_BT: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Rows after all brackets of the language, nested by type, with a random pair among them."""
    rows, depth = tokens_BT.shape[0], language.depth
    every = language.every_bracket()[0, 1:]
    prefixes_NP = np.array(
        [
            np.insert(every, 2 * depth * kind + level, language.nested([kind]))
            for kind in range(language.types)
            for level in range(depth)
        ]
    )
    prefix_P = jnp.asarray(prefixes_NP)[jax.random.randint(key, (), 0, len(prefixes_NP))]
    prefix_BP = jnp.broadcast_to(prefix_P, (rows, len(prefix_P)))
    first_B = jnp.full((rows,), len(prefix_P) + 1)
    return jnp.concatenate([prefix_BP, tokens_BT], axis=1), first_B
