"""`icl_jax.main` where the mesh has the devices in another order than the processes have them.

So it is on a real slice: neighbours on its network need not be of one host.
"""

import runpy

import jax
from jax.sharding import Mesh
import numpy as np

ORDER = [0, 2, 1, 3]  # of four devices: the first process has 0 and 1


def make_mesh(sizes, names, *, axis_types, devices):
    """As `jax.make_mesh`, which keeps the order on CPUs."""
    permuted = np.array([devices[place] for place in ORDER]).reshape(sizes)
    return Mesh(permuted, names, axis_types=axis_types)


if __name__ == "__main__":
    jax.make_mesh = make_mesh
    runpy.run_module("icl_jax.main", run_name="__main__", alter_sys=True)
