"""`python -m icl_jax.studies.pods`."""

from icl_jax.studies.pods.pods import main

main()
