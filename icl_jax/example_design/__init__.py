"""The former name of `icl_jax.design`, kept so that commands in people's scripts still work."""
