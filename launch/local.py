"""Runs an experiment on this machine, on emulated CPU devices: to try a mesh before renting one.

python -m launch.local --devices=8 --config=configs/tiny.py --config.mesh.fsdp=4 --workdir=runs/mesh
"""

import argparse
import os
import sys


def main() -> None:
    """Replaces this process by `python -m icl_jax.main` that sees that many devices."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--devices", type=int, required=True, help="how many CPU devices to emulate"
    )
    args, rest = parser.parse_known_args()
    if args.devices < 1:
        parser.error(f"--devices must be at least 1, got {args.devices}")
    flag = f"--xla_force_host_platform_device_count={args.devices}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.execv(sys.executable, [sys.executable, "-m", "icl_jax.main", *rest])


if __name__ == "__main__":
    main()
