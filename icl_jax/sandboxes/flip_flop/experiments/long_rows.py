"""Trained networks on rows longer than they were trained on: how far attention dilutes, and where
hard attention goes wrong. Shape suffixes: B rows, T tokens, D embed, K head_dim.
"""

from pathlib import Path

import jax
import numpy as np

from icl_jax.config import GPTConfig, OptimizerConfig
from icl_jax.models.gpt import GPT
from icl_jax.models.layers import first_block
from icl_jax.sandboxes.fit import UNFINISHED, Draw, Fitted, Recipe, fit
from icl_jax.sandboxes.flip_flop.experiments.attention import (
    NOOP,
    ONE,
    ZERO,
    new_letters,
    written,
)
from icl_jax.sandboxes.flip_flop.language import Mixture, ffl
from icl_jax.sandboxes.flip_flop.mechanisms import dilution, predict_failures, read_terms
from icl_jax.sandboxes.flip_flop.trained import TEST_SEED, Training, make_draw, make_loss
from icl_jax.training.objectives import Task

KINDS = ("one write", "two writes")  # the rows of proposition 5, in the order of `Failures`


def dilute(folder: Path, lengths: list[int], rows: int, **fields) -> dict:
    """Trains the seeds; how sharp each head is at the last read of longer and longer rows.

    Ranges of scores and largest weights: (seeds, layers, heads) for each length.
    """
    training = Training(**fields | {"ignore": tuple(fields["ignore"]), "tests": ()})
    fitted = fit(
        training.starting(), make_draw(training), training.recipe(), range(training.seeds), folder,
        make_loss(training),
    )  # fmt: skip
    networks, found = _networks(fitted, training.seeds), []
    for length in lengths:
        language = Mixture(tuple(ffl(length, ignore) for ignore in training.ignore))
        tokens_BT = np.asarray(language.sample(jax.random.key(TEST_SEED), rows))[:, :-1]
        last_BT = np.zeros(tokens_BT.shape, bool)
        last_BT[:, -1] = True
        heads = [dilution(network, tokens_BT, last_BT) for network in networks]
        found.append({
            "length": length,
            "score_range": np.round([each.score_range for each in heads], 4).tolist(),
            "weight": np.round([each.weight for each in heads], 6).tolist(),
        })  # fmt: skip
    (folder / UNFINISHED).unlink(missing_ok=True)
    return {"losses": np.round(fitted.losses, 5).tolist(), "lengths": found}


def _networks(fitted: Fitted, seeds: int) -> list[GPT]:
    each = range(seeds)
    return [fitted.model(jax.tree.map(lambda x: x[seed], fitted.params)) for seed in each]  # noqa: B023


def fail(
    folder: Path, length: int, longest: int, width: int, noop: float, steps: int, batch: int,
    seeds: int,
) -> dict:  # fmt: skip
    """Trains heads with linear positions; the lengths at which their hard attention fails.

    As predicted from the terms of the score, and as found with every length up to `longest`.
    """
    config = GPTConfig(
        vocab_size=3, context_length=length, num_layers=1, embed_dim=width, num_heads=1,
        mlp_dim=2 * width, norm="none", position="linear", tie_head=False, init_stddev=0.2,
    )  # fmt: skip
    optimizer = OptimizerConfig(
        learning_rate=3e-3, schedule="linear", warmup=50, b2=0.999, weight_decay=0.0
    )
    draw = _draw_letters(length, noop, batch)
    fitted = fit(config, draw, Recipe(steps, optimizer), range(seeds), folder)
    networks = [_failures(network, longest) for network in _networks(fitted, seeds)]
    (folder / UNFINISHED).unlink(missing_ok=True)
    return {"losses": np.round(fitted.losses, 5).tolist(), "networks": networks}


def _draw_letters(length: int, noop: float, batch: int) -> Draw:
    """Letters of the automaton, each of which predicts what is held after it."""

    def draw(key: jax.Array) -> tuple[Task, None]:
        letters_BT = new_letters(key, batch, length, noop)
        weights_BT = np.ones((batch, length), np.float32)
        return Task(letters_BT, None, written(letters_BT), weights_BT), None

    return draw


def _failures(network: GPT, longest: int) -> dict:
    """kappa, and both lengths of each row: of both kinds, with either bit written last."""
    (terms,) = read_terms(network)
    rows = []
    for write, other in ((ZERO, ONE), (ONE, ZERO)):
        predicted = predict_failures(terms, write, other, NOOP)
        for kind, length in zip(KINDS, predicted, strict=True):
            found = first_failure(network, kind, write, other, longest)
            rows.append({"row": kind, "write": write, "predicted": length, "found": found})
    return {"kappa": terms.kappa, "rows": rows}


def first_failure(network: GPT, kind: str, write: int, other: int, longest: int) -> int | None:
    """The shortest row whose last token scores another one highest; None: none up to `longest`."""
    scores = _last_scores(network)
    shortest = 2 if kind == KINDS[0] else 3
    for length in range(shortest, longest + 1):
        letters_T, right = proof_row(kind, length, write, other)
        if scores(letters_T).argmax() != right:
            return length
    return None


def proof_row(kind: str, length: int, write: int, other: int) -> tuple[np.ndarray, int]:
    """The row of this length, and the place of its latest write."""
    letters_T = np.full(length, NOOP, np.int32)
    if kind == KINDS[0]:
        letters_T[0] = write
        return letters_T, 0
    letters_T[0], letters_T[-2] = other, write
    return letters_T, length - 2


def _last_scores(network: GPT):
    """(letters) -> the last one's scores on all: queries times keys, in float64 by NumPy.

    Of the embeddings with their positions, as the network itself does it: no terms are split.
    """
    layer = first_block(network.blocks, network.config).attention
    embedding_VD = np.asarray(
        network.token_embedding(np.arange(network.config.vocab_size, dtype=np.int32)), np.float64
    )
    parameters = network.positions.direction, *(
        getattr(dense, part) for dense in (layer.query, layer.key) for part in ("kernel", "bias")
    )  # fmt: skip
    direction_D, query_DHK, query_HK, key_DHK, key_HK = (
        np.asarray(parameter[...], np.float64) for parameter in parameters
    )
    unit = network.config.context_length

    def scores(letters_T: np.ndarray) -> np.ndarray:
        place_T1 = np.arange(len(letters_T))[:, None] / unit
        x_TD = embedding_VD[letters_T] + place_T1 * direction_D
        query_K = x_TD[-1] @ query_DHK[:, 0] + query_HK[0]
        return (x_TD @ key_DHK[:, 0] + key_HK[0]) @ query_K

    return scores
