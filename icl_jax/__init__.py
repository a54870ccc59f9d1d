"""icl_jax: design training examples, train on them, and measure what sharing a context brings."""

import os

__version__ = "0.1.0"

# Open gs:// with gcsfs even if TensorFlow is installed, which takes 9 s to import.
os.environ.setdefault("EPATH_USE_TF", "false")
# Otherwise gcsfs would ask by gRPC whether a bucket is of a newer kind (zonal, hierarchical
# namespace), which its experimental part opens; users of such a bucket set this to true.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
# Clients must not cache listings, because other hosts and libraries write to the store, too.
for _client in ("GCS", "S3", "ABFS"):
    os.environ.setdefault(f"FSSPEC_{_client}_USE_LISTINGS_CACHE", "false")
# Threads of the TPU compiler (libtpu 0.0.42.1) have 64 KB of stack, too little for dropout in a
# large model: the process would die with a segmentation fault. Unused stack takes no memory.
_STACK, _given = "--fibers_default_thread_stack_size", os.environ.get("LIBTPU_INIT_ARGS", "")
if _STACK not in _given:
    os.environ["LIBTPU_INIT_ARGS"] = f"{_given} {_STACK}={8 << 20}".strip()
