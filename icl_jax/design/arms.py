"""The one table of arms, the variants of an experiment: which groups each has, and their layout.

A new arm is one line here and, if its groups are new too, one file: the module of that name in
`strategies/`, which is imported when the arm is used. The table imports nothing, because the config
checks names by it.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Arm(NamedTuple):
    """One variant."""

    strategy: str  # the module in `strategies/` that makes its groups
    layout: str  # in_context: a group is one example; in_batch: each of its sentences is one
    has_queries: bool = True  # False: running text
    made_from: tuple[str, ...] = ()  # strategies whose groups (the kept ones) it needs


ARMS = {
    "contiguous": Arm("contiguous", "in_context", has_queries=False),
    "task_only": Arm("task_only", "in_context", made_from=("neighbours",)),
    "neighbours_in_context": Arm("neighbours", "in_context"),
    "random_in_context": Arm("random", "in_context", made_from=("neighbours",)),
    "neighbours_in_batch": Arm("neighbours", "in_batch"),
    "random_in_batch": Arm("random", "in_batch", made_from=("neighbours",)),
    "document_path": Arm("document_path", "in_context", has_queries=False),
    "shared_entity": Arm("shared_entity", "in_context"),
}


def strategies_of(arms: Iterable[str]) -> list[str]:
    """The strategies that these arms need, in the order in which they are made."""
    wanted = {ARMS[arm].strategy for arm in arms if arm in ARMS}
    ordered: dict[str, None] = {}
    for arm in ARMS.values():
        if arm.strategy in wanted:
            ordered |= dict.fromkeys([*arm.made_from, arm.strategy])
    return list(ordered)


def own_strategies() -> list[str]:
    """Those that are made from no other: the ones whose groups the gain filter may judge."""
    return list(dict.fromkeys(arm.strategy for arm in ARMS.values() if not arm.made_from))


def has_queries(strategy: str) -> bool:
    """Whether each group of a strategy begins with a query."""
    return any(arm.has_queries for arm in ARMS.values() if arm.strategy == strategy)
