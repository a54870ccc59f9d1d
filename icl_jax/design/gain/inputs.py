"""The folder of the model that judges groups: its checksum and its tokenizer, told without JAX."""

import json
from pathlib import Path

import tokenizers

from icl_jax.config import ExamplesConfig
from icl_jax.corpus.files import model_checksum
from icl_jax.corpus.tokenizers import Tokenizer


def gain_inputs(examples: ExamplesConfig, strategy: str) -> dict:
    """What all that is made from the groups of a strategy depends on; {}: they are not filtered.

    The groups themselves do not, nor do their gains on `min_gain`: which groups are kept is told
    anew in every run.
    """
    if not examples.gain_model or strategy not in examples.gain_strategies:
        return {}
    return {"model": model_checksum(examples.gain_model), "min_gain": examples.min_gain}


def tokenizer_problem(folder: str, tokenizer: Tokenizer) -> str | None:
    """What is wrong if the folder of a model has a tokenizer that is not the given one.

    Where a model has none nothing can be told. A separator that the model's tokenizer does not
    know is no difference: it was added for the model's training.
    """
    file = Path(folder) / "tokenizer.json"
    if file.exists():
        try:
            theirs = tokenizers.Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
        except Exception as error:  # the library raises no narrower one
            return f"its {file.name} cannot be read ({error})"
        ours = tokenizer.library.get_vocab(with_added_tokens=True)
        separator = tokenizer.library.id_to_token(tokenizer.separator_id)
        if separator not in theirs and tokenizer.separator_id not in theirs.values():
            ours.pop(separator)
        other = sorted((id, token) for token, id in ours.items() if theirs.get(token) != id)
        if other:
            id, token = other[0]
            return (
                f"its {file.name} is of another tokenizer: of our {len(ours):,} tokens "
                f"{len(other):,} are not the same there (the first: {token!r} is {id} here, "
                f"{theirs.get(token, 'none')} there)"
            )
    file = Path(folder) / "special_ids.json"
    try:
        theirs = json.loads(file.read_text()) if file.exists() else tokenizer.special_ids
    except ValueError as error:
        return f"its {file.name} cannot be read ({error})"
    for name, id in tokenizer.special_ids.items():
        if theirs.get(name) != id:
            return f"in its {file.name} {name} is {theirs.get(name)}, but here it is {id}"
    return None
