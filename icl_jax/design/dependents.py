"""What must go when one step of a build is to be made anew: that step and what was made from it."""

from fnmatch import fnmatch
from pathlib import Path

from icl_jax.cli import suggest_removal
from icl_jax.config import StageError
from icl_jax.design.arms import ARMS, NEED_NEIGHBOURS, STRATEGIES
from icl_jax.design.folders import DesignFolders
from icl_jax.files.mirror import shown
from icl_jax.files.step_folder import OtherInputsError

# In the order in which they are made.
_SEARCH = ("encoder", "corpus_vectors", "query_vectors", "neighbours_*", "neighbours")


def explain_all(error: OtherInputsError, folders: DesignFolders) -> StageError:
    """The same refusal with all folders that the other inputs make useless, not one at a time."""
    place = shown(error.path)
    delete = suggest_removal(*(shown(path) for path in made_from(error.path, folders)))
    return StageError(
        f"{place} was made from other inputs ({error.differences}); choose another --workdir, "
        f"undo the difference, or delete it with what was made from it: {delete}"
    )


def made_from(path: Path, folders: DesignFolders) -> list[Path]:
    """A step's folder and those that depend on it, as far as they are there."""
    step, *rest = path.relative_to(folders.path).parts
    if step in ("tokenizer", "corpus", "queries"):
        return [folders.path]
    if step == "groups":
        strategies, found = _following({rest[0]}), []
    elif step.startswith("entity_neighbours"):
        strategies, found = {"shared_entity"}, sorted(folders.path.glob("entity_neighbours*"))
    elif step in ("arms", "overlap"):
        return [path]
    else:
        first = next(i for i, name in enumerate(_SEARCH) if fnmatch(step, name))
        found = [p for name in _SEARCH[first:] for p in sorted(folders.path.glob(name))]
        strategies = _following(NEED_NEIGHBOURS)
    found += [folders.groups / name for name in STRATEGIES if name in strategies]
    found += [folders.arms / arm for arm in ARMS if ARMS[arm].strategy in strategies]
    return [folder for folder in found if folder.exists()]


def _following(strategies: set[str]) -> set[str]:
    return strategies | {name for name, needed in STRATEGIES.items() if strategies & {*needed}}
