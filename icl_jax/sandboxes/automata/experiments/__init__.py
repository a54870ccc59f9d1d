"""The one table of the experiments on automata, in the order of the report."""

from icl_jax.sandboxes.automata.experiments import (
    depth,
    exact_networks,
    incomplete,
    indirect,
    positions,
    shift,
)

TITLE = "Automata: networks whose weights are written down, and those that must find them"
EXPERIMENTS = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (exact_networks, depth, shift, incomplete, indirect, positions)
}
