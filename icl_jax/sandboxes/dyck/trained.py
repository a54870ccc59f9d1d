"""Networks that must find how brackets close: one training of several seeds, and what is read off.

All seeds learn from one set of prefixes, as in the authors' code. With a contrastive term they are
also to say the same of a prefix after pairs that are closed (3.40).
Shape suffixes: B batch, C chunks, T time, P tokens of a longer row, S seeds, V vocabulary,
Q queries, K keys, L layers, M (type, depth) tokens.
"""

from collections.abc import Callable
import dataclasses
from pathlib import Path
import time
from typing import NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import ConfigError, GPTConfig, OptimizerConfig
from icl_jax.models.gpt import GPT
from icl_jax.sandboxes.dyck.balance import violation
from icl_jax.sandboxes.dyck.contrast import fixed_before, nested_before
from icl_jax.sandboxes.dyck.language import EMPTY, START, Dyck, Rows
from icl_jax.sandboxes.dyck.network import FORMS, MinimalFirstLayer, gpt, make_uniform
from icl_jax.sandboxes.dyck.variation import top_places, variation
from icl_jax.sandboxes.fit import UNFINISHED, Fitted, Recipe, fit, mean_loss
from icl_jax.training.objectives import Task

TRAIN_SEED, TEST_SEED = 1_000_001, 1_000_003  # of rows; no training has them as its own
CHUNK = 16  # rows that are tested at once
SURE = 0.8  # of the probability of all closings, on the right one: the authors' code
NEAR, FAR = "as trained", "longer"  # the two tests
BIN = 20  # lengths whose accuracies are put together

OPTIONS = {
    "network": ("minimal", "gpt"),
    "learn": ("closings", "all", "copy"),
    "prefix": ("nested", "fixed"),
    "form": FORMS,
}


@dataclasses.dataclass(frozen=True)
class Training:
    """A network, what it learns from, and how long; defaults as in the authors' code."""

    network: str = "minimal"  # or gpt
    form: str = "pairs"  # of a minimal first layer: embeddings 3.37, 3.38, 3.39
    position: str = "none"  # of a gpt: none or linear
    layers: int = 2  # of a gpt
    width: int = 50
    init_stddev: float = 0.02  # of the first weights
    uniform: bool = False  # every visible token has the same attention
    types: int = 2
    depth: int = 4
    opening: float = 0.5
    length: int = 28
    examples: int = 3571  # prefixes: 100,000 tokens of length 28
    learn: str = "closings"  # closings, all: what comes next; copy: what is there
    contrast: float = 0.0  # weight of the contrastive term
    # Its prefix: nested pairs of random types after START; or, fixed, all brackets once and a
    # random pair inside, before START.
    prefix: str = "nested"
    steps: int = 360
    batch: int = 100
    learning_rate: float = 1e-2
    seeds: int = 40
    longest: int = 500  # prefixes of this and of up to a fifth less are the test of other lengths
    test_rows: int = 128

    @property
    def language(self) -> Dyck:
        return Dyck(self.types, self.depth, self.opening)

    @property
    def far(self) -> tuple[int, int]:
        """The shortest and the longest prefix of the test of other lengths."""
        return self.longest - self.longest // 5, self.longest

    def start(self, rngs: nnx.Rngs) -> MinimalFirstLayer | GPT:
        """The network with its first weights."""
        if self.network == "minimal":
            form = self.form, self.width, self.init_stddev
            model = MinimalFirstLayer(self.language, *form, rngs=rngs)
        else:
            model = GPT(self.gpt(), rngs=rngs)
        return make_uniform(model) if self.uniform else model

    def gpt(self) -> GPTConfig:
        """The config of a standard network."""
        return gpt(self.language, self.position, self.layers, self.width, self.init_stddev)

    def recipe(self) -> Recipe:
        """Adam and a cosine."""
        optimizer = OptimizerConfig(
            learning_rate=self.learning_rate, weight_decay=0.0, b2=0.999, warmup=0,
            schedule="cosine", clip_norm=0.0,
        )  # fmt: skip
        return Recipe(self.steps, optimizer)

    def flops(self) -> float:
        """The operations of all seeds' matrix products, in training and in the tests."""
        of_tests = self.test_rows * self.longest * self._weights(self.longest)
        rows = self.batch * self.length * self._weights(self.length)
        if self.contrast:
            rows += self.batch * 2 * self.length * self._weights(2 * self.length)
        return self.seeds * (6.0 * self.steps * rows + 2.0 * of_tests)

    def _weights(self, length: int) -> float:
        """Multiplications of a token."""
        attention = length * 2 * self.width
        if self.network == "minimal":
            return 3 * self.language.num_typed * self.width + attention
        return self.layers * (6 * self.width**2 + attention)


