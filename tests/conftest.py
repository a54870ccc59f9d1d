"""8 emulated CPU devices, strict dtype promotion, and compiled code kept between runs."""

import os
from pathlib import Path

# Small programs that run once: compiling them fast matters more than running them fast.
FLAGS = (
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",  # the newer way to compile fusions takes twice the time
    "--xla_cpu_parallel_codegen_split_count=1",  # 9% less of a core's time than 32 parts
)  # fmt: skip
# Others stay, as --xla_cpu_max_isa=AVX2, which computes as another CPU would. JAX files compiled
# code by these flags, so CPUs do not mix; an xdist worker finds ours in the environment already.
_given = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag not in FLAGS]
os.environ["XLA_FLAGS"] = " ".join([*_given, *FLAGS])
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"
# In the environment, so that the commands that tests start find what the tests compiled.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / ".jax_cache")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")


# Files whose tests take longest go first, so that no worker begins one when the other is done.
LONGEST = (
    "experiment/rounds/test_rounds.py", "studies/test_table1.py", "training/test_train_state.py",
    "experiment/test_stages.py", "training/test_train.py", "tpu/test_compile.py",
    "models/test_transformer_options.py", "models/test_huggingface_parity.py", "test_main.py",
    "design/test_kill_design.py", "retrieval/test_encoder_parity.py",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    """Keeps the order of tests within a file."""
    folder = Path(__file__).parent
    places = {folder / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
