"""The steps of a build: the order in which they run, and which of them depend on which."""

from fnmatch import fnmatch
from pathlib import Path

from icl_jax.cli import suggest_removal
from icl_jax.config import StageError
from icl_jax.design.arms import ARMS, strategies_of
from icl_jax.design.folders import DesignFolders
from icl_jax.design.strategies.strategy import need_neighbours, open_strategy
from icl_jax.files.mirror import shown
from icl_jax.files.step_folder import OtherInputsError

# Of the search by vectors, in the order in which they are made.
_SEARCH = ("encoder", "corpus_vectors", "query_vectors", "neighbours_*", "neighbours")


def steps_of(config: dict) -> list[str]:
    """The steps of a build in the order in which they run; a workdir may hold those of others."""
    examples, own_queries = config["examples"], bool(config["queries"]["files"])
    strategies = strategies_of(examples["arms"])
    steps = ["tokenizer", "corpus", "queries"]
    if need_neighbours(strategies):
        steps += ["encoder"] * (not config["encoder"]["folder"])
        steps += ["corpus_vectors", "query_vectors"]
        steps += ["neighbours_signatures/pool", "neighbours_signatures/queries", "neighbours_pool"]
        steps += ["neighbours_index"] * (config["search"]["engine"] == "faiss") + ["neighbours"]
    for name in strategies:
        steps += [*open_strategy(name).steps, f"groups/{name}"]
        judged = examples["gain_model"] and name in examples["gain_strategies"]
        steps += [f"groups/{name}/gain"] * bool(judged)
    steps += [f"arms/{arm}" for arm in examples["arms"]]
    steps += ["overlap"] * bool(examples["evaluation_files"])
    of_queries = {"queries", "query_vectors", "neighbours_signatures/queries"}
    return [step for step in dict.fromkeys(steps) if own_queries or step not in of_queries]


def refuse_other_inputs(error: OtherInputsError, folders: DesignFolders) -> StageError:
    """The same refusal, naming all folders that the other inputs make useless."""
    place = shown(error.path)
    delete = suggest_removal(*(shown(path) for path in made_from(error.path, folders)))
    return StageError(
        f"{place} was made from other inputs ({error.differences}); choose another --workdir, "
        f"undo the difference, or delete it with what was made from it: {delete}"
    )


def made_from(path: Path, folders: DesignFolders) -> list[Path]:
    """A step's folder and the existing ones that depend on it."""
    step, *rest = path.relative_to(folders.path).parts
    known = strategies_of(ARMS)
    if step in ("tokenizer", "corpus", "queries"):
        return [folders.path]
    if step in ("arms", "overlap"):
        return [path]
    if step == "groups":
        changed, found = {rest[0]}, []
    elif owner := _owner_of_search(step, known):
        changed = {owner}
        found = sorted(folders.path.glob(f"{open_strategy(owner).own_search.folder}*"))
    else:
        first = next(i for i, name in enumerate(_SEARCH) if fnmatch(step, name))
        found = [p for name in _SEARCH[first:] for p in sorted(folders.path.glob(name))]
        changed = {name for name in known if open_strategy(name).needs_neighbours}
    changed |= {arm.strategy for arm in ARMS.values() if changed & {*arm.made_from}}
    found += [folders.groups / name for name in known if name in changed]
    found += [folders.arms / arm for arm in ARMS if ARMS[arm].strategy in changed]
    return [folder for folder in found if folder.exists()]


def _owner_of_search(step: str, strategies: list[str]) -> str | None:
    """The strategy whose own search made a step."""
    for name in strategies:
        search = open_strategy(name).own_search
        if search and step.startswith(search.folder):
            return name
    return None
