"""`python -m icl_jax.evaluation.compare`."""

from icl_jax.evaluation.compare.compare import main

main()
