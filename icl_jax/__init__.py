"""icl_jax: design training examples, train on them, and measure what sharing a context brings."""

__version__ = "0.1.0"
