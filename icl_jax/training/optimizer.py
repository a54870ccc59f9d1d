"""AdamW with its learning rate, clipping, and the parameters that are not decayed."""

from flax import nnx
import jax
import optax

from icl_jax.config import OptimizerConfig

NOT_DECAYED = ("bias", "scale")  # of dense layers, heads and norms


def learning_rate(
    config: OptimizerConfig, steps: int, steps_per_epoch: float = 1
) -> optax.Schedule:
    """Step -> learning rate: linear from 0, then constant, or down to `final_share` at `steps`.

    The warm-up counts epochs of `steps_per_epoch` steps, if given.
    """
    peak, warmup = config.learning_rate, round(config.warmup * steps_per_epoch)
    rest = max(1, steps - warmup)
    after = {
        "constant": lambda: optax.constant_schedule(peak),
        "linear": lambda: optax.linear_schedule(peak, peak * config.final_share, rest),
        "cosine": lambda: optax.cosine_decay_schedule(peak, rest, config.final_share),
    }[config.schedule]()
    if warmup == 0:
        return after
    # Step 0 already learns: the k-th of w warm-up steps has k / w of the peak.
    up = optax.linear_schedule(peak / warmup, peak, max(1, warmup - 1))
    return optax.join_schedules([up, after], [warmup])


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Clip the gradient's norm, then AdamW with decay where `decay_mask` says."""
    adamw = optax.adamw(
        schedule, b1=config.b1, b2=config.b2, eps=config.epsilon,
        weight_decay=config.weight_decay, mask=decay_mask,
    )  # fmt: skip
    if config.clip_norm == 0:
        return adamw
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw)


def decay_mask(params: nnx.State) -> nnx.State:
    """True for matrices and embeddings, False for biases and norms."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key not in NOT_DECAYED,
        params,
        is_leaf=lambda x: isinstance(x, nnx.Variable),
    )
