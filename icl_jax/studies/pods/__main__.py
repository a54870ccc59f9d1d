"""Estimates the cost of the paper's runs on TPU slices, with libtpu and arithmetic."""

from icl_jax.studies.pods.pods import main

if __name__ == "__main__":
    main()
