"""The one table of arms: what each variant of an experiment is made of.

A table alone, which imports nothing: the config checks names by it.
"""

from typing import NamedTuple


class Arm(NamedTuple):
    """What an arm is made of."""

    strategy: str  # which sentences form a group
    layout: str  # in_context: the group is one example; in_batch: each sentence is one
    has_queries: bool = True  # False: running text


ARMS = {
    "contiguous": Arm("contiguous", "in_context", has_queries=False),
    "task_only": Arm("task_only", "in_context"),
    "neighbours_in_context": Arm("neighbours", "in_context"),
    "random_in_context": Arm("random", "in_context"),
    "neighbours_in_batch": Arm("neighbours", "in_batch"),
    "random_in_batch": Arm("random", "in_batch"),
    "document_path": Arm("document_path", "in_context", has_queries=False),
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
