"""Whether a model that a run starts from knows the tokens that its records are made of.

Two vocabularies of one size fit every check of numbers, and train to nothing.
"""

from collections.abc import Sequence
import functools
from pathlib import Path

from etils import epath

from icl_jax.config import ConfigError, ExperimentConfig
from icl_jax.corpus.tokenizers import Tokenizer, load
from icl_jax.design.folders import DesignFolders, design_workdir, is_arm
from icl_jax.files import mirror
from icl_jax.files.remote import is_remote
from icl_jax.training import checkpoint

_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"))


def start_tokenizer_problems(config: ExperimentConfig, workdir: epath.PathLike) -> list[str]:
    """What is wrong where both tokenizers are known: the model's and that of the records."""
    start = config.training.start_from
    theirs = _folder_of_model(start) if start else None
    ours = _folder_of_records(config.data.sources, workdir)
    if theirs is None or ours is None or theirs.resolve() == ours.resolve():
        return []
    return _misfit(start, theirs, ours, "", f"the records are made with that of {ours}")


def planned_tokenizer_problems(config: ExperimentConfig) -> list[str]:
    """The same before the records are there, of the tokenizer that would make them."""
    start, planned = config.training.start_from, config.design.tokenizer
    theirs = _folder_of_model(start) if start else None
    if theirs is None:
        return []
    if planned.folder:
        made = f"the records would be made with design.tokenizer.folder {planned.folder}"
        return _misfit(start, theirs, Path(planned.folder), planned.separator, made)
    if (theirs / "special_ids.json").exists():
        return []  # of ours: maybe the very one
    return [
        f"training.start_from {start} has a tokenizer of its own, but design.tokenizer.folder is "
        f"empty: another one would be trained; set --config.design.tokenizer.folder={theirs}"
    ]


def _folder_of_model(start: str) -> Path | None:
    """Where the tokenizer of a model folder, or of the design of a run, lies; None: nowhere."""
    if any(all((epath.Path(start) / name).exists() for name in names) for names in _FILES):
        return mirror.fetched(start)
    try:
        folder, _ = checkpoint.find(start)
        return _folder_of_records(checkpoint.read_config(start).data.sources, folder.parent)
    except ConfigError:
        return None  # a model folder without tokenizer; what is not there at all is told elsewhere


def _folder_of_records(sources: Sequence[str], workdir: epath.PathLike) -> Path | None:
    for source in sources:
        path = epath.Path(source)
        if is_arm(source):
            design = design_workdir(workdir) / "design"
        elif path.parent.name == "arms":
            design = path.parent.parent
        else:
            continue
        if is_remote(design):
            design = DesignFolders(design.parent).path  # its local copy
        if (design / "tokenizer" / "special_ids.json").exists():
            return Path(design / "tokenizer")
    return None


def _misfit(start: str, theirs: Path, ours: Path, separator: str, made: str) -> list[str]:
    try:
        their_vocabulary = _vocabulary(theirs, "", _stamp(theirs))
    except ConfigError as error:
        return [str(error).replace("design.tokenizer.folder", "training.start_from")]
    try:
        our_vocabulary = _vocabulary(ours, separator, _stamp(ours))
    except ConfigError as error:
        return [str(error)]
    both = their_vocabulary.keys() & our_vocabulary.keys()
    wrong = [id for id in sorted(both) if their_vocabulary[id] != our_vocabulary[id]]
    if not wrong:
        return []
    first = wrong[0]
    return [
        f"the tokenizer of training.start_from {start} does not fit: {made}, where {len(wrong):,} "
        f"of {len(both):,} ids are other tokens, such as {first}: {their_vocabulary[first]!r} "
        f"there, {our_vocabulary[first]!r} here; design the records in another --workdir with "
        f"--config.design.tokenizer.folder={theirs}, or start from a model that was trained with "
        "this tokenizer"
    ]


@functools.lru_cache(maxsize=4)
def _vocabulary(folder: Path, separator: str, stamp: tuple) -> dict[int, str]:
    """Token by id, without the separator: a model learns what it means here."""
    if (folder / "special_ids.json").exists():
        tokenizer = Tokenizer.open(folder)
    else:
        tokenizer = load(folder, separator)
    vocabulary = tokenizer.library.get_vocab(with_added_tokens=True)
    return {id: token for token, id in vocabulary.items() if id != tokenizer.separator_id}


def _stamp(folder: Path) -> tuple:
    """Changes with the files, of which a long study asks again and again."""
    found = sorted(path for path in folder.glob("*") if path.suffix in (".json", ".txt"))
    return tuple((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in found)