def train(folder: Path, **fields) -> dict:
    """Trains the seeds and tests each; returns what `results.json` holds of it."""
    training = Training(**fields)
    check(training)
    started = time.perf_counter()
    fitted = fit(
        training.start, make_draw(training), training.recipe(), range(training.seeds), folder,
        make_loss(training),
    )  # fmt: skip
    seconds = time.perf_counter() - started
    results = {
        "seconds": round(seconds, 1),
        "parameters": sum(leaf[0].size for leaf in jax.tree.leaves(fitted.params)),
        "losses": np.round(fitted.losses, 6).tolist(),
    }
    reading = read_copies if training.learn == "copy" else measure_all
    results |= reading(training, fitted)
    results |= look(training, fitted)
    if training.network == "minimal":
        results |= weigh_balance(training, fitted)
    (folder / UNFINISHED).unlink(missing_ok=True)
    return results


def check(training: Training) -> None:
    """Stops on fields that contradict each other."""
    for what, options in OPTIONS.items():
        if getattr(training, what) not in options:
            expected = " or ".join(options)
            raise ConfigError(f"{what} must be {expected}, got '{getattr(training, what)}'")
    if training.position not in ("none", "linear"):
        raise ConfigError(f"position must be none or linear, got '{training.position}'")
    if training.network == "minimal" and training.position != "none":
        raise ConfigError("a minimal first layer has no positions; set position='none'")
    if training.network == "minimal" and training.learn == "copy":
        raise ConfigError("copying needs network='gpt': a minimal first layer hides the types")
    if training.contrast and training.learn == "copy":
        raise ConfigError("a contrastive term is for what comes next; set contrast=0")
    if training.network == "minimal" and min(training.types, training.depth) < 2:
        raise ConfigError(
            f"balance is between 2 types and 2 depths at least, got {training.types} and "
            f"{training.depth}; set types=2 and depth=2 or more"
        )
    if training.seeds < 2:
        raise ConfigError(f"seeds must be at least 2 to compare them, got {training.seeds}")
    _ = training.language


# What a network learns from.


class Batch(NamedTuple):
    """Rows, and the same after pairs that are closed."""

    task: Task
    longer_BP: jax.Array | None
    first_B: jax.Array | None  # the place of the first bracket of the row in the longer one


def make_draw(training: Training) -> Callable[[jax.Array], Batch]:
    """A batch of the examples from a key."""
    language = training.language
    examples = language.sample(jax.random.key(TRAIN_SEED), training.examples, training.length)
    examples_NT = np.asarray(examples.tokens_BT)
    add = {"nested": nested_before, "fixed": fixed_before}[training.prefix]

    def draw(key: jax.Array) -> Batch:
        row_key, prefix_key = jax.random.split(key)
        chosen_B = jax.random.randint(row_key, (training.batch,), 0, training.examples)
        tokens_BT = jnp.asarray(examples_NT)[chosen_B]
        longer = add(language, prefix_key, tokens_BT) if training.contrast else (None, None)
        return Batch(make_task(training, tokens_BT), *longer)

    return draw


