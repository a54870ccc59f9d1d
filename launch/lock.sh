#!/bin/bash
# Writes launch/requirements-tpu.txt: the exact versions that hosts get (`pip install uv` first).
#   bash launch/lock.sh            after a change in pyproject.toml; the others stay as they are
#   bash launch/lock.sh --upgrade  the newest of all
set -euo pipefail
cd "$(dirname "$0")/.."
# setuptools, so that a host builds by a known one. libtpu needs at least glibc 2.31.
echo setuptools | uv pip compile pyproject.toml - --extra tpu --generate-hashes --quiet \
    --python-version 3.11 --python-platform x86_64-manylinux_2_31 --no-emit-index-url \
    --custom-compile-command "bash launch/lock.sh" -o launch/requirements-tpu.txt "$@"
