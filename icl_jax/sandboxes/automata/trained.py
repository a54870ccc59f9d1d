"""Networks that must find the automaton: one training of several seeds, and what it is tested on.

A row is the letters, and each letter predicts what is seen of the state after it; or, with a
scratchpad, letters and states in turn, and at test the network reads its own states. Token ids:
letters, then labels. Shape suffixes: B batch, T time, N twice the time less one, V vocabulary.
"""

from collections.abc import Callable
import dataclasses
from pathlib import Path
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import ConfigError, GPTConfig, LSTMConfig, ModelConfig, OptimizerConfig
from icl_jax.models.attention import locate
from icl_jax.models.layers import make_cache
from icl_jax.sandboxes.automata.library import INDIRECT, indirect, make
from icl_jax.sandboxes.automata.semiautomaton import Semiautomaton
from icl_jax.sandboxes.fit import UNFINISHED, Draw, Fitted, Recipe, fit
from icl_jax.training.objectives import Task

TEST_SEED = 1_000_003  # no training has it
CHUNK = 128  # rows that are tested at once


@dataclasses.dataclass(frozen=True)
class Trial:
    """New rows from which the accuracy is measured, also that of their first `prefixes` letters.

    A prefix is what a shorter row would be: no network here sees what comes later.
    """

    length: int
    prefixes: tuple[int, ...] = ()
    ones: float | None = None  # the share of letter 1 among two letters; None: as in training
    by_count: bool = False  # the number of letters 1 is uniform, and accuracy is kept for each
    rows: int = 2048  # Liu 2024, 3.4.5.1.1

    def name(self, length: int | None = None) -> str:
        """What results call it, or one of its prefixes."""
        share = "" if self.ones is None else f" ones={self.ones:g}"
        return f"T={length or self.length}{share}{' by count' * self.by_count}"


