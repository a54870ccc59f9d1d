"""Optax mixes types inside (b1 ** count), so dtype promotion is not strict here."""

import jax
import pytest


@pytest.fixture(autouse=True)
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield
