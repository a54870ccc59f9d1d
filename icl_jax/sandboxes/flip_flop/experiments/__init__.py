"""The one table of the experiments on flip-flops, in the order of the report."""

from icl_jax.sandboxes.flip_flop.experiments import (
    attention,
    baseline,
    data,
    lstm,
    mechanisms,
    mitigations,
)

TITLE = "Flip-flops: one bit that Transformers misread and LSTMs do not"
EXPERIMENTS = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (baseline, lstm, data, mitigations, attention, mechanisms)
}
