"""`python -m icl_jax.design.explain`."""

from icl_jax.design.explain.explain import main

main()
