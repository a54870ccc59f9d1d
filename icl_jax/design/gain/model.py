"""The model that judges groups: which one it is, whether it can, and its losses on passages."""

import json
from pathlib import Path

from jax.sharding import Mesh
import tokenizers

from icl_jax.config import ConfigError, ExamplesConfig
from icl_jax.corpus.files import model_checksum
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.models import huggingface
from icl_jax.models.inputs import position_limit
from icl_jax.models.kinds import predicts_masked
from icl_jax.models.passage_losses import PassageLosses
from icl_jax.sharding import with_auto_axes


def gain_inputs(examples: ExamplesConfig, strategy: str) -> dict:
    """What decides which groups of a strategy are kept; {}: they are not filtered.

    All that is made from the kept groups depends on it. The groups themselves do not, and their
    gains do not depend on `min_gain`: which groups are kept is decided again in every run.
    """
    if not examples.gain_model or strategy not in examples.gain_strategies:
        return {}
    return {"model": model_checksum(examples.gain_model), "min_gain": examples.min_gain}


def check_gain_model(
    examples: ExamplesConfig, limit: int, tokenizer: Tokenizer | None = None
) -> None:
    """Stops if the model cannot judge groups of `limit` tokens; reads no weights."""
    field = f"design.examples.gain_model: {examples.gain_model}"
    try:
        config = huggingface.read_config(examples.gain_model)
    except huggingface.FolderError as error:
        raise ConfigError(f"design.examples.gain_model: {error}") from None
    most, found = position_limit(config), []
    if most is not None and most < limit:
        found.append(
            f"it has {most} positions, fewer than the {limit} tokens of an example; lower "
            "design.examples.max_tokens, or choose another model"
        )
    masked = predicts_masked(config)
    if masked and not config.mlm_head:
        found.append("it has no MLM head, so it predicts no token; choose one that has one")
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        found.append(
            f"it knows {config.vocab_size} tokens, but the tokenizer has {tokenizer.vocab_size}, "
            "its separator included; choose a model trained with this tokenizer "
            "(python -m icl_jax.training.export)"
        )
    elif tokenizer is not None and (problem := _tokenizer_problem(examples.gain_model, tokenizer)):
        found.append(
            f"{problem}; choose a model trained with this tokenizer, or this model's tokenizer "
            "(design.tokenizer.folder)"
        )
    if tokenizer is not None and masked and tokenizer.mask_id is None:
        found.append(
            "it predicts masked tokens, but the tokenizer has no mask token; choose a GPT, or "
            "another tokenizer (design.tokenizer)"
        )
    if found:
        raise ConfigError("; ".join(f"{field}: {problem}" for problem in found))


def open_gain_model(folder: str, limit: int, mesh: Mesh | None) -> PassageLosses:
    """The model in a folder, for passages of at most `limit` tokens."""
    mesh = None if mesh is None else with_auto_axes(mesh)
    return PassageLosses(huggingface.load(folder, mesh), limit, mesh)


def _tokenizer_problem(folder: str, tokenizer: Tokenizer) -> str | None:
    """What is wrong if a model folder has another tokenizer than the given one.

    A model without a tokenizer is not checked. A separator that the model's tokenizer does not know
    is no difference: it was added for the model's training.
    """
    file = Path(folder) / "tokenizer.json"
    if file.exists():
        try:
            theirs = tokenizers.Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
        except Exception as error:  # the library raises no narrower one
            return f"its {file.name} is unreadable ({error})"
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
        return f"its {file.name} is unreadable ({error})"
    for name, id in tokenizer.special_ids.items():
        if theirs.get(name) != id:
            return f"in its {file.name} {name} is {theirs.get(name)}, but here it is {id}"
    return None
