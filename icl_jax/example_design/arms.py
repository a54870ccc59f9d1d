"""The arms of a comparison by name, what each is made of, and where its records lie."""

from typing import NamedTuple

from etils import epath

from icl_jax.config import ExamplesConfig, StageError
from icl_jax.config_problems import PACKED, RUNNING_TEXT
from icl_jax.retrieval.design_folders import design_workdir

PREFIX = "design:"  # a source called design:contiguous is that arm of the same workdir


class Arm(NamedTuple):
    """What an arm is made of."""

    strategy: str  # which sentences form a group
    layout: str  # in_context: the group is one example; in_batch: each sentence is one


ARMS = {
    "contiguous": Arm("contiguous", "in_context"),
    "task_only": Arm("task_only", "in_context"),
    "neighbours_in_context": Arm("neighbours", "in_context"),
    "random_in_context": Arm("random", "in_context"),
    "neighbours_in_batch": Arm("neighbours", "in_batch"),
    "random_in_batch": Arm("random", "in_batch"),
    "document_path": Arm("document_path", "in_context"),
    "shared_entity": Arm("shared_entity", "in_context"),
}
# In the order in which they are made, each with what it is made from.
STRATEGIES = {
    "contiguous": (),
    "neighbours": (),
    "task_only": ("neighbours",),
    "random": ("neighbours",),
    "document_path": (),
    "shared_entity": (),
}
NEED_NEIGHBOURS = {"neighbours", "document_path"}


def strategies_of(arms: tuple[str, ...]) -> list[str]:
    """The strategies that these arms need, in the order in which they are made."""
    wanted = {ARMS[arm].strategy for arm in arms if arm in ARMS}
    wanted |= {needed for strategy in wanted for needed in STRATEGIES[strategy]}
    return [strategy for strategy in STRATEGIES if strategy in wanted]


def planned_rows(examples: ExamplesConfig, arm: str) -> str:
    """What a row of this arm holds by the config of a design; running text is always packed."""
    return PACKED if arm in RUNNING_TEXT else examples.rows


def is_arm(source: str) -> bool:
    """Whether a source of training is an arm of the workdir's own design stage."""
    return source.startswith(PREFIX)


def arm_folder(workdir: epath.PathLike, arm: str) -> epath.Path:
    """The records of an arm that was built; stops, with those that were, if it was not."""
    folder = design_workdir(workdir) / "design" / "arms" / arm
    if not (folder / "results.json").exists():
        built = sorted(path.parent.name for path in folder.parent.glob("*/results.json"))
        known = arm in ARMS
        raise StageError(
            f"there is no arm '{arm}' in {folder.parent}; there are: "
            f"{', '.join(built) or 'none'}. "
            + ("Add it to design.examples.arms and run --stages=design" if known
               else f"Arms that can be built: {', '.join(ARMS)}")
        )  # fmt: skip
    return folder
