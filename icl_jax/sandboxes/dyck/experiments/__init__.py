"""The one table of the experiments on brackets, in the order of the report."""

from icl_jax.sandboxes.dyck.experiments import balance, constructed, copying, pruning, variation

TITLE = "Dyck: attention that solves brackets, and what its patterns say"
EXPERIMENTS = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (constructed, variation, balance, copying, pruning)
}