def make_task(training: Training, tokens_BT: jax.Array) -> Task:
    """The next tokens, or only those that close; or, to copy, the tokens themselves."""
    if training.learn == "copy":
        return Task(tokens_BT, None, tokens_BT, (tokens_BT != START).astype(jnp.float32))
    next_BT = jnp.roll(tokens_BT, -1, axis=1)
    counts_BT = next_BT != START  # that of the last token is the START of its row
    if training.learn == "closings":
        counts_BT = training.language.is_closing(next_BT)
    return Task(tokens_BT, None, next_BT, counts_BT.astype(jnp.float32))


def make_loss(training: Training) -> Callable:
    """The cross-entropy, and the mean square of what closed pairs change of the logits."""

    def loss(model, batch: Batch, dropout_key, n) -> jax.Array:
        logits_BTV = model(batch.task.inputs_BT)
        found = mean_loss(logits_BTV, batch.task)
        if not training.contrast:
            return found
        place_BT = batch.first_B[:, None] + jnp.arange(training.length)
        after_BTV = jnp.take_along_axis(model(batch.longer_BP), place_BT[..., None], axis=1)
        return found + training.contrast * jnp.mean(jnp.square(after_BTV - logits_BTV[:, 1:]))

    return loss


# What it is tested on.


class Counts(NamedTuple):
    """Positions by length, over all rows: how many are asked for a closing, how many are right."""

    asked_T: jax.Array  # the stack is not empty
    right_T: jax.Array  # of the closings, the right one is most probable
    sure_T: jax.Array  # it has more than 80% of the probability of all closings
    asked_after_T: jax.Array  # the same after closings; openings say themselves what closes them
    right_after_T: jax.Array


def measure_all(training: Training, fitted: Fitted) -> dict:
    """Accuracies on new rows as long as those of training, and on far longer ones; by length."""
    results: dict = {"tests": {}}
    for name, (length, rows, shortest) in tests(training).items():
        drawn = new_rows(training, rows, length)
        tokens_CBT, top_CBT = (x.reshape(-1, CHUNK, length + 1) for x in drawn)
        counts = fitted.of_each_seed(make_count(training.language, tokens_CBT, top_CBT))()
        results["tests"][name] = accuracies(counts, shortest, length)
    starts = range(1, training.longest, BIN)
    of_bins = [accuracies(counts, first, first + BIN - 1) for first in starts]
    results["by_length"] = {
        "length": [first + (BIN - 1) / 2 for first in starts],
        "after_closings": np.array([found["after_closings"] for found in of_bins]).T.tolist(),
    }
    return results


def tests(training: Training) -> dict[str, tuple[int, int, int]]:
    """Of each test: the length and number of its rows, and the shortest prefix that counts."""
    shortest, longest = training.far
    return {
        NEAR: (training.length, 8 * training.test_rows, 1),
        FAR: (longest, training.test_rows, shortest),
    }


def new_rows(training: Training, rows: int, length: int) -> Rows:
    """Rows that depend on the language and their length alone; NumPy."""
    key = jax.random.fold_in(jax.random.key(TEST_SEED), length)
    return jax.tree.map(np.asarray, training.language.sample(key, rows, length))


def make_count(
    language: Dyck, tokens_CBT: np.ndarray, top_CBT: np.ndarray
) -> Callable[[nnx.Module], Counts]:
    """model -> what it gets right in chunks of rows."""

    def count(model, tokens_BT, top_BT) -> Counts:
        share_BTV = jax.nn.softmax(model(tokens_BT)[..., 1 + language.types :])
        right_BT = jnp.argmax(share_BTV, axis=-1) == top_BT
        own_BT = jnp.take_along_axis(share_BTV, jnp.maximum(top_BT, 0)[..., None], axis=-1)[..., 0]
        asked_BT = top_BT != EMPTY
        after_BT = asked_BT & language.is_closing(tokens_BT)
        sure_BT = own_BT > SURE
        found = asked_BT, asked_BT & right_BT, asked_BT & sure_BT, after_BT, after_BT & right_BT
        return Counts(*(x_BT.sum(axis=0) for x_BT in found))

    def run(model) -> Counts:
        found = jax.lax.map(lambda rows: count(model, *rows), (tokens_CBT, top_CBT))
        return jax.tree.map(lambda x_CT: x_CT.sum(axis=0), found)

    return run


