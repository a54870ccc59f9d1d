"""How the evaluated model makes the vector of a sentence, as the user or its own files say."""

from tokenizers import Tokenizer, processors

from icl_jax.config import ConfigError, EncoderConfig, EvaluationConfig
from icl_jax.models.inputs import position_limit
from icl_jax.retrieval.encoders.folder import read_encoder_folder
from icl_jax.retrieval.encoders.sentence_recipe import SentenceRecipe
from icl_jax.training.model_at import SENTENCE_FOLDER, ModelAt

_WORDS = {
    "cls": "the first token",
    "max": "the maximum over the tokens",
    "mean": "the mean of the tokens",
    "mean_sqrt_len_tokens": "the sum of the tokens by the root of their number",
    "weightedmean": "the mean of the tokens weighted by their places",
    "lasttoken": "the last token",
}


def make_recipe(model: ModelAt, config: EvaluationConfig) -> SentenceRecipe:
    """The recipe of `config.sts`; stops on one that this model cannot follow."""
    wanted = config.sts
    own_files = model.place.kind == SENTENCE_FOLDER
    if own_files and config.tokenizer:
        raise ConfigError(
            f"{model.path} is a sentence-transformers folder, which has a tokenizer of its own; "
            "leave evaluation.tokenizer empty"
        )
    if own_files:
        recipe = read_encoder_folder(EncoderConfig(folder=model.path)).recipe
    else:
        recipe = _recipe_of_model(model)
    if own_files and wanted.pooling == "own":
        if not wanted.special_tokens:
            raise ConfigError(
                "evaluation.sts.special_tokens=False needs another pooling than 'own', which is "
                f"what the files of {model.path} say; choose mean or first_last"
            )
        return recipe
    recipe.after = ()
    recipe.poolings = ("cls",) if wanted.pooling == "cls" else ("mean",)
    recipe.first_last = wanted.pooling == "first_last"
    recipe.special_tokens = wanted.special_tokens
    if wanted.pooling == "cls" and not (wanted.special_tokens and recipe.edges()[0]):
        why = (
            f"the tokenizer of {model.path} puts none before a text; choose mean"
            if wanted.special_tokens
            else "evaluation.sts.special_tokens is False; set it to True"
        )
        raise ConfigError(f"evaluation.sts.pooling 'cls' is the vector of a begin token, but {why}")
    return recipe


def describe_recipe(recipe: SentenceRecipe) -> str:
    """The recipe in words."""
    layer = "the mean of the first and the last layer" if recipe.first_last else "the last layer"
    words = f"{' and '.join(_WORDS[pooling] for pooling in recipe.poolings)} of {layer}"
    if not any(recipe.edges()):
        words += ", without special tokens"
    elif "cls" not in recipe.poolings:
        words += f", special tokens {'included' if recipe.special_tokens else 'left out'}"
    for layer in recipe.after:
        words += ", then " + ("normalised" if layer == "normalize" else "a dense layer")
    return words + (f"; before each text {recipe.prompt!r}" if recipe.prompt else "")


def _recipe_of_model(model: ModelAt) -> SentenceRecipe:
    """An encoder reads a sentence between begin and end tokens, a GPT the sentence alone."""
    tokenizer = Tokenizer.from_str(model.tokenizer.library.to_str())
    tokenizer.encode_special_tokens = True  # as text, as in training
    if not model.masked:
        tokenizer.post_processor = None
    elif not tokenizer.num_special_tokens_to_add(is_pair=False):
        ids = model.tokenizer.begin_of_text_id, model.tokenizer.end_of_text_id
        begin, end = (None if id is None else tokenizer.id_to_token(id) for id in ids)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*filter(None, [begin]), "$A", end],
            special_tokens=[(n, id) for n, id in zip((begin, end), ids, strict=True) if n],
        )
    limit = position_limit(model.config)
    added = tokenizer.num_special_tokens_to_add(is_pair=False)
    if limit is not None:
        if limit <= added:
            raise ConfigError(
                f"{model.path} has {limit} positions, which the {added} special tokens around a "
                "sentence fill; choose a model with more"
            )
        tokenizer.enable_truncation(limit)
    return SentenceRecipe(tokenizer, limit)