@dataclasses.dataclass(frozen=True)
class Training:
    """A network, what it reads, and how long it is trained."""

    automaton: str  # a name of `make`, or of `indirect` where only a part of the state is seen
    length: int
    tests: tuple[Trial, ...]
    network: str = "gpt"  # or lstm
    layers: int = 2
    width: int = 64
    hidden: int = 64  # of the MLP, or of the LSTM
    heads: int = 4
    position: str = "sinusoidal"
    form: str = "direct"  # or scratchpad
    learn: str = "labels"  # or states: trained on the whole state, tested on what is seen of it
    revealed: float = 1.0  # the share of the labels that are learnt from
    shift: int = 0  # the position of the first token is uniform from 0 to this, one for a batch
    steps: int = 4000
    batch: int = 64
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    dropout: float = 0.0
    ema_decay: float = 0.9
    seeds: int = 5

    def automaton_of(self) -> Semiautomaton:
        """The automaton of the name."""
        return indirect(self.automaton) if self.automaton in INDIRECT else make(self.automaton)

    def classes(self) -> int:
        """How many labels there are to choose from."""
        automaton = self.automaton_of()
        return automaton.num_states if self.learn == "states" else automaton.num_labels

    def model(self) -> ModelConfig:
        """The network's config."""
        vocabulary = self.automaton_of().num_letters + self.classes()
        if self.network == "lstm":
            return LSTMConfig(
                vocabulary, embed_dim=self.width, hidden_dim=self.hidden, num_layers=self.layers
            )
        rates = dict.fromkeys(
            ("embedding_dropout", "attention_dropout", "residual_dropout"), self.dropout
        )
        return GPTConfig(
            vocab_size=vocabulary, context_length=self.length, num_layers=self.layers,
            embed_dim=self.width, mlp_dim=self.hidden, num_heads=self.heads,
            position=self.position, tie_head=False, attention="plain", **rates,
        )  # fmt: skip

    def recipe(self) -> Recipe:
        """AdamW with a short warm-up, and a cosine to a tenth of the rate."""
        optimizer = OptimizerConfig(
            learning_rate=self.learning_rate, weight_decay=self.weight_decay, b2=0.999,
            warmup=min(100, self.steps // 10), schedule="cosine", final_share=0.1, clip_norm=1.0,
        )  # fmt: skip
        return Recipe(self.steps, optimizer, self.ema_decay, dropout=self.dropout > 0)

    @property
    def tokens(self) -> int:
        """The tokens of a row."""
        return 2 * self.length - 1 if self.form == "scratchpad" else self.length

    def flops(self) -> float:
        """The operations of all seeds' matrix products in training."""
        if self.network == "lstm":
            weights = self.layers * 4 * self.hidden * (self.hidden + self.width)
        else:
            weights = self.layers * (4 * self.width**2 + 2 * self.width * self.hidden)
            weights += self.layers * self.tokens * self.width  # causal attention, on average
        weights += self.classes() * (self.hidden if self.network == "lstm" else self.width)
        return 6.0 * weights * self.tokens * self.batch * self.steps * self.seeds


def train(folder: Path, **fields) -> dict:
    """Trains the seeds and tests each; returns what `results.json` holds of it."""
    return train_and_read(folder, None, **fields)


def train_and_read(
    folder: Path, read: Callable[[Training, Fitted, Path], dict] | None, **fields
) -> dict:
    """As `train`; `read(training, fitted, folder)` adds to the results."""
    tests = (
        Trial(**test | {"prefixes": tuple(test.get("prefixes", ()))}) for test in fields["tests"]
    )
    fields["tests"] = tuple(tests)
    training = Training(**fields)
    check(training)
    started = time.perf_counter()
    fitted = fit(
        training.model(), make_draw(training), training.recipe(), range(training.seeds), folder
    )
    seconds = time.perf_counter() - started
    results = {
        "seconds": round(seconds, 1),
        "parameters": sum(leaf[0].size for leaf in jax.tree.leaves(fitted.params)),
        "losses": np.round(fitted.losses, 5).tolist(),
        "tests": measure_all(training, fitted),
    }
    if read is not None:
        results |= read(training, fitted, folder)
    (folder / UNFINISHED).unlink(missing_ok=True)
    return results


def check(training: Training) -> None:
    """Stops on fields that contradict each other."""
    automaton = training.automaton_of()
    for what, options in {
        "network": ("gpt", "lstm"), "form": ("direct", "scratchpad"), "learn": ("labels", "states"),
    }.items():  # fmt: skip
        if getattr(training, what) not in options:
            expected = " or ".join(options)
            raise ConfigError(f"{what} must be {expected}, got '{getattr(training, what)}'")
    if training.form == "scratchpad" and training.network == "lstm":
        raise ConfigError("a scratchpad is for the gpt: an LSTM has its state already")
    if training.shift and training.network == "lstm":
        raise ConfigError("a shift of positions is for the gpt: an LSTM has none; set shift=0")
    if training.form == "scratchpad" and training.learn != "labels":
        raise ConfigError("a scratchpad holds labels; set learn='labels'")
    for test in training.tests:
        if (test.by_count or test.ones is not None) and automaton.num_letters != 2:
            raise ConfigError(
                f"a test by the share of letter 1 needs an automaton of two letters, but "
                f"{automaton.name} has {automaton.num_letters}"
            )


# What a network learns from.


def make_draw(training: Training) -> Draw:
    """A batch of new rows from a key, made on the device."""
    automaton = training.automaton_of()
    first = automaton.num_letters

    def draw(key: jax.Array) -> tuple[Task, jax.Array | None]:
        row_key, reveal_key, shift_key = jax.random.split(key, 3)
        rows = automaton.sample(row_key, training.batch, training.length)
        targets_BT = first + rows[training.learn]
        weights_BT = jnp.ones(targets_BT.shape, jnp.float32)
        if training.revealed < 1:
            shown_BT = jax.random.bernoulli(reveal_key, training.revealed, targets_BT.shape)
            weights_BT = shown_BT.astype(jnp.float32)
        inputs_BT = rows["letters"]
        if training.form == "scratchpad":
            inputs_BT = interleave(rows["letters"], targets_BT)
            targets_BT = interleave(targets_BT, targets_BT)
            weights_BT = interleave(weights_BT, jnp.zeros_like(weights_BT))
        offset = None
        if training.shift:
            offset = jax.random.randint(shift_key, (), 0, training.shift + 1)
        return Task(inputs_BT, None, targets_BT, weights_BT), offset

    return draw


def interleave(first_BT: jax.Array, second_BT: jax.Array) -> jax.Array:
    """s1 q1 s2 q2 ... sT: the last of the second is left out."""
    return jnp.stack([first_BT, second_BT], axis=-1).reshape(first_BT.shape[0], -1)[:, :-1]


# What it is tested on.


class Right(NamedTuple):
    """Which predictions of some rows are right."""

    right_BT: jax.Array
    ones_B: jax.Array  # how many letters of a row are letter 1


def measure_all(training: Training, fitted: Fitted) -> dict[str, dict]:
    """The results of every test, each of all seeds on the same new rows."""
    results, compiled = {}, {}
    for test in training.tests:
        form = test.length, test.by_count, test.rows
        if form not in compiled:  # they differ in how likely letters are, and share the program
            compiled[form] = fitted.of_each_seed(make_test(training, test))
        letters = training.automaton_of().num_letters
        weights = [1.0] * letters if test.ones is None else [1 - test.ones, test.ones]
        found = compiled[form](np.array(weights, np.float32))
        right_NBT = found.right_BT.reshape(training.seeds, -1, test.length)
        for length in (*test.prefixes, test.length):
            results[test.name(length)] = {
                "accuracy": right_NBT[..., :length].mean(axis=(1, 2)).tolist(),
                "whole_rows": right_NBT[..., :length].all(axis=2).mean(axis=1).tolist(),
            }
        own = results[test.name()]
        own["by_position"] = np.round(right_NBT.mean(axis=1), 5).tolist()
        if test.by_count:
            ones_B = found.ones_B.reshape(training.seeds, -1)[0]
            own["by_count"] = [
                np.round(right_NBT[:, ones_B == n].mean(axis=(1, 2)), 5).tolist()
                for n in range(test.length + 1)
            ]
    return results


def make_test(training: Training, test: Trial) -> Callable:
    """(model, weight of each letter) -> which predictions of its new rows are right."""
    automaton = training.automaton_of()
    label_Q, first = jnp.asarray(automaton.label_Q), automaton.num_letters
    # The rows depend on what is tested alone, so that all networks see the same.
    keys = jax.random.split(
        jax.random.fold_in(jax.random.key(TEST_SEED), test.length), -(-test.rows // CHUNK)
    )

    def of_chunk(model, key: jax.Array, weight_S: jax.Array) -> Right:
        rows = draw_test(automaton, test, min(CHUNK, test.rows), key, weight_S)
        if training.form == "scratchpad":
            chosen_BT = fill_in(model, rows["letters"], first)
        else:
            chosen_BT = jnp.argmax(model(rows["letters"])[..., first:], axis=-1)
        if training.learn == "states":
            chosen_BT = label_Q[chosen_BT]
        return Right(chosen_BT == rows["labels"], jnp.sum(rows["letters"] == 1, axis=1))

    def run(model, weight_S: jax.Array) -> Right:
        return jax.lax.map(lambda key: of_chunk(model, key, weight_S), keys)

    return run


def draw_test(
    automaton: Semiautomaton, test: Trial, rows: int, key: jax.Array, weight_S: jax.Array
) -> dict:
    """New rows, as `Semiautomaton.sample` gives them."""
    if not test.by_count:
        return automaton.sample(key, rows, test.length, weight_S)
    count_key, place_key = jax.random.split(key)
    count_B1 = jax.random.randint(count_key, (rows, 1), 0, test.length + 1)
    place_BT = jax.vmap(lambda k: jax.random.permutation(k, test.length))(
        jax.random.split(place_key, rows)
    )
    letters_BT = (place_BT < count_B1).astype(jnp.int32)
    states_BT = automaton.advance(letters_BT)
    labels_BT = jnp.asarray(automaton.label_Q)[states_BT]
    return {"letters": letters_BT, "states": states_BT, "labels": labels_BT}


def fill_in(model, letters_BT: jax.Array, first: int) -> jax.Array:
    """The labels that a scratchpad network writes after each letter, reading its own before it."""
    batch, length = letters_BT.shape
    places = locate(2 * length, None)
    cache = make_cache(model.config, batch, 2 * length)

    def write(state, now):
        cache, label_B = state
        letter_B, start = now
        tokens_B2 = jnp.stack([first + label_B, letter_B], axis=1)
        logits_BV, cache = model.extend(tokens_B2, places, start, cache)
        label_B = jnp.argmax(logits_BV[:, first:], axis=-1).astype(jnp.int32)
        return (cache, label_B), label_B

    logits_BV, cache = model.extend(letters_BT[:, :1], places, jnp.int32(0), cache)
    label_B = jnp.argmax(logits_BV[:, first:], axis=-1).astype(jnp.int32)
    starts_T = 2 * jnp.arange(1, length, dtype=jnp.int32) - 1
    _, rest_TB = jax.lax.scan(write, (cache, label_B), (letters_BT[:, 1:].T, starts_T))
    return jnp.concatenate([label_B[:, None], rest_TB.T], axis=1)
