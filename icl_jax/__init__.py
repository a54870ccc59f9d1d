"""icl_jax: design training examples, train on them, and measure what sharing a context brings."""

import os

__version__ = "0.1.0"

# gs:// is opened by gcsfs, whether or not TensorFlow (9 s to import) happens to be installed.
os.environ.setdefault("EPATH_USE_TF", "false")
# gcsfs would else ask by gRPC whether a bucket is of a newer kind (zonal, hierarchical namespace),
# which its experimental part opens; who has such a bucket sets this to true.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
# And its clients ask the store what is there, each time: other hosts and libraries write to it too.
for _client in ("GCS", "S3", "ABFS"):
    os.environ.setdefault(f"FSSPEC_{_client}_USE_LISTINGS_CACHE", "false")
# Threads of the TPU compiler (libtpu 0.0.42.1) have 64 KB of stack, too few for dropout in a large
# model: the process would end by a segmentation fault. What is not used takes no memory.
_STACK, _given = "--fibers_default_thread_stack_size", os.environ.get("LIBTPU_INIT_ARGS", "")
if _STACK not in _given:
    os.environ["LIBTPU_INIT_ARGS"] = f"{_given} {_STACK}={8 << 20}".strip()
