"""Whether a model that a run starts from knows the tokens that its records are made of.

Two vocabularies of one size fit every check of numbers, and train to nothing.
"""

import functools
from pathlib import Path

from etils import epath

from icl_jax.config import ConfigError, ExperimentConfig, StageError
from icl_jax.files import mirror
from icl_jax.training.model_at import find_model, read_tokenizer, tokenizer_of_records


def start_tokenizer_problems(config: ExperimentConfig, workdir: epath.PathLike) -> list[str]:
    """What is wrong where both tokenizers are known: the model's and that of the records."""
    start = config.training.start_from
    theirs = _folder_of_model(start) if start else None
    ours = _fetched(tokenizer_of_records(config.data.sources, workdir))
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
    """The folder of the tokenizer that a model was trained with; None: it is not known."""
    try:
        return _fetched(find_model(start).tokenizer())
    except (ConfigError, StageError):
        return None  # other checks report that there is no model


def _fetched(folder: epath.PathLike | None) -> Path | None:
    return None if folder is None else mirror.fetched(folder)


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
    tokenizer = read_tokenizer(folder, separator)
    vocabulary = tokenizer.library.get_vocab(with_added_tokens=True)
    return {id: token for token, id in vocabulary.items() if id != tokenizer.separator_id}


def _stamp(folder: Path) -> tuple:
    """Changes with the files; a long study looks them up many times."""
    found = sorted(path for path in folder.glob("*") if path.suffix in (".json", ".txt"))
    return tuple((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in found)
