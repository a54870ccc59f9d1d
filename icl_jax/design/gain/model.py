"""The model that judges groups: whether it can, and its losses on passages."""

from jax.sharding import Mesh

from icl_jax.config import ConfigError, ExamplesConfig, GPTConfig
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.design.gain.inputs import tokenizer_problem
from icl_jax.models import huggingface
from icl_jax.models.inputs import position_limit
from icl_jax.models.passage_losses import PassageLosses
from icl_jax.sharding import with_auto_axes


def check_gain_model(
    examples: ExamplesConfig, limit: int, tokenizer: Tokenizer | None = None
) -> None:
    """Stops on a model that cannot judge groups of `limit` tokens; reads no weights."""
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
    masked = not isinstance(config, GPTConfig)
    if masked and not config.mlm_head:
        found.append("it has no MLM head, so it predicts no token; choose one that has")
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        found.append(
            f"it knows {config.vocab_size} tokens, but the tokenizer has {tokenizer.vocab_size}, "
            "its separator included; choose a model trained with this tokenizer "
            "(python -m icl_jax.training.export)"
        )
    elif tokenizer is not None and (problem := tokenizer_problem(examples.gain_model, tokenizer)):
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
