"""What the stage, the data card and `explain` need to know about a strategy."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import importlib
from typing import TYPE_CHECKING, NamedTuple

from icl_jax.config import DesignConfig
from icl_jax.design.groups import Groups

if TYPE_CHECKING:
    from icl_jax.design.build import Build
    from icl_jax.design.explain.reasons import Reasons


class Count(NamedTuple):
    """How the card labels a number in the results of a strategy, and the share it is of others."""

    label: str
    share: Callable[[dict], float] | None = None  # from all results
    share_label: str = "their share"
    share_digits: int = 1


class OwnSearch(NamedTuple):
    """A search for related sentences that only one strategy needs."""

    folder: str  # in WORKDIR/design; its other folders begin with the same name
    card_key: str  # of its results in card.json
    title: str  # of their table in the card


@dataclasses.dataclass(frozen=True)
class Strategy:
    """Every module of this folder that is named in the table of arms has one, as STRATEGY."""

    make_groups: Callable[["Build"], Groups]
    # Why a group of these sentences, with so many tokens left, holds no more.
    why_no_more: Callable[["Reasons", list[int], int], str]
    check: Callable[[DesignConfig], None] | None = None  # stops before hours are spent
    needs_neighbours: bool = False  # of the search by vectors
    own_search: OwnSearch | None = None
    steps: tuple[str, ...] = ()  # of its own, before its groups: folders in WORKDIR/design
    whole_documents: bool = False  # the gain filter judges documents, not sentences
    score: str = "cosine to the query"  # what the similarity of a sentence is; "": there is none
    counts: Mapping[str, Count] = dataclasses.field(default_factory=dict)  # by field of its results
    # A line about its arms for the end of the stage, from their names and the strategy's results.
    remark: Callable[[Sequence[str], dict, DesignConfig], str] | None = None


def open_strategy(name: str) -> Strategy:
    """The strategy of this name, imported from its module."""
    return importlib.import_module(f"icl_jax.design.strategies.{name}").STRATEGY


def need_neighbours(strategies: Sequence[str]) -> bool:
    """Whether one of these needs the search by vectors."""
    return any(open_strategy(name).needs_neighbours for name in strategies)
