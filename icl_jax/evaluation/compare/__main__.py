"""Compares evaluated models in a table and a figure, with tests of significance."""

from icl_jax.evaluation.compare.compare import main

if __name__ == "__main__":
    main()