def accuracies(counts: Counts, first: int, last: int) -> dict[str, list[float]]:
    """The three accuracies of every seed, over prefixes of these lengths."""
    total = Counts(*(x_ST[:, first : last + 1].sum(axis=1) for x_ST in counts))
    return {
        "all": (total.right_T / total.asked_T).tolist(),
        "after_closings": (total.right_after_T / total.asked_after_T).tolist(),
        "sure": (total.sure_T / total.asked_T).tolist(),
    }


def weigh_balance(training: Training, fitted: Fitted) -> dict:
    """The balance violation of every seed."""
    scores_SMM, values_SMD = fitted.of_each_seed(lambda model: model.read_off())()
    found = [
        violation(score_MM.astype(np.float64), value_MD.astype(np.float64), training.types,
                  training.depth)
        for score_MM, value_MD in zip(scores_SMM, values_SMD, strict=True)
    ]  # fmt: skip
    return {
        "violation": [each.mean for each in found],
        "largest_violation": [each.largest for each in found],
    }


# What it attends to.


def look(training: Training, fitted: Fitted) -> dict:
    """The last layer on one prefix with every bracket, and its weight on the top of the stack."""
    language, shown_1T = training.language, training.language.every_bracket()
    maps_SQK = fitted.of_each_seed(lambda model: model.attention_weights(shown_1T)[-1, 0, 0])()
    rows = new_rows(training, 4 * CHUNK, training.length)
    place_BT = top_places(language, rows.tokens_BT)
    row_Q, query_Q = np.nonzero((place_BT >= 0) & np.asarray(language.is_closing(rows.tokens_BT)))
    key_Q = place_BT[row_Q, query_Q]
    on_top_S = fitted.of_each_seed(
        lambda model: model.attention_weights(rows.tokens_BT)[-1, row_Q, 0, query_Q, key_Q].mean()
    )()
    return {
        "shown": "".join(language.symbols[token] for token in shown_1T[0]),
        "attention": np.round(maps_SQK, 4).tolist(),
        "variation": variation(maps_SQK),
        "on_top": on_top_S.tolist(),
        "on_top_if_equal": float(np.mean(1 / (query_Q + 1))),
    }


def read_copies(training: Training, fitted: Fitted) -> dict:
    """Accuracy of copying, also without attention, and what the attention of each layer is on."""
    tokens_BT = new_rows(training, 4 * CHUNK, training.length).tokens_BT
    closes_BT = np.asarray(training.language.is_closing(tokens_BT)).astype(np.float32)

    def accuracy(model) -> jax.Array:
        right_BT = jnp.argmax(model(tokens_BT), axis=-1) == tokens_BT
        return jnp.mean(right_BT[:, 1:].astype(jnp.float32))

    def without(model) -> jax.Array:
        for block in model.blocks:
            for part in (block.attention.out.kernel, block.attention.out.bias):
                part[...] = jnp.zeros_like(part[...])
        return accuracy(model)

    def on_closings(model) -> jax.Array:
        weights_LBQK = model.attention_weights(tokens_BT)[:, :, 0]
        return jnp.einsum("lbqk,bk->lq", weights_LBQK, closes_BT)[:, 1:].mean(axis=1) / rows

    rows, shown_1T = len(tokens_BT), training.language.every_bracket()
    seen_BT = np.cumsum(closes_BT, axis=1) / np.arange(1, closes_BT.shape[1] + 1)
    return {
        "tests": {NEAR: {"copied": fitted.of_each_seed(accuracy)().tolist(),
                         "copied_without_attention": fitted.of_each_seed(without)().tolist()}},
        "on_closings": fitted.of_each_seed(on_closings)().tolist(),
        "on_closings_if_equal": float(seen_BT[:, 1:].mean()),
        "layers": np.round(
            fitted.of_each_seed(lambda model: model.attention_weights(shown_1T)[:, 0, 0])()[0], 4
        ).tolist(),
    }  # fmt: skip
