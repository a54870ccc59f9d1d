"""A whole experiment, and the runs that branch off it."""

import dataclasses

from icl_jax.config.checks import (
    MAX_SEED,
    require_at_least_0,
    require_choice,
    require_positive,
    require_share,
)
from icl_jax.config.design import ONE_QUERY, PACKED, DesignConfig
from icl_jax.config.evaluation import EvaluationConfig
from icl_jax.config.model import GPTConfig, ModelConfig
from icl_jax.config.training import DataConfig, MeshConfig, OptimizerConfig, TrainingConfig
from icl_jax.design.arms import ARMS


@dataclasses.dataclass
class BranchesConfig:
    """Runs to compare: all continue from the last checkpoint of this one, each on its own arm."""

    # Arms of the design; or `regular`, which continues with the run's own sources; or `trunk`, the
    # run itself, to compare the others with. Empty: no branches.
    arms: tuple[str, ...] = ()
    reference: str = "neighbours_in_context"  # the arm that the others are compared with
    # Either train for this many more steps with the same optimiser, whose schedule ends with them.
    # This share of every batch is examples of the arm, the rest comes from the run's own sources.
    steps: int = 0
    share: float = 0.5
    # Or make this many passes over the examples of the arm alone, with a separate optimiser. With
    # design.examples.rows=one_query this is the same number of updates in every arm.
    epochs: float = 0.0
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    learning_rates: tuple[float, ...] = ()  # to try for each arm; empty: the optimiser's
    seeds: int = 1  # runs per arm, with config.seed, config.seed + 1, ...

    def problems(self) -> list[str]:
        found: list[str] = []
        for arm in self.arms:
            require_choice(found, "arms", arm, ("regular", "trunk", *ARMS))
        require_at_least_0(found, self, "steps", "epochs")
        require_positive(found, self, "seeds")
        require_share(found, self, "share")
        if len(set(self.arms)) < len(self.arms):
            found.append(f"arms names an arm twice: {', '.join(self.arms)}")
        if len({f"{rate:g}" for rate in self.learning_rates}) < len(self.learning_rates):
            found.append(  # they are part of folder names
                f"learning_rates must differ in their first 6 digits, got {self.learning_rates}"
            )
        if any(rate <= 0 for rate in self.learning_rates):
            found.append(f"learning_rates must be above 0, got {self.learning_rates}")
        if self.arms and bool(self.steps) == bool(self.epochs):
            found.append(
                "expected steps or epochs, how long each arm is trained, got steps "
                f"{self.steps} and epochs {self.epochs:g}"
            )
        if self.arms and self.reference not in self.arms:
            found.append(
                f"reference must be one of the arms, {', '.join(self.arms)}, got '{self.reference}'"
            )
        if self.steps and self.learning_rates:
            found.append(
                "learning_rates are for branches.epochs; with branches.steps each arm continues "
                "with the run's own schedule"
            )
        if self.share == 0:
            found.append("share must be above 0: the arms would all be regular")
        if self.epochs and "regular" in self.arms:
            found.append("the arm regular needs branches.steps, but branches.epochs is set")
        return found


@dataclasses.dataclass
class ExperimentConfig:
    """A whole experiment."""

    seed: int = 0
    batch_size: int = 512  # rows of the global batch (Levine et al. 2022, appendix D)
    sequence_length: int = 256  # tokens of a row (the same)
    model: ModelConfig = dataclasses.field(default_factory=GPTConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    design: DesignConfig = dataclasses.field(default_factory=DesignConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    branches: BranchesConfig = dataclasses.field(default_factory=BranchesConfig)
    # Each round trains, then embeds the corpus with its model and searches it for the next round.
    rounds: int = 1
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)

    def problems(self) -> list[str]:
        found = []
        require_positive(found, self, "batch_size", "sequence_length", "rounds")
        if not 0 <= self.seed <= MAX_SEED:
            found.append(f"seed must be from 0 to {MAX_SEED} (2**32 - 1), got {self.seed}")
        longest = getattr(self.model, "context_length", None)  # an LSTM has no limit
        if longest is not None and self.sequence_length > longest:
            found.append(
                f"sequence_length {self.sequence_length} is longer than "
                f"model.context_length {longest}; change one of them"
            )
        return found + _rows_problems(self)


def _rows_problems(config) -> list[str]:
    """Packing rows contradicts one query per row; branches.epochs switches packing off."""
    if not config.data.pack or config.design.examples.rows != ONE_QUERY:
        return []
    mixed = config.branches.arms if config.branches.steps else ()
    named = [source.removeprefix("design:") for source in config.data.sources]
    arms = [arm for arm in (*named, *mixed) if arm in ARMS and ARMS[arm].has_queries]
    return [
        f"data.pack=True would put several examples into a row, but design.examples.rows is "
        f"'{ONE_QUERY}' for {arm}; set data.pack to False, or design.examples.rows to '{PACKED}'"
        for arm in dict.fromkeys(arms)
    ]
