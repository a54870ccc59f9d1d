"""Which records make up a batch, on which devices, and how the model learns from them."""

import dataclasses
import itertools

from icl_jax.config.checks import (
    require_at_least_0,
    require_choice,
    require_positive,
    require_share,
)

OBJECTIVES = ("next_token", "masked_token")
SCHEDULES = ("constant", "linear", "cosine")
STARTS = ("weights", "everything")
DROPOUT_KEYS = ("auto", "threefry", "rbg")


@dataclasses.dataclass
class MeshConfig:
    """Devices per mesh axis; one axis may be -1: all devices left over by the others."""

    data: int = -1  # copies of the parameters, each with a part of the batch
    fsdp: int = 1  # parameters and batch are sharded over these
    tensor: int = 1  # heads, feed-forward and vocabulary are sharded over these

    def problems(self) -> list[str]:
        sizes = dataclasses.asdict(self)
        found = [
            f"{axis} must be a number of devices or -1, got {size}"
            for axis, size in sizes.items()
            if size < 1 and size != -1
        ]
        if list(sizes.values()).count(-1) > 1:
            found.append(f"only one axis may be -1, got {sizes}")
        return found


@dataclasses.dataclass
class DataConfig:
    """Which records make up a batch. A source is a folder or a glob of TFRecord files."""

    sources: tuple[str, ...] = ()
    # (first step, weight of each source), starting at step 0. Regular examples until step 200,000,
    # then half and half in every batch: ((0, (1, 0)), (200_000, (1, 1))). Empty: equal weights.
    phases: tuple[tuple[int, tuple[float, ...]], ...] = ()
    # Put several short records into one row; each keeps its own groups. Not for records that were
    # designed for one query per row (design.examples.rows).
    pack: bool = False
    workers: int = 0  # processes that read ahead; 0: threads in the training process
    prefetch: int = 4  # batches read ahead by each worker

    def problems(self) -> list[str]:
        found: list[str] = []
        require_positive(found, self, "prefetch")
        require_at_least_0(found, self, "workers")
        firsts = [first for first, _ in self.phases]
        if firsts and (firsts[0] != 0 or any(a >= b for a, b in itertools.pairwise(firsts))):
            found.append(f"the first steps of phases must rise from 0, got {firsts}")
        for first, weights in self.phases:
            if len(weights) != len(self.sources):
                found.append(
                    f"the phase from step {first} has {len(weights)} weights for "
                    f"{len(self.sources)} sources"
                )
            elif not all(0 <= weight < float("inf") for weight in weights) or sum(weights) <= 0:
                found.append(
                    f"the weights from step {first} must be at least 0, and one above, got "
                    f"{weights}"
                )
        return found


@dataclasses.dataclass
class OptimizerConfig:
    """AdamW and its learning rate. The defaults are those of kNN-Pretraining (appendix D)."""

    learning_rate: float = 6e-4  # the peak
    schedule: str = "cosine"  # after the warm-up: constant, linear or cosine down to `final_share`
    final_share: float = 0.0  # of the peak, at the last step
    schedule_steps: int = 0  # where the schedule ends; 0: at the last step of the run
    # Linear from 0; in steps, or in epochs if training.epochs (or branches.epochs) is set.
    warmup: float = 2000
    b1: float = 0.9
    b2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1  # of matrices and embeddings; never of biases and norms
    clip_norm: float = 1.0  # largest norm of the whole gradient; 0: no clipping

    def problems(self) -> list[str]:
        found: list[str] = []
        require_choice(found, "schedule", self.schedule, SCHEDULES)
        require_share(found, self, "b1", "b2", "epsilon", below=True)
        require_share(found, self, "final_share")
        for name in ("learning_rate", "schedule_steps", "warmup", "weight_decay", "clip_norm"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                found.append(f"{name} must be a number of at least 0, got {value}")
        return found


@dataclasses.dataclass
class TrainingConfig:
    """What the model learns, for how long, and what is saved."""

    objective: str = "next_token"  # or masked_token
    steps: int = 0  # either this many steps
    epochs: float = 0.0  # or this many passes over the only source
    accumulate: int = 1  # compute a batch in this many parts in turn; the result is the same
    dropout: bool = True  # the rates are in the model's config
    # Its generator: threefry gives the same bits on every machine and mesh; rbg, the generator of
    # the hardware, takes a fraction of the time on a TPU; auto: rbg on TPUs, threefry elsewhere.
    # A run keeps the one that it began with; weights and masks always use threefry.
    dropout_keys: str = "auto"
    ema_decay: float = 0.0  # moving average of the weights, kept beside them; 0: none
    mask_token_id: int = 50264  # masked_token: RoBERTa's <mask>
    # masked_token: these are never chosen and never used as replacements.
    special_token_ids: tuple[int, ...] = (0, 1, 2, 3, 50264)
    mask_share: float = 0.15  # of tokens that are chosen: 80% masked, 10% replaced, 10% kept
    start_from: str = ""  # a Hugging Face folder, or the workdir of another run
    start_with: str = "weights"  # from another run: weights, or everything (optimiser and step)
    # start_with=everything: True allows a learning rate that differs from where that run ended.
    rate_may_jump: bool = False
    checkpoint_every: int = 1000  # steps; the last step is always kept
    keep_last: int = 3  # checkpoints
    keep_every: int = 0  # steps: checkpoints at multiples of this are never deleted; 0: none
    log_every: int = 10  # steps between two lines of metrics.jsonl

    def problems(self) -> list[str]:
        found: list[str] = []
        require_choice(found, "objective", self.objective, OBJECTIVES)
        require_choice(found, "start_with", self.start_with, STARTS)
        require_choice(found, "dropout_keys", self.dropout_keys, DROPOUT_KEYS)
        require_positive(found, self, "accumulate", "checkpoint_every", "keep_last", "log_every")
        require_share(found, self, "ema_decay", "mask_share", below=True)
        for name in ("steps", "epochs", "keep_every"):
            if not 0 <= getattr(self, name) < float("inf"):
                found.append(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.checkpoint_every > 0 and self.keep_every % self.checkpoint_every:
            found.append(
                f"keep_every {self.keep_every} is not a multiple of checkpoint_every "
                f"{self.checkpoint_every}, so it would keep no checkpoint"
            )
        if self.steps and self.epochs:
            found.append(f"set steps or epochs, got {self.steps} steps and {self.epochs} epochs")
        return found
