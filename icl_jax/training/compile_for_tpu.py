"""The former name of `python -m icl_jax.tpu.compile`, kept for people's scripts."""

import runpy

if __name__ == "__main__":
    runpy.run_module("icl_jax.tpu.compile", run_name="__main__", alter_sys=True)
