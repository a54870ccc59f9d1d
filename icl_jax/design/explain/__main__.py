"""Prints one record of an arm as text, with scores, and why it holds no more."""

from icl_jax.design.explain.explain import main

if __name__ == "__main__":
    main()
