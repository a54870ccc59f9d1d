"""Tiny analysed networks for the tests of the theory."""

from icl_jax.config import LinearAttentionConfig
from icl_jax.theory.representations import analysed_network

FIRST, SECOND = [1, 2, 3], [4, 2, 0]


def network_config(**changes) -> LinearAttentionConfig:
    sizes = {"vocab_size": 5, "context_length": 6, "num_layers": 2, "embed_dim": 2, "num_heads": 1}
    return LinearAttentionConfig(**(sizes | {"dtype": "float64"} | changes))


def network(weights="normal", seed=0, **changes):
    return analysed_network(network_config(**changes), seed, weights)


def raw_network(width, depth, rank=None, heads=1, input_dim=None, **changes):
    """A network of raw vectors, one a position."""
    return network(
        embedding="convolution", tie_head=False, embed_dim=width, num_layers=depth,
        num_heads=heads, input_dim=input_dim or width, embedding_rank=rank, **changes,
    )  # fmt: skip
